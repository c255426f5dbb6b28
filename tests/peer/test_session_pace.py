"""Rounds by time and by speed in a peer's own story: from when the time counts, and what it makes of its part."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from peer.events import InnerProgressed, RoundStarted
from peer.lifecycle.pace import Pace
from peer.limits.desired_state import Intent
from tests.peer.rounds.build import block, update
from tests.peer.story import STEPS, Story, commit


def paced(story: Story, **round: Any) -> Story:
    """The same story in a run with another `[round]`."""
    table = dataclasses.replace(story.peer.spec.round, **round)
    story.peer.spec = dataclasses.replace(story.peer.spec, round=table)
    story.peer.pace = Pace(story.peer.spec)
    return story


def made(story: Story) -> int:
    """Steps since the last contribution but one."""
    last = "".join(item[0] for item in story.trainer.done if item in ("step", "freeze")).rstrip("f")
    return len(last) - last.rfind("f") - 1


@pytest.fixture
def timed(story: Story) -> Story:
    """Rounds of 10 s."""
    return paced(story, pace="time", max_train_s=10.0)


def test_a_round_by_time_takes_what_fits_into_it(timed: Story) -> None:
    """Steps of 3 s: the fourth would end too late; the first time it is made, since nobody knew that."""
    timed.trainer.step_s = 3.0
    for number in range(3):
        timed.until(lambda: timed.trainer.frozen)
        assert (made(timed), timed.link.told[-1][0]) == (3, "frozen")
        timed.link.queue.append(commit(block(update(round=number + 1))))
        timed.turns(1)


def test_no_more_is_made_than_counts(timed: Story) -> None:
    timed.trainer.step_s = 0.1
    timed.until(lambda: timed.trainer.frozen)
    assert made(timed) == 2 * STEPS


def test_the_time_counts_from_when_the_anchor_was_agreed(timed: Story) -> None:
    """Not from when this peer heard it, in the middle of a step, and had computed it."""
    timed.trainer.step_s = 2.0
    timed.until(lambda: timed.trainer.frozen)
    agreed_at = timed.clock.now + 1.0
    timed.clock.now += 4.5
    timed.link.queue.append(commit(agreed_at=agreed_at))
    timed.turns(1)
    timed.until(lambda: timed.trainer.frozen)
    assert agreed_at + 8.0 < timed.clock.now <= agreed_at + 10.0
    assert made(timed) == 3


def test_a_slow_peer_makes_its_share_and_walks_through_the_same_rates(story: Story) -> None:
    """Half as fast as the others: half the steps; the link tells it how fast they say they are."""
    paced(story, pace="speed")
    story.turns(STEPS + 1)
    story.link.queue += [("speeds", {"p0": 128.0, "p1": 128.0}), commit()]
    story.turns(1)
    story.until(lambda: story.trainer.frozen)
    assert story.trainer.positions == [0, 1, 2, 3, 0, 2]
    assert [(event.step, event.steps) for event in story.told(InnerProgressed)][-1] == (2, 2)
    assert [event.steps for event in story.told(RoundStarted)] == [4, 2]
    assert [fields[0] for kind, *fields in story.link.told if kind == "progress"][-2:] == [0.5, 1.0]


def test_a_gentle_peers_speed_is_what_its_owner_allows(story: Story) -> None:
    """Steps of 1 s, one every 4 s: the others hear 16 tokens per second."""
    story.session.wishes.min_step_s, story.link.on_wait = 4.0, story.clock.sleep
    story.until(lambda: story.trainer.frozen)
    assert [fields[2] for kind, *fields in story.link.told if kind == "progress"][-1] == 16.0


def test_a_gentle_peer_makes_the_steps_that_fit(story: Story) -> None:
    """In 14.2 s, one every 4 s that takes 0.1 s: the fourth ends after 12.1 s, and it is no reason to stop resting."""
    paced(story, pace="time", max_train_s=14.2)
    story.session.wishes.min_step_s, story.trainer.step_s, story.link.on_wait = 4.0, 0.1, story.clock.sleep
    for number in range(2):
        story.until(lambda: story.trainer.frozen)
        assert made(story) == 4
        assert story.clock.now - story.peer.agreed_at == pytest.approx(12.1, abs=0.01)
        story.clock.now += 10.0
        story.link.queue.append(commit(block(update(round=number + 1))))
        story.turns(1)


@pytest.mark.parametrize(("away_s", "ends_s"), [(5.0, 10.0), (50.0, 60.0)])
def test_after_a_short_pause_the_round_ends_with_that_of_the_others(timed: Story, away_s: float, ends_s: float) -> None:
    """After one that was longer than the round, it begins for this peer."""
    began_at = timed.clock.now
    timed.session.wishes.wish(Intent.PAUSE)
    timed.turns(1)
    timed.clock.now += away_s
    timed.session.wishes.wish(Intent.TRAIN)
    timed.trainer.step_s = 2.0
    timed.until(lambda: timed.trainer.frozen)
    assert ends_s - 2.0 < timed.clock.now - began_at <= ends_s + 1.0
