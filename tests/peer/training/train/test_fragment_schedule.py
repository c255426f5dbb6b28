"""Trainers whose model is averaged in fragments: each moves in its turn alone, and what was made for it is counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dht.errors import BadSpec
from peer.consensus.protocol.encoding import digest
from peer.schema.spec import RunSpec
from peer.tools.audit.auditor import audit
from peer.tools.export.folder import export
from peer.training.model.footprint import size_of
from peer.training.outer.outer_state import OuterState
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound, contribution
from tests.peer.tools.export.run_on_disk import make_run, small_spec, write_corpus
from tests.peer.training.train.conftest import Make
from tests.saved import saved
from tests.stepping import slices, step, submit
from tests.vectors import whole

FIRST = digest("anchor", 0)
STEPS = 2
NAMES = ("p0", "p1")
FRAGMENTS = (2, 3)


def train(trainers: Sequence[LocalTrainer], anchor: bytes, steps: int = STEPS) -> None:
    for trainer in trainers:
        trainer.begin_round([each.me for each in trainers])
        for _ in range(steps):
            step(trainer)
        submit(trainer, anchor)


def local(trainer: LocalTrainer) -> Tensor:
    return trainer._backend.vectors.flat.new()


def averaged(trainer: LocalTrainer, round: int) -> Tensor:
    """Which elements a round averages."""
    found = torch.zeros(trainer.parameters, dtype=torch.bool)
    for where in slices(trainer, round):
        found[where] = True
    return found


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [{}, {"overlap": "streaming", "merge": "rebase"}, {"overlap": "streaming"}])
@pytest.mark.parametrize("fragments", FRAGMENTS)
def test_each_fragment_moves_in_its_turn_alone(make: Make, fragments: int, overlap: dict[str, Any]) -> None:
    """Parameters, momentum, residual and local parameters of the others stay as they are, bit for bit."""
    trainers = [make(name, fragments=fragments, **overlap) for name in ("p0", "p1")]
    first, chain, anchor = trainers[0], list[DecidedRound](), FIRST
    for round in range(2 * fragments + 1):
        train(trainers, anchor)
        if overlap:
            step(first)
        first._collect_progress()
        vectors = first.anchor.theta, first.anchor.momentum, first._backend.vectors.residual
        before = (*map(whole, vectors), local(first))
        chain.append(DecidedRound(trainers, anchor, before=chain[-1] if chain else None))
        chain[-1].apply_to(*trainers)
        anchor, mine = chain[-1].next_anchor, averaged(first, round)
        for was, now in zip(before, (*map(whole, vectors), local(first)), strict=True):
            assert torch.equal(was[~mine], now[~mine])
            assert not torch.equal(was[mine], now[mine])
        assert torch.equal(
            local(first)[mine], (whole(first.anchor.theta) - whole(first._backend.vectors.residual))[mine]
        )
    assert len({trainer.anchor.state_digest() for trainer in trainers}) == 1
    assert all(averaged(first, round).any() for round in range(fragments))
    assert sum(averaged(first, round).int() for round in range(fragments)).eq(1).all()  # type: ignore[union-attr]


@pytest.mark.parametrize("fragments", FRAGMENTS)
def test_a_pledge_counts_what_was_made_since_its_fragment_was_offered(make: Make, fragments: int) -> None:
    """Tokens and steps of all rounds since; of the data each window once; and who waits for its turn is not late."""
    trainer, anchor, windows = make("p0", fragments=fragments), FIRST, list[tuple[int, int]]()
    tokens = STEPS * trainer.spec.inner.sequences * trainer.spec.model.context
    for round in range(2 * fragments + 1):
        train([trainer], anchor)
        effort = contribution(trainer, anchor).effort
        rounds = min(round + 1, fragments)
        assert (effort.tokens, effort.steps, effort.staleness) == (rounds * tokens, rounds * STEPS, 0)
        assert effort.tokens <= trainer.spec.tokens_cap
        windows += [(shard, window) for shard, start, end in effort.ranges for window in range(start, end)]
        decided = DecidedRound([trainer], anchor)
        decided.apply_to(trainer)
        anchor = decided.next_anchor
    assert len(windows) == len(set(windows)) == (2 * fragments + 1) * STEPS * trainer.spec.inner.sequences


@pytest.mark.parametrize("fragments", FRAGMENTS)
def test_age_counts_the_turns_of_a_fragment(make: Make, fragments: int) -> None:
    """Work that its fragment's round has missed is one turn old at its next, and discounted once; others are fresh."""
    trainers = [make(name, fragments=fragments, gamma=0.5) for name in ("p0", "p1")]
    first, anchor = trainers[0], FIRST
    for round in range(fragments + 1):
        train(trainers, anchor)
        effort = contribution(first, anchor).effort
        assert effort.staleness == (1 if round == fragments else 0)
        owed = whole(first._backend.vectors.residual)
        decided = DecidedRound(trainers, anchor, left_out=("p0",) if round == 0 else ())
        decided.apply_to(*trainers)
        if round == 0:
            mine = averaged(first, 0)
            assert torch.equal(whole(first._backend.vectors.residual)[mine], 0.5 * owed[mine])
            assert torch.equal(whole(first._backend.vectors.residual)[~mine], owed[~mine])
        anchor = decided.next_anchor


