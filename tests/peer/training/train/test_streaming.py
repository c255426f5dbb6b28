"""Streaming: inner steps go on while a round is agreed, and what they made is kept, merged and accounted for."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dht.errors import DiskFull
from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.encoding import digest
from peer.consensus.protocol.layout import Part
from peer.training.outer.kernels import PartUpdate, TorchKernels
from peer.training.outer.layer_tensors import LayerTensors, Origin
from peer.training.train.optimizers import learning_rate
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound, contribution
from tests.peer.training.train.fragments import Fragments
from tests.saved import saved
from tests.stepping import step, submit
from tests.vectors import starts, whole

ANCHORS = [digest("anchor", number) for number in range(4)]
Make = Callable[..., LocalTrainer]

# ---- a model of few numbers, against the recorded schedule; every number is dyadic, so that float32 is exact ----

LEARNING_RATE = 0.5
PEERS = 2
SYNCS = 3
"""Of each fragment: each takes up to five of the 24 bits."""


def moves(peer: int, step: int, fragment: int) -> int:
    """What inner step `step` of a peer takes off a fragment's one parameter."""
    return (3 * peer + 5 * step + 7 * fragment) % 5 - 2


def recorded(
    fragments: int, period: int, delay: int, share: float, momentum: float
) -> Iterator[tuple[list[Fraction], list[list[Fraction]]]]:
    """After each inner step the shared and the local parameters, by the schedule as it is recorded of torchft.

    A counter of merges names the fragment; its Δ is taken `delay` steps before the end of the period; then
    θ = old − outer step, local = interpolate(θ, local, α), and the counter goes on.
    """
    lr, mu, alpha = Fraction(LEARNING_RATE), Fraction(momentum), Fraction(share)
    old = [Fraction(fragment) for fragment in range(fragments)]
    velocity = [Fraction(0)] * fragments
    local = [list(old) for _ in range(PEERS)]
    deltas: list[Fraction] = []
    counter, local_step, made = 0, 0, 0
    while counter < SYNCS * fragments:
        for peer in range(PEERS):
            for fragment in range(fragments):
                local[peer][fragment] -= moves(peer, made, fragment)
        made, local_step = made + 1, local_step + 1
        at = counter % fragments
        if local_step == period - delay:
            deltas = [old[at] - local[peer][at] for peer in range(PEERS)]
        if local_step == period:
            mean = sum(deltas, Fraction(0)) / PEERS
            velocity[at] = mu * velocity[at] + mean
            theta = old[at] - lr * (mean + mu * velocity[at])
            for peer in range(PEERS):
                local[peer][at] = (1 - alpha) * theta + alpha * local[peer][at]
            old[at] = theta
            counter, local_step = counter + 1, 0
        yield list(old), [list(each) for each in local]


EXACT = Codec("float32")
KERNELS, WHOLE = TorchKernels(EXACT), Part(layer=0, start=0, size=1)


