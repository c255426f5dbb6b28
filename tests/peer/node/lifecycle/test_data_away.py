"""A peer whose data cannot be reached: it gives what it has made, holds nobody up, and goes on by itself."""

from __future__ import annotations

import pytest

from peer.node.lifecycle.state import RETRY_S
from peer.schema.ipc import OfferContribution, PausedAt, StepsGoOn
from tests.peer.consensus.rounds.build import HEAD
from tests.peer.node.lifecycle.story import NEXT, Story, commit


@pytest.fixture
def away(story: Story) -> Story:
    """After one of its steps."""
    story.turns(1)
    story.trainer.data_are_here = False
    story.turns(3)
    return story


def told(story: Story, kind: type) -> list[object]:
    return [message for message in story.told if isinstance(message, kind)]


def test_what_was_made_is_given_as_before_a_pause(away: Story) -> None:
    assert (away.state, "the data are away" in away.why, "tried again after 5 s" in away.why) == ("PAUSED", True, True)
    assert len(told(away, OfferContribution)) <= 1
    assert away.trainer.status.offered
    assert told(away, PausedAt) == [PausedAt(HEAD.anchor)]
    assert away.saved == [HEAD.anchor]


def test_it_goes_on_by_itself(away: Story) -> None:
    steps = away.trainer.done.count("step")
    away.trainer.data_are_here = True
    away.wait(RETRY_S)
    away.turns(2)
    assert away.trainer.done.count("step") > steps
    assert told(away, StepsGoOn)
    assert away.life.missed == 0


def test_attempts_become_rare(away: Story) -> None:
    """Each waits twice as long as the one before, and none longer than five minutes."""
    waits = []
    for _ in range(8):
        stuck = away.life.stuck
        assert stuck is not None
        waits.append(stuck.retry_at - away.now)
        away.wait(waits[-1])
        away.until(lambda: away.life.stuck is not None)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]
    assert away.state == "PAUSED"


def test_rounds_of_the_others_are_taken_in_meanwhile(away: Story) -> None:
    away.feed(commit())
    away.turns(3)
    assert away.trainer.status.round == 1
    assert away.life.round.anchor == NEXT
    assert away.state == "PAUSED"