def test_what_is_too_old_is_given_up_of_one_fragment_alone(make: Make) -> None:
    """The others' work is younger."""
    trainers = [make(name, fragments=2, gamma=1.0, max_staleness=1) for name in ("p0", "p1")]
    first, anchor, given_up = trainers[0], FIRST, list[float]()
    for round in range(4):
        train(trainers, anchor)
        decided = DecidedRound(trainers, anchor, left_out=() if round % 2 else ("p0",))
        given_up.append(first.apply(decided.update, decided.objects.__getitem__))
        decided.apply_to(trainers[1])
        anchor = decided.next_anchor
    assert [norm > 0 for norm in given_up] == [False, False, True, False]
    assert first.progress.turns.work(0).tokens > 0
    train(trainers, anchor)
    assert contribution(first, anchor).effort.staleness == 0


@pytest.mark.parametrize("fragments", FRAGMENTS)
def test_a_crash_behind_a_contribution_takes_its_fragment_alone_back(
    make: Make, tmp_path: Path, fragments: int
) -> None:
    """The rest is as the checkpoint has it; what was offered is offered again."""
    trainer = make("p0", fragments=fragments)
    train([trainer], FIRST)
    decided = DecidedRound([trainer], FIRST)
    decided.apply_to(trainer)
    checkpoint = saved(trainer, decided.next_anchor, tmp_path / "checkpoints")
    before = local(trainer)
    train([trainer], decided.next_anchor)
    offered = contribution(trainer, decided.next_anchor)
    again = make("p0", fragments=fragments)
    again.anchor.become(trainer.anchor)
    again.restore(checkpoint)
    again.resume(decided.next_anchor)
    mine = averaged(again, 1)
    assert again.status.offered
    assert torch.equal(local(again)[~mine], before[~mine])
    assert not torch.equal(local(again)[mine], before[mine])
    assert again.progress.turns.work(1).tokens == 0
    assert again.progress.turns.work(0).tokens == trainer.progress.turns.work(0).tokens - offered.effort.tokens // 2
    following = DecidedRound([again], decided.next_anchor)
    following.apply_to(again, trainer)
    assert again.anchor.state_digest() == trainer.anchor.state_digest()


def test_a_jump_leaves_what_is_on_offer_behind(make: Make) -> None:
    """That of one fragment; what was made for the other goes along."""
    trainer = make("p0", fragments=2)
    train([trainer], FIRST)
    owed, mine = whole(trainer._backend.vectors.residual), averaged(trainer, 0)
    elsewhere = OuterState(*([make(size) for size in trainer.layer_sizes] for make in (torch.ones, torch.zeros)), 3, {})
    assert trainer.adopt(FIRST, elsewhere) > 0
    assert torch.equal(whole(trainer._backend.vectors.residual)[~mine], owed[~mine])
    assert whole(trainer._backend.vectors.residual)[mine].abs().max() < 0.01 * owed[mine].abs().max()
    assert torch.equal(local(trainer), whole(elsewhere.theta) - whole(trainer._backend.vectors.residual))
    submit(trainer, digest("there"))
    assert contribution(trainer, digest("there")).effort.staleness == 1, "made in round 0 for the turn in round 1"


