"""A peer whose chain leads nowhere any more goes on from a snapshot, and its work goes along."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from peer.consensus.protocol.encoding import digest
from peer.training.outer.outer_state import OuterState
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound, contribution
from tests.stepping import step, submit
from tests.vectors import whole

Make = Callable[..., LocalTrainer]
HERE = digest("here")
THERE = digest("there")


def elsewhere(trainer: LocalTrainer, round: int) -> OuterState:
    """Where others came without this peer."""
    generator = torch.Generator().manual_seed(round)
    theta, momentum = ([torch.rand(size, generator=generator) for size in trainer.layer_sizes] for _ in range(2))
    return OuterState(theta, momentum, round, {0: 5})


def train(trainer: LocalTrainer, steps: int = 2) -> None:
    trainer.begin_round(["p0", "p1"])
    for _ in range(steps):
        step(trainer)


def offered(trainer: LocalTrainer, anchor: bytes) -> torch.Tensor:
    """What a contribution decodes to."""
    mine = contribution(trainer, anchor)
    decoded = [trainer._codec.decode(mine.payload(part)) for part in range(len(trainer.parts))]
    pieces = [torch.from_numpy(values[: part.size]) for values, part in zip(decoded, trainer.parts, strict=True)]
    return torch.cat(pieces)


def local(trainer: LocalTrainer) -> torch.Tensor:
    return trainer._backend.vectors.flat.new()


def test_what_was_not_offered_goes_along(make: Make) -> None:
    """It is owed as before, measured from the new anchor."""
    trainer = make()
    train(trainer)
    produced = whole(trainer.anchor.theta) - local(trainer)
    restored = elsewhere(trainer, 3)
    assert trainer.adopt(HERE, restored) == 0.0
    assert trainer.anchor.state_digest() == restored.state_digest()
    assert (trainer.anchor.round, trainer.anchor.cursors) == (3, {0: 5})
    assert torch.equal(whole(trainer._backend.vectors.residual), produced)
    assert torch.equal(local(trainer), whole(restored.theta) - produced)
    submit(trainer, THERE)
    assert contribution(trainer, THERE).effort.staleness == 3


def test_what_was_offered_stays_behind(make: Make) -> None:
    """Updates that nobody can show may have counted it: only what came after it, and its residue, is owed."""
    trainer = make()
    train(trainer)
    submit(trainer, HERE)
    train(trainer, 1)
    produced = whole(trainer.anchor.theta) - local(trainer)
    given_up = trainer.adopt(HERE, elsewhere(trainer, 3))
    gave = offered(trainer, HERE)
    assert given_up == pytest.approx(float(torch.linalg.vector_norm(gave)), rel=1e-6)
    torch.testing.assert_close(whole(trainer._backend.vectors.residual), produced - gave, rtol=0, atol=1e-6)
    assert not trainer.status.offered
    train(trainer)
    submit(trainer, THERE)
    assert contribution(trainer, THERE).effort.staleness <= 3


def test_what_a_crash_made_it_forget_stays_behind_too(make: Make) -> None:
    """A new process finds what the old one offered, and owes nothing of it."""
    before = make()
    train(before)
    submit(before, HERE)
    again = make()
    assert again.adopt(HERE, elsewhere(again, 3)) > 0
    assert not bool(whole(again._backend.vectors.residual).any())


def test_work_beyond_the_age_limit_is_given_up(make: Make) -> None:
    """With the limit of the run, here two rounds."""
    trainer = make(max_staleness=2)
    train(trainer)
    norm = float(torch.linalg.vector_norm(whole(trainer.anchor.theta) - local(trainer)))
    assert trainer.adopt(HERE, elsewhere(trainer, 3)) == pytest.approx(norm, rel=1e-6)
    assert not bool(whole(trainer._backend.vectors.residual).any())


def test_after_a_jump_rounds_go_on(make: Make) -> None:
    """Two peers that come to the same snapshot from different places have the same bits after the next round."""
    trainers = [make("p0"), make("p1")]
    train(trainers[0])
    train(trainers[1], 3)
    for trainer in trainers:
        trainer.adopt(HERE, elsewhere(trainer, 3))
        train(trainer)
        submit(trainer, THERE)
    DecidedRound(trainers, THERE).apply_to(*trainers)
    assert trainers[0].anchor.state_digest() == trainers[1].anchor.state_digest()
    assert trainers[0].anchor.round == 4