class Fragment:
    """One fragment of one peer, by the product's arithmetic."""

    def __init__(self, value: float) -> None:
        self.theta, self.local = torch.tensor([value]), torch.tensor([value])
        self.layer = LayerTensors(
            first=0, local=((slice(0, 1), self.local),), residual=torch.zeros(1), theta=self.theta,
            momentum=torch.zeros(1), start=Origin.AT_ANCHOR,
        )  # fmt: skip
        self.offered = b""

    def take(self) -> None:
        KERNELS.progress(self.layer)
        self.offered = KERNELS.encode(self.layer, WHOLE)
        KERNELS.keep_start(self.layer)

    def merge(self, mean: bytes, momentum: float, share: float) -> None:
        update = PartUpdate(
            part=WHOLE,
            outer=(LEARNING_RATE, momentum),
            mean=mean,
            mine=self.offered,
            kept=None,
            gives_up=False,
            own=share,
        )
        KERNELS.apply(self.layer, [update])


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("fragments", [1, 2, 3])
def test_the_recorded_schedule_holds_exactly(fragments: int, share: float, momentum: float) -> None:
    """Every delay within periods of one to four steps, two peers, after every inner step."""
    for period in range(1, 5):
        for delay in range(period):
            schedule = Fragments(fragments=fragments, steps=period * fragments, delay=delay)
            peers = [[Fragment(float(number)) for number in range(fragments)] for _ in range(PEERS)]
            for made, expected in enumerate(recorded(fragments, period, delay, share, momentum)):
                for peer, number in itertools.product(range(PEERS), range(fragments)):
                    peers[peer][number].local -= moves(peer, made, number)
                if (taken := schedule.taken_after(made + 1)) is not None:
                    for peer in peers:
                        peer[taken].take()
                if (merged := schedule.merged_after(made + 1)) is not None:
                    offers = [EXACT.decode(peer[merged].offered) for peer in peers]
                    mean = EXACT.encode(np.mean(offers, axis=0, dtype=np.float32))
                    for peer in peers:
                        peer[merged].merge(mean, momentum, share)
                found = (
                    [Fraction(each.theta.item()) for each in peers[0]],
                    [[Fraction(each.local.item()) for each in peer] for peer in peers],
                )
                assert found == expected, f"period {period}, delay {delay}, step {made + 1}"


def test_fragments_are_staggered_over_the_steps() -> None:
    """Each is merged once in H steps, one third of them after the one before; nothing is taken before its period."""
    schedule = Fragments(fragments=3, steps=12, delay=3)
    merges = {step: schedule.merged_after(step) for step in range(1, 25)}
    assert {step: which for step, which in merges.items() if which is not None} == {
        4: 0, 8: 1, 12: 2, 16: 0, 20: 1, 24: 2,
    }  # fmt: skip
    takes = [step for step in range(1, 25) if schedule.taken_after(step) is not None]
    assert takes == [1, 5, 9, 13, 17, 21]


@pytest.mark.parametrize(("fragments", "steps", "delay"), [(3, 10, 0), (2, 4, 2), (1, 4, -1)])
def test_a_schedule_that_cannot_be_is_refused(fragments: int, steps: int, delay: int) -> None:
    with pytest.raises(AssertionError):
        Fragments(fragments=fragments, steps=steps, delay=delay)


# ---- the trainer ----

STREAMING = {"overlap": "streaming", "merge": "rebase"}
GAMMA = 0.5


def train(trainer: LocalTrainer, steps: int = 2) -> list[float]:
    """Their learning rates."""
    trainer.begin_round(("p0", "p1"))
    return [step(trainer).learning_rate for _ in range(steps)]


def local(trainer: LocalTrainer) -> Tensor:
    return trainer._backend.vectors.flat.new()


def decide(trainers: Sequence[LocalTrainer], anchor: bytes, **options: Any) -> DecidedRound:
    decided = DecidedRound(trainers, anchor, **options)
    decided.apply_to(*trainers)
    return decided


def exact(make: Make, me: str, wire: str = "float32", **round: Any) -> LocalTrainer:
    """One whose contributions lose nothing in encoding."""
    trainer = make(me, **round)
    spec = dataclasses.replace(trainer.spec, codec=dataclasses.replace(trainer.spec.codec, wire=wire))  # type: ignore[arg-type]
    return LocalTrainer(spec, me, trainer._folder, torch.device("cpu"), data_path=spec.data.path)


