"""The owner of the anchor: what it learned is offered, counted, kept or aged, and never lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from dht.errors import Unreachable
from peer.consensus.codec.run_rules import rules_of
from peer.consensus.protocol.bounds import fault_of_header
from peer.consensus.protocol.encoding import digest
from peer.schema.spec import RunSpec
from peer.testing.memory_peer import ModelKeys
from peer.training.data.tokenizer import Tokens
from peer.training.train.anchor_review import AnchorReview
from peer.training.train.backend import SEQUENCES
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound, contribution
from tests.stepping import step, submit
from tests.talks import on_talks, on_talks_and_letters
from tests.vectors import starts, whole

ANCHORS = [digest("anchor", number) for number in range(4)]
NAMES = ("p0", "p1")


Make = Callable[..., LocalTrainer]


def train(trainer: LocalTrainer, steps: int = 2) -> None:
    trainer.begin_round(NAMES)
    for _ in range(steps):
        step(trainer)


def local(trainer: LocalTrainer) -> Tensor:
    """The parameters that the trainer trains now."""
    return trainer._backend.vectors.flat.new()


def offered(trainer: LocalTrainer, anchor: bytes) -> list[bytes]:
    """The encoded parts it wrote for `anchor`."""
    mine = contribution(trainer, anchor)
    return [mine.payload(part) for part in range(len(trainer.parts))]


def expect_local_is_anchor_less_balance(trainer: LocalTrainer) -> None:
    assert torch.equal(local(trainer), whole(trainer.anchor.theta) - whole(trainer._backend.vectors.residual))


def test_two_trainers_end_with_the_same_bits(make: Make) -> None:
    """Different data, different local parameters, the same updates: equal states after every round."""
    first, second = make("p0"), make("p1")
    assert first.anchor.state_digest() == second.anchor.state_digest()
    for anchor in ANCHORS[:3]:
        train(first, 3)
        train(second, 2)
        assert not torch.equal(local(first), local(second))
        submit(first, anchor)
        submit(second, anchor)
        DecidedRound([first, second], anchor).apply_to(first, second)
        assert first.anchor.state_digest() == second.anchor.state_digest()
        expect_local_is_anchor_less_balance(first)
        expect_local_is_anchor_less_balance(second)
    assert first.anchor.round == 3
    # 3 rounds of 3 + 2 steps of 2 sequences; no shard is read by both.
    assert sum(first.anchor.cursors.values()) == 30


def test_what_was_counted_leaves_the_encoding_residue(make: Make) -> None:
    """float16 keeps 11 bits; the rest is offered the next time."""
    trainer = make()
    train(trainer)
    start = starts(trainer)
    submit(trainer, ANCHORS[0])
    delta = start - local(trainer)
    decoded = np.concatenate([trainer._codec.decode(payload) for payload in offered(trainer, ANCHORS[0])])
    DecidedRound([trainer], ANCHORS[0]).apply_to(trainer)
    residue = whole(trainer._backend.vectors.residual)
    assert torch.equal(residue, delta - torch.from_numpy(decoded))
    assert 0 < float(residue.abs().max()) <= float(delta.abs().max()) * 2**-11
    expect_local_is_anchor_less_balance(trainer)


def test_a_missed_round_ages_the_balance(make: Make) -> None:
    """The others committed without this peer: γ of what it learned is offered again."""
    first, second = make("p0", gamma=0.75), make("p1", gamma=0.75)
    for trainer in (first, second):
        train(trainer)
        submit(trainer, ANCHORS[0])
    owed = whole(second._backend.vectors.residual)
    DecidedRound([first, second], ANCHORS[0], left_out=frozenset({"p1"})).apply_to(first, second)
    assert torch.equal(whole(second._backend.vectors.residual), owed * 0.75)
    assert first.anchor.state_digest() == second.anchor.state_digest()
    expect_local_is_anchor_less_balance(second)


def test_a_void_part_ages_alone(make: Make) -> None:
    """Its parameters do not move for anybody; the other parts are counted."""
    trainer = make(gamma=0.5)
    train(trainer)
    submit(trainer, ANCHORS[0])
    theta, owed = whole(trainer.anchor.theta), whole(trainer._backend.vectors.residual)
    DecidedRound([trainer], ANCHORS[0], void=frozenset({0})).apply_to(trainer)
    part = trainer.parts[0]
    void = slice(part.start, part.start + part.size)
    assert torch.equal(whole(trainer._backend.vectors.residual)[void], owed[void] * 0.5)
    assert torch.equal(whole(trainer.anchor.theta)[void], theta[void])
    assert (
        float(whole(trainer._backend.vectors.residual)[part.size :].abs().max())
        < float(owed[part.size :].abs().max()) / 100
    )


def test_a_round_that_came_too_early_takes_nothing(make: Make) -> None:
    """A peer that had not frozen keeps all it learned, undiscounted, on top of the new anchor."""
    first, second = make("p0"), make("p1")
    train(first)
    submit(first, ANCHORS[0])
    train(second)
    learned = starts(second) - local(second)
    DecidedRound([first], ANCHORS[0]).apply_to(second)
    assert torch.equal(whole(second._backend.vectors.residual), learned)
    expect_local_is_anchor_less_balance(second)
    assert not second.status.offered


def test_steps_after_the_freeze_belong_to_the_next_round(make: Make) -> None:
    """Training goes on in an overdue round: the contribution on disk stays, the rest waits in the residual."""
    trainer = make()
    train(trainer)
    submit(trainer, ANCHORS[0])
    before, parameters = offered(trainer, ANCHORS[0]), local(trainer)
    step(trainer)
    later = parameters - local(trainer)
    assert offered(trainer, ANCHORS[0]) == before
    DecidedRound([trainer], ANCHORS[0]).apply_to(trainer)
    assert float((whole(trainer._backend.vectors.residual) - later).abs().max()) < float(later.abs().max()) / 10
    expect_local_is_anchor_less_balance(trainer)


def test_one_contribution_per_anchor(make: Make) -> None:
    """All ballots of a round send the same bytes."""
    trainer = make()
    train(trainer)
    assert not trainer.status.offered
    submit(trainer, ANCHORS[0])
    assert trainer.status.offered
    with pytest.raises(AssertionError, match="one contribution"):
        submit(trainer, ANCHORS[0])


def test_the_effort_of_a_contribution_is_told(make: Make, spec: RunSpec) -> None:
    """Tokens, steps and ranges of data since the last one."""
    trainer = make()
    for anchor, steps in zip(ANCHORS, (2, 3), strict=False):
        train(trainer, steps)
        submit(trainer, anchor)
        mine = contribution(trainer, anchor)
        assert (mine.effort.steps, mine.effort.tokens) == (steps, steps * 2 * spec.model.context)
        assert mine.effort.ranges
        DecidedRound([trainer], anchor).apply_to(trainer)


def test_measuring_the_anchor_changes_nothing(make: Make) -> None:
    """Neither what is trained nor what is owed."""
    trainer = make()
    train(trainer)
    submit(trainer, ANCHORS[0])
    DecidedRound([trainer], ANCHORS[0]).apply_to(trainer)
    before, owed = local(trainer), whole(trainer._backend.vectors.residual)
    measured = trainer.evaluate()
    assert measured is not None
    assert torch.equal(local(trainer), before)
    assert torch.equal(whole(trainer._backend.vectors.residual), owed)
    assert 4.0 < measured.loss < 7.0
    assert measured.tokens > 0
    assert trainer.evaluate() == measured


def test_each_source_of_a_mix_is_measured(spec: RunSpec, tmp_path: Path) -> None:
    """And their mean by weight is the loss of the run."""
    mixed = on_talks_and_letters(spec, tmp_path / "data")
    trainer = LocalTrainer(mixed, "p0", tmp_path / "p0", torch.device("cpu"), data_path=mixed.data.path)
    measured = trainer.evaluate()
    assert measured is not None
    talks, letters = measured.by_source["talks"], measured.by_source["letters"]
    assert talks != letters
    assert measured.loss == pytest.approx((talks + 2 * letters) / 3)


@pytest.mark.parametrize("weigh", ["read", "predicted"])
def test_what_a_run_weighs_is_offered(weigh: Literal["read", "predicted"], spec: RunSpec, tmp_path: Path) -> None:
    """Of conversations the answers; with the windows in which they stand the header is within its bounds."""
    talks = on_talks(replace(spec, aggregation=replace(spec.aggregation, weigh=weigh)), tmp_path / "data")
    trainer = LocalTrainer(talks, "p0", tmp_path / "p0", torch.device("cpu"), data_path=talks.data.path)
    trainer.begin_round(NAMES)
    made = [step(trainer) for _ in range(2)]
    submit(trainer, ANCHORS[0])
    header = contribution(trainer, ANCHORS[0]).header("p0")
    assert header.tokens == sum(getattr(each, "tokens" if weigh == "read" else "predicted") for each in made)
    read = sum(last - first for _, first, last in header.ranges) * talks.model.context
    assert read == sum(each.tokens for each in made) > sum(each.predicted or 0 for each in made) > 0
    assert fault_of_header(rules_of(talks, trainer.parts, ModelKeys("p0")), header) == ("", "")


@dataclass
class HeldOutOnly:
    """A source of which nothing else is read."""

    tokens_BT: npt.NDArray[np.int64]
    windows: Mapping[int, int] = field(default_factory=dict)

    def window(self, shard: int, position: int) -> Tokens:
        raise AssertionError("nothing is read here")

    def held_out(self) -> npt.NDArray[np.int64]:
        return self.tokens_BT


def test_measuring_stops_when_it_is_told_to_and_leaves_nothing(make: Make) -> None:
    """Between two batches: who pauses a peer need not wait for all of the held-out text."""
    trainer = make()
    train(trainer)
    before, asked = local(trainer), list[int]()
    text = HeldOutOnly(np.zeros((70, trainer.spec.model.context + 1), np.int64))
    trainer._review = AnchorReview(trainer.spec, text, trainer._backend)

    def stop() -> bool:
        asked.append(1)
        return len(asked) == 2

    assert trainer.evaluate(stop) is None
    assert len(asked) == 2, "of three batches"
    assert torch.equal(local(trainer), before)
    assert trainer._backend._model.training
    assert trainer.evaluate() is not None


def test_a_replayed_chain_ends_where_the_others_are(make: Make) -> None:
    """A peer that starts again makes the outer steps alone; its residual is not touched by the past."""
    first, second = make("p0"), make("p1")
    rounds = []
    for anchor in ANCHORS[:2]:
        for trainer in (first, second):
            train(trainer)
            submit(trainer, anchor)
        rounds.append(DecidedRound([first, second], anchor))
        rounds[-1].apply_to(first, second)
    again = make("p1")
    for item in rounds:
        again.replay(item.update, item.objects.__getitem__)
    again.resume(ANCHORS[2])
    assert again.anchor.state_digest() == first.anchor.state_digest()
    assert not again.status.offered
    assert torch.equal(local(again), whole(again.anchor.theta))


def test_a_crash_after_the_freeze_offers_the_same_again(make: Make) -> None:
    """What was written is the residual, decoded; counting it leaves nothing owed."""
    trainer = make()
    train(trainer)
    submit(trainer, ANCHORS[0])
    before = offered(trainer, ANCHORS[0])
    again = make()
    again.resume(ANCHORS[0])
    assert again.status.offered
    expect_local_is_anchor_less_balance(again)
    assert offered(again, ANCHORS[0]) == before
    DecidedRound([again], ANCHORS[0]).apply_to(again)
    assert torch.equal(whole(again._backend.vectors.residual), torch.zeros_like(whole(again._backend.vectors.residual)))


def test_a_crash_after_a_missed_round_still_owes_what_it_missed(make: Make) -> None:
    """The round left this peer out and it died before the next freeze: γ of what it had offered is owed."""
    first, second = make("p0", gamma=0.75), make("p1", gamma=0.75)
    for trainer in (first, second):
        train(trainer)
        submit(trainer, ANCHORS[0])
    missed = DecidedRound([first, second], ANCHORS[0], left_out=frozenset({"p1"}))
    again = make("p1", gamma=0.75)
    again.replay(missed.update, missed.objects.__getitem__)
    again.resume(ANCHORS[1])
    decoded = [torch.from_numpy(again._codec.decode(payload)) for payload in offered(again, ANCHORS[0])]
    assert torch.equal(whole(again._backend.vectors.residual), torch.cat(decoded) * 0.75)
    expect_local_is_anchor_less_balance(again)


def test_a_loss_is_measured_in_the_micro_batches_of_training(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has room for training has room for measuring, and its owner may need the rest, or want it to stop."""
    asked: list[int] = []
    monkeypatch.setattr("peer.training.train.backend.held_out_loss", lambda *about: asked.append(about[3]) or 1.0)
    trainer = make()
    trainer.evaluate()
    trainer._backend.micro.sequences = 3
    trainer.evaluate()
    trainer._backend.micro.sequences = 2 * SEQUENCES
    trainer.evaluate()
    assert asked == [trainer.spec.inner.sequences, 3, SEQUENCES]


def test_a_step_whose_data_are_away_can_be_made_later(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits are those of a peer whose data were never away, and so is what it says it has read."""
    undisturbed, other = make("p0"), make("p1")
    for trainer in (undisturbed, other):
        trainer.me = "p0"
        trainer._batches.reassign(["p0"], {})
        trainer._backend.micro.sequences = 1
    step(undisturbed)
    read, asked = other._batches.next, count()

    def away(sequences: int) -> Tensor:
        if next(asked) == 1:
            raise Unreachable("away")
        return read(sequences)

    monkeypatch.setattr(other._batches, "next", away)
    with pytest.raises(Unreachable):
        step(other)
    assert other.status.step == 0
    step(other)
    assert other._batches.ranges() == undisturbed._batches.ranges()
    assert torch.equal(local(other), local(undisturbed))
