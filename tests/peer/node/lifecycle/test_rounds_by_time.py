"""Rounds by time and by speed in a peer's own story: from when the time counts, and what it makes of its part."""

from __future__ import annotations

import pytest

from peer.node.lifecycle.inputs_effects import Do, SpeedsHeard, Step
from peer.schema.events import InnerProgressed, RoundStarted
from peer.schema.ipc import OfferContribution, ReportProgress
from tests.peer.consensus.rounds.build import update
from tests.peer.node.lifecycle.story import PAUSED, STEPS, Story, commit, endless, in_step, joined, spec


def made(story: Story) -> int:
    """Steps since the last contribution but one."""
    last = "".join("f" if item == "submit" else "s" for item in story.trainer.done if item in ("step", "submit"))
    last = last.rstrip("f")
    return len(last) - last.rfind("f") - 1


def offered(story: Story) -> bool:
    return story.life.trainer.offered


@pytest.fixture
def timed() -> Story:
    """Rounds of 10 s."""
    return joined(endless(pace="time", max_train_s=10.0))


def test_a_round_by_time_takes_what_fits_into_it(timed: Story) -> None:
    """Steps of 3 s: the fourth would end too late; the first time it is made, since nobody knew that."""
    timed.trainer.takes_s[Step] = 3.0
    for number in range(3):
        timed.until(lambda: offered(timed))
        assert (made(timed), type(timed.told[-1])) == (3, OfferContribution)
        timed.queue.append(commit(update(round=number + 1)))
        timed.turns(1)


def test_no_more_is_made_than_counts(timed: Story) -> None:
    timed.trainer.takes_s[Step] = 0.1
    timed.until(lambda: offered(timed))
    assert made(timed) == 2 * STEPS


def test_the_time_counts_from_when_the_anchor_was_agreed(timed: Story) -> None:
    """Not from when this peer heard it, in the middle of a step, and had computed it."""
    timed.trainer.takes_s[Step] = 2.0
    timed.until(lambda: offered(timed))
    agreed_at = timed.now + 1.0
    timed.now += 4.5
    timed.queue.append(commit(agreed_at=agreed_at))
    timed.turns(1)
    timed.until(lambda: offered(timed))
    assert agreed_at + 8.0 < timed.now <= agreed_at + 10.0
    assert made(timed) == 3


def test_a_slow_peer_makes_its_share_and_walks_through_the_same_rates() -> None:
    """Half as fast as the others: half the steps; the link tells it how fast they say they are."""
    story = joined(spec(pace="speed"))
    story.turns(STEPS + 1)
    story.queue += [lambda now: SpeedsHeard(now, {"p0": 128.0, "p1": 128.0}), commit()]
    story.turns(1)
    story.until(lambda: offered(story))
    assert story.trainer.positions == [0, 1, 2, 3, 0, 2]
    assert [(event.step, event.steps) for event in story.all(InnerProgressed)][-1] == (2, 2)
    assert [event.steps for event in story.all(RoundStarted)] == [4, 2]
    assert [told.share for told in story.words(ReportProgress)][-2:] == [0.5, 1.0]


def test_a_gentle_peers_speed_is_what_its_owner_allows() -> None:
    """Steps of 1 s, one every 4 s: the others hear 16 tokens per second."""
    story = joined(is_in_step=False)
    story.gentle(4.0)
    story.feed(in_step)
    story.on_wait = story.sleep
    story.until(lambda: offered(story))
    assert story.words(ReportProgress)[-1].tokens_per_s == 16.0


def test_a_gentle_peer_makes_the_steps_that_fit() -> None:
    """In 14.2 s, one every 4 s that takes 0.1 s: the fourth ends after 12.1 s, and it is no reason to stop resting."""
    story = joined(spec(pace="time", max_train_s=14.2), is_in_step=False)
    story.gentle(4.0)
    story.trainer.takes_s[Step] = 0.1
    story.feed(in_step)
    story.on_wait = story.sleep
    for number in range(2):
        story.until(lambda: offered(story))
        assert made(story) == 4
        assert story.now - story.life.round.agreed_at == pytest.approx(12.1, abs=0.01)
        story.now += 10.0
        story.queue.append(commit(update(round=number + 1)))
        story.turns(1)


@pytest.mark.parametrize(("away_s", "ends_s"), [(5.0, 10.0), (50.0, 60.0)])
def test_after_a_short_pause_the_round_ends_with_that_of_the_others(away_s: float, ends_s: float) -> None:
    """After one that was longer than the round, it begins for this peer."""
    timed = joined(endless(pace="time", max_train_s=10.0), is_in_step=False)
    timed.trainer.takes_s[Step] = 2.0
    began_at = timed.now
    timed.hold(PAUSED)
    timed.feed(in_step)
    timed.turns(1)
    timed.now += away_s
    timed.hold()
    timed.until(lambda: offered(timed))
    assert ends_s - 2.0 < timed.now - began_at <= ends_s + 1.0


def test_a_simulated_trainer_is_given_all_steps_that_need_no_look(timed: Story) -> None:
    """As many as the round still takes; a real one makes one of them and asks again."""
    timed.trainer.takes_s[Step] = 3.0
    timed.until(lambda: offered(timed))
    timed.queue.append(commit())
    timed.turns(1)
    most = [effect.work.most for effect in timed.effects if isinstance(effect, Do) and isinstance(effect.work, Step)]
    assert most == [2 * STEPS, 2 * STEPS - 1, 2 * STEPS - 2, 3]