def rounds_of(trainers: Sequence[LocalTrainer]) -> list[tuple[bytes, ...]]:
    """State and local parameters after each of three rounds without a step between freeze and update."""
    found, anchor = [], ANCHORS[0]
    for _ in range(3):
        for trainer in trainers:
            train(trainer, 3)
            submit(trainer, anchor)
        anchor = decide(trainers, anchor).next_anchor
        found.append((trainers[0].anchor.state_digest(), *(local(each).numpy().tobytes() for each in trainers)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("merge", [{"merge": "interpolate", "alpha": 0.0}, {"merge": "rebase"}])
def test_without_a_delay_it_is_plain_diloco_bit_for_bit(make: Make, merge: dict[str, Any]) -> None:
    """One fragment, float32: two peers' anchors and local parameters, as of peers that wait."""
    plain = rounds_of([exact(make, f"plain {peer}") for peer in range(2)])
    streaming = rounds_of([exact(make, f"plain {peer}", **{**STREAMING, **merge}) for peer in range(2)])
    assert streaming == plain
    assert len(set(plain)) == 3


def test_plain_diloco_is_what_its_paper_says(make: Make) -> None:
    """Δ = θ − θ_i, v ← μ v + Δ, θ ← θ − lr (Δ + μ v), θ_i ← θ: the same bits as of a trainer that streams alone."""
    trainer = exact(make, "p0", **STREAMING)
    table = trainer.spec.outer
    trainer.spec = dataclasses.replace(trainer.spec, outer=dataclasses.replace(table, momentum_warmup_rounds=0))
    theta, anchor = whole(trainer.anchor.theta).numpy(), ANCHORS[0]
    velocity = np.zeros_like(theta)
    lr, mu = np.float32(table.learning_rate), np.float32(table.momentum)
    for _ in range(3):
        train(trainer, 3)
        delta = theta - local(trainer).numpy()
        velocity = mu * velocity + delta
        theta = theta - lr * (mu * velocity + delta)
        submit(trainer, anchor)
        anchor = decide([trainer], anchor).next_anchor
        assert whole(trainer.anchor.theta).numpy().tobytes() == theta.tobytes()
        assert local(trainer).numpy().tobytes() == theta.tobytes()


def test_steps_after_the_freeze_are_the_first_of_the_next_round(make: Make) -> None:
    """Their learning rates, their count towards H, their tokens and their age; the update changes none of it."""
    trainer = make(steps=4, ramp_rounds=0, sync_rounds=0, **STREAMING)
    rates = train(trainer, 4)
    submit(trainer, ANCHORS[0])
    assert (trainer.progress.in_training, trainer.progress.step, trainer.status.fresh) == (1, 0, False)
    rates += train(trainer, 3)
    assert (trainer.progress.in_training, trainer.progress.step) == (1, 3)
    anchor = decide([trainer], ANCHORS[0]).next_anchor
    assert (trainer.progress.in_training, trainer.progress.step) == (1, 3)
    rates += train(trainer, 1)
    assert rates == [learning_rate(trainer.spec, round, step) for round in (0, 1) for step in range(4)]
    submit(trainer, anchor)
    mine = contribution(trainer, anchor)
    assert (mine.effort.steps, mine.effort.staleness) == (4, 0)
    assert mine.effort.tokens == 4 * 2 * trainer.spec.model.context


def test_a_round_that_takes_longer_than_the_next_goes_on_at_its_last_rate(make: Make) -> None:
    trainer = make(steps=2, ramp_rounds=0, sync_rounds=0, **STREAMING)
    train(trainer)
    submit(trainer, ANCHORS[0])
    rates = train(trainer, 4)
    assert rates == [learning_rate(trainer.spec, 1, step) for step in (0, 1, 1, 1)]


@pytest.mark.parametrize("left_out", [frozenset(), frozenset({"p1"})])
def test_progress_made_meanwhile_is_kept_whole(make: Make, left_out: frozenset[str]) -> None:
    """Also if the round misses what was offered: that ages, and what came after it does not."""
    trainers = [exact(make, name, gamma=GAMMA, **STREAMING) for name in ("p0", "p1")]
    for trainer in trainers:
        train(trainer)
        submit(trainer, ANCHORS[0])
    second = trainers[1]
    offered, submitted_at = whole(second._backend.vectors.residual), local(second)
    train(second, 3)
    since = submitted_at - local(second)
    assert since.any()
    decide(trainers, ANCHORS[0], left_out=left_out)
    owed = offered * GAMMA if left_out else torch.zeros_like(offered)
    assert torch.equal(whole(second._backend.vectors.residual), owed + since)
    assert torch.equal(local(second), whole(second.anchor.theta) - whole(second._backend.vectors.residual))
    assert second.progress.turns.work(0).age.staleness(1) == bool(left_out)


def test_what_is_given_up_for_its_age_is_what_was_offered(make: Make) -> None:
    """Work since the freeze stays, with its tokens and its own age."""
    trainers = [exact(make, name, gamma=1.0, max_staleness=1, **STREAMING) for name in ("p0", "p1")]
    first, second = trainers
    anchor = ANCHORS[0]
    train(second)
    for round in range(2):
        train(first)
        submit(first, anchor)
        if round == 1:
            submit(second, anchor)
            submitted_at, offered = local(second), whole(second._backend.vectors.residual)
            train(second, 3)
            since = submitted_at - local(second)
            decided = DecidedRound(trainers, anchor, left_out=frozenset({"p1"}))
        else:
            decided = DecidedRound([first], anchor)
        first.apply(decided.update, decided.objects.__getitem__)
        given_up = second.apply(decided.update, decided.objects.__getitem__)
        anchor = decided.next_anchor
    assert given_up == pytest.approx(float(offered.norm()), rel=1e-6)
    assert torch.equal(whole(second._backend.vectors.residual), since)
    submit(second, anchor)
    mine = contribution(second, anchor)
    assert (mine.effort.steps, mine.effort.staleness) == (3, 0)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_interpolation_lies_between_the_anchor_and_the_own_parameters(make: Make, share: float) -> None:
    """(1 − α) (anchor − what no update has counted) + α own; what is owed then is measured from the anchor."""
    trainer = exact(make, "p0", overlap="streaming", merge="interpolate", alpha=share)
    train(trainer)
    submit(trainer, ANCHORS[0])
    train(trainer, 3)
    own = local(trainer)
    decide([trainer], ANCHORS[0])
    expected = (1 - share) * whole(trainer.anchor.theta).double() + share * own.double()
    torch.testing.assert_close(local(trainer).double(), expected, rtol=0, atol=1e-7)
    assert torch.equal(local(trainer), whole(trainer.anchor.theta) - whole(trainer._backend.vectors.residual))
    if share == 0:
        assert not whole(trainer._backend.vectors.residual).any()


def test_without_a_step_meanwhile_there_is_nothing_to_merge(make: Make) -> None:
    """The anchor was there at once, or the round is replayed: half-way to it would be half of an update behind."""
    trainer = exact(make, "p0", overlap="streaming")
    assert trainer.spec.round.merge == "interpolate"
    train(trainer)
    submit(trainer, ANCHORS[0])
    decide([trainer], ANCHORS[0])
    assert torch.equal(local(trainer), whole(trainer.anchor.theta))
    assert not whole(trainer._backend.vectors.residual).any()


def test_who_offered_nothing_loses_nothing_by_interpolation(make: Make) -> None:
    """A peer that was too slow for the round: it has no overlapped steps to merge, but a round's work."""
    first, second = (exact(make, name, overlap="streaming", merge="interpolate", alpha=0.0) for name in ("p0", "p1"))
    train(first)
    submit(first, ANCHORS[0])
    train(second)
    learned = starts(second) - local(second)
    decided = DecidedRound([first], ANCHORS[0])
    decided.apply_to(second)
    assert torch.equal(whole(second._backend.vectors.residual), learned)


# ---- written beside training ----


class Gate:
    """A disk that waits, and then has room or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, trainer: LocalTrainer) -> None:
        self.open, self.full = threading.Event(), False
        write = trainer._write_contribution

        def write_when_open(*arguments: Any) -> None:
            assert self.open.wait(60)
            if self.full:
                raise DiskFull("the disk is full")
            write(*arguments)

        monkeypatch.setattr(trainer, "_write_contribution", write_when_open)


def test_steps_are_made_while_a_contribution_is_written(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is what was learned up to the freeze, as if nothing had followed."""
    waits, streams = make("p0"), make("p0", **STREAMING)
    gate = Gate(monkeypatch, streams)
    train(streams)
    writing = streams.submit(ANCHORS[0])
    train(streams, 3)
    assert streams.status.offered
    assert not writing.done()
    gate.open.set()
    writing.result(60)
    mine = contribution(streams, ANCHORS[0])
    written, effort = [mine.payload(part) for part in range(len(streams.parts))], mine.effort
    for path in streams._folder.iterdir():
        path.unlink()
    train(waits)
    submit(waits, ANCHORS[0])
    mine = contribution(waits, ANCHORS[0])
    assert [mine.payload(part) for part in range(len(waits.parts))] == written
    assert mine.effort == effort


def test_without_room_nothing_is_offered_and_nothing_is_lost(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps since are part of what is offered once there is room: tokens, ranges, count towards H and age."""
    trainer = exact(make, "p0", **STREAMING)
    gate = Gate(monkeypatch, trainer)
    gate.full = True
    gate.open.set()
    train(trainer)
    start = whole(trainer.anchor.theta) - local(trainer)
    writing = trainer.submit(ANCHORS[0])
    train(trainer, 3)
    with pytest.raises(DiskFull):
        writing.result(60)
    trainer.take_back()
    assert (trainer.status.offered, trainer.status.fresh, trainer.progress.step) == (False, True, 5)
    gate.full = False
    produced = whole(trainer.anchor.theta) - local(trainer)
    assert not torch.equal(produced, start)
    submit(trainer, ANCHORS[0])
    mine = contribution(trainer, ANCHORS[0])
    assert (mine.effort.steps, mine.effort.tokens) == (5, 5 * 2 * trainer.spec.model.context)
    assert sum(end - begin for _, begin, end in mine.effort.ranges) == 10
    assert mine.effort.staleness == 0
    torch.testing.assert_close(whole(trainer._backend.vectors.residual), produced, rtol=0, atol=1e-7)


def test_no_update_comes_before_what_is_being_written(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another round than mine was decided meanwhile, and my disk is full: nothing was offered, so nothing ages."""
    other, trainer = exact(make, "p0"), exact(make, "p1", gamma=GAMMA, **STREAMING)
    train(other)
    submit(other, ANCHORS[0])
    decided = DecidedRound([other], ANCHORS[0])
    gate = Gate(monkeypatch, trainer)
    gate.full = True
    train(trainer)
    produced = starts(trainer) - local(trainer)
    writing = trainer.submit(ANCHORS[0])
    with pytest.raises(AssertionError, match="being written"):
        decided.apply_to(trainer)
    gate.open.set()
    with pytest.raises(DiskFull):
        writing.result(60)
    with pytest.raises(AssertionError, match="is taken back first"):
        decided.apply_to(trainer)
    trainer.take_back()
    decided.apply_to(trainer)
    assert torch.equal(whole(trainer._backend.vectors.residual), produced)
    assert trainer.progress.turns.work(0).tokens == 2 * 2 * trainer.spec.model.context


def test_who_was_killed_after_its_contribution_reads_on_behind_it(make: Make, tmp_path: Path) -> None:
    """Its checkpoint is older; steps go on at once, and no window is in two contributions."""
    trainer = make(overlap="streaming")
    trainer.begin_round(["p0"])
    checkpoint = saved(trainer, ANCHORS[0], tmp_path / "checkpoints")
    for _ in range(5):
        step(trainer)
    submit(trainer, ANCHORS[0])
    offered = windows(contribution(trainer, ANCHORS[0]).effort.ranges)

    again = make(overlap="streaming")
    again.restore(checkpoint)
    again.resume(ANCHORS[0])
    again.begin_round(["p0"])
    for _ in range(3):
        step(again)
    read = windows(again._batches.ranges())
    assert len(read) == 6
    assert not read & offered


def windows(ranges: Iterable[tuple[int, int, int]]) -> set[tuple[int, int]]:
    """(shard, window) of each."""
    return {(shard, window) for shard, start, end in ranges for window in range(start, end)}
