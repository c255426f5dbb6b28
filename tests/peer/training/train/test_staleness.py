"""What a peer offers says how old it is: kept over missed rounds, void parts and restarts; too old is given up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from peer.consensus.aggregation.weights import integer_weights
from peer.consensus.protocol.block import token_share
from peer.consensus.protocol.encoding import digest
from peer.training.checkpoint.checkpoint import Checkpoints, newest
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound, contribution
from tests.stepping import step, submit
from tests.vectors import starts, whole

ANCHORS = [digest("anchor", number) for number in range(12)]
Make = Callable[..., LocalTrainer]


def train(trainer: LocalTrainer) -> None:
    trainer.begin_round(("p0", "p1"))
    step(trainer)


def offer(trainer: LocalTrainer, anchor: bytes) -> int:
    """Train, freeze; returns the staleness that was pledged."""
    train(trainer)
    submit(trainer, anchor)
    return pledged(trainer, anchor)


def pledged(trainer: LocalTrainer, anchor: bytes) -> int:
    return contribution(trainer, anchor).header(trainer.me).staleness


def test_a_peer_that_stopped_for_three_rounds_is_stale_once(make: Make) -> None:
    """It learned something towards round 1, then stood still. It replays what the others decided; what it offers
    next is three rounds old, counts half of what as many fresh tokens do, and afterwards it is fresh."""
    steady, stopped = make("p0"), make("p1")
    train(stopped)
    for anchor in ANCHORS[:3]:
        assert offer(steady, anchor) == 0
        DecidedRound([steady], anchor).apply_to(steady, stopped)
    assert [offer(steady, ANCHORS[3]), offer(stopped, ANCHORS[3])] == [0, 3]
    members = tuple(contribution(trainer, ANCHORS[3]).header(trainer.me) for trainer in (steady, stopped))
    alike = tuple(dataclasses.replace(member, tokens=100) for member in members)
    assert integer_weights([token_share(member, 10**9, 8) for member in alike]) == (34_695, 30_840)
    DecidedRound([steady, stopped], ANCHORS[3]).apply_to(steady, stopped)
    assert [offer(steady, ANCHORS[4]), offer(stopped, ANCHORS[4])] == [0, 0]
    assert steady.anchor.state_digest() == stopped.anchor.state_digest()


def test_a_contribution_that_rounds_miss_gets_older(make: Make) -> None:
    """Left out twice, counted in the third; and one void part keeps the whole offer's age."""
    first, second = make("p0"), make("p1")
    for age, anchor in enumerate(ANCHORS[:2]):
        assert offer(first, anchor) == 0
        assert offer(second, anchor) == age
        DecidedRound([first, second], anchor, left_out=frozenset({"p1"})).apply_to(first, second)
    offer(first, ANCHORS[2])
    assert offer(second, ANCHORS[2]) == 2
    DecidedRound([first, second], ANCHORS[2], void=frozenset({0})).apply_to(first, second)
    assert offer(first, ANCHORS[3]) == 1
    assert offer(second, ANCHORS[3]) == 3


def test_the_age_survives_restarts(make: Make, tmp_path: Path) -> None:
    """From a checkpoint, and without one from the contribution that was written."""
    first, second = make("p0"), make("p1")
    for anchor in ANCHORS[:2]:
        offer(first, anchor)
        offer(second, anchor)
        missed = DecidedRound([first, second], anchor, left_out=frozenset({"p1"}))
        missed.apply_to(first, second)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.write(second.checkpoint(ANCHORS[2]))
    found = newest(checkpoints.folder, second.spec.digest().hex(), "p1", lambda path, why: None)
    assert found is not None
    restored = make("p1")
    restored.anchor.become(second.anchor)
    restored.restore(found)
    assert offer(restored, ANCHORS[2]) == 2
    offer(first, ANCHORS[2])
    again = make("p1")
    again.anchor.become(first.anchor)
    again.progress.stand_at(first.anchor.round)
    again.resume(ANCHORS[2])
    assert again.status.offered
    DecidedRound([first, again], ANCHORS[2], left_out=frozenset({"p1"})).apply_to(first, again)
    assert offer(again, ANCHORS[3]) == 3


def test_work_beyond_the_age_limit_is_given_up(make: Make) -> None:
    """Its norm is told, its steps are not counted again, and the next round begins from the anchor itself."""
    steady, sleeper = make("p0", max_staleness=2), make("p1", max_staleness=2)
    train(sleeper)
    owed = float(torch.linalg.vector_norm(starts(sleeper) - sleeper._backend.vectors.flat.new()))
    rounds = []
    for anchor in ANCHORS[:3]:
        offer(steady, anchor)
        rounds.append(DecidedRound([steady], anchor))
        rounds[-1].apply_to(steady)
    given_up = [sleeper.apply(item.update, item.objects.__getitem__) for item in rounds]
    assert given_up[:2] == [0.0, 0.0]
    assert given_up[2] == pytest.approx(owed, rel=1e-3)
    assert torch.equal(sleeper._backend.vectors.flat.new(), whole(sleeper.anchor.theta))
    assert offer(sleeper, ANCHORS[3]) == 0
    mine = contribution(sleeper, ANCHORS[3])
    assert mine.effort.steps == 1