@pytest.mark.slow
@pytest.mark.parametrize(
    "table",
    [{"overlap": "layerwise"}, {"overlap": "streaming", "merge": "rebase"}, {"overlap": "streaming"}],
    ids=["layerwise", "rebase", "interpolate"],
)
def test_layer_by_layer_gives_the_same_bits(spec: RunSpec, tmp_path: Path, table: dict[str, Any]) -> None:
    """Layers of other fragments are there at once, and steps that were made meanwhile are merged alike."""
    states = []
    for beside in (False, True):
        changed = dataclasses.replace(spec, round=dataclasses.replace(spec.round, fragments=2, **table))
        trainers = [
            LocalTrainer(changed, name, tmp_path / f"{name} {beside}", torch.device("cpu"), data_path=changed.data.path)
            for name in NAMES
        ]
        anchor, first = FIRST, trainers[0]
        for _ in range(3):
            train(trainers, anchor)
            decided = DecidedRound(trainers, anchor)
            anchor = decided.next_anchor
            for trainer in trainers:
                if trainer.progress.streams:
                    step(trainer)
                if beside:
                    trainer.apply(decided.update, decided.objects.__getitem__, beside=True)
                    assert trainer.layers is not None
                    trainer.layers.result(60)
                else:
                    decided.apply_to(trainer)
        vectors = local(first), whole(first._backend.vectors.residual)
        states.append((first.anchor.state_digest(), *(vector.numpy().tobytes() for vector in vectors)))
    assert states[0] == states[1]


def test_more_fragments_than_layers_are_refused_in_one_line(make: Make, spec: RunSpec) -> None:
    """As soon as the model is known."""
    why = "round.fragments is 7; the model has 3 layers to share out"
    with pytest.raises(BadSpec, match=why):
        make("p0", fragments=7)
    with pytest.raises(BadSpec, match=why):
        size_of(dataclasses.replace(spec, round=dataclasses.replace(spec.round, fragments=7)))


def test_fewer_rounds_kept_than_fragments_are_refused_in_one_line(spec: RunSpec) -> None:
    """The last mean of each fragment must be there."""
    with pytest.raises(BadSpec, match=r"round\.fragments is 9 and round.keep_rounds 8.*set keep_rounds to at least 10"):
        dataclasses.replace(spec.round, fragments=9)
    assert dataclasses.replace(spec.round, fragments=9, keep_rounds=10).fragments == 9


def test_a_round_sends_its_fragment_alone(make: Make) -> None:
    """The largest contribution is about so much smaller than the whole model's."""
    sizes = {}
    for fragments in (1, 2):
        trainer, anchor = make(f"p{fragments}", fragments=fragments), FIRST
        sent = []
        for _ in range(fragments):
            train([trainer], anchor)
            mine = contribution(trainer, anchor)
            sent.append(sum(len(mine.payload(part)) for part in range(len(mine.leaves))))
            decided = DecidedRound([trainer], anchor)
            decided.apply_to(trainer)
            anchor = decided.next_anchor
        sizes[fragments] = sent
    assert sum(sizes[2]) == sizes[1][0]
    assert max(sizes[2]) < 0.67 * sizes[1][0]


@pytest.mark.slow
def test_a_chain_of_fragments_is_audited_and_exported(tmp_path: Path) -> None:
    """Every block by the fragment of its round, and the anchor at its end from the first parameters on."""
    write_corpus(tmp_path / "corpus")
    spec = small_spec(tmp_path / "corpus", "llama")
    spec = dataclasses.replace(spec, round=dataclasses.replace(spec.round, fragments=2))
    run = make_run(tmp_path, spec, rounds=5)
    state = run.trainer.anchor.state_digest().hex()
    report = audit(run.directory)
    assert (report.last_round, report.firm, report.state) == (5, 5, state)
    assert report.parts == sum(len(run.trainer.progress.turns.parts(round)) for round in range(5))
    export(run.directory, tmp_path / "exported")
    assert (tmp_path / "exported").is_dir()
