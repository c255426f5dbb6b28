"""A peer that makes inner steps while its round is agreed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dht.errors import DiskFull
from peer.events import InnerProgressed, PeerStateChanged, RoundCommitted, RoundStarted
from peer.limits.desired_state import Intent
from tests.peer.rounds.build import HEAD, block, update
from tests.peer.story import NEXT, STEPS, Story, commit


def streaming(story: Story, **round: Any) -> Story:
    spec = story.peer.spec
    table = dataclasses.replace(spec.round, overlap="streaming", **round)
    story.peer.spec = dataclasses.replace(spec, round=table)
    story.trainer.streams = True
    return story


@pytest.fixture
def streams(story: Story) -> Story:
    """The peer of the story, with as many steps meanwhile as there is time for."""
    return streaming(story)


def test_steps_go_on_while_the_round_is_agreed(streams: Story) -> None:
    """They count for the next round, whose part is given H steps after the freeze; people are told in words."""
    streams.turns(STEPS + 3)
    assert streams.trainer.done == ["begin", *["step"] * STEPS, "freeze", *["step"] * 3]
    event = streams.told(PeerStateChanged)[-1]
    assert (event.state, event.why) == ("TRAINING", "towards round 2, while round 1 is being agreed")
    assert streams.link.kinds().count("frozen") == 1
    streams.link.queue.append(commit())
    streams.turns(2)
    assert streams.trainer.done[-5:] == ["step", "apply", "begin", "freeze", "step"]
    assert ("frozen", NEXT) in streams.link.told
    assert [event.round for event in streams.told(RoundStarted)] == [0, 1]
    assert [event.round for event in streams.told(InnerProgressed)] == [0] * STEPS + [1] * STEPS + [2]


def test_what_came_before_the_anchor_is_given_at_once_when_it_is_enough(streams: Story) -> None:
    """The round took longer than the next one's steps: nobody makes H steps more for that."""
    streams.turns(3 * STEPS)
    streams.link.queue.append(commit())
    streams.turns(2)
    assert streams.trainer.done[-4:] == ["apply", "begin", "freeze", "step"]


def test_only_what_keeps_the_trainer_is_exposed(streams: Story) -> None:
    """Applying and writing; not the time in which the others agree."""
    streams.trainer.apply_s, streams.trainer.begin_freeze_s = 0.25, 0.5
    streams.turns(STEPS + 2)
    streams.link.queue.append(commit())
    streams.turns(STEPS)
    streams.link.queue.append(commit(block(update(round=2))))
    streams.turns(2)
    first, second = streams.told(RoundCommitted)
    assert (first.round_s, first.exposed_s) == (STEPS + 3 + 0.75, 0.75)
    assert second.exposed_s == pytest.approx(0.75)


def test_a_limit_of_steps_is_kept(story: Story) -> None:
    """Then the peer waits, and says so; every second of that is exposed."""
    streaming(story, delay=2)
    story.turns(STEPS + 2)
    story.link.on_wait = story.clock.sleep
    story.turns(4)
    assert story.trainer.done[STEPS + 1 :] == ["freeze", "step", "step"]
    assert story.told(PeerStateChanged)[-1].state == "AVERAGING"
    story.clock.now += 10.0
    waited_s = story.clock.now - 1000.0 - STEPS - 2
    story.link.queue.append(commit())
    story.turns(2)
    (event,) = story.told(RoundCommitted)
    assert event.exposed_s == waited_s
    assert story.trainer.done[-2:] == ["begin", "step"]


def test_without_a_delay_it_is_a_peer_that_waits(story: Story) -> None:
    streaming(story, delay=0)
    story.turns(STEPS + 5)
    assert story.trainer.done == ["begin", *["step"] * STEPS, "freeze"]
    assert story.link.told[-1] == ("frozen", HEAD.anchor)
    assert story.told(PeerStateChanged)[-1].state == "AVERAGING"


def test_the_link_hears_of_a_contribution_once_it_is_on_disk(streams: Story) -> None:
    """Training does not wait for the disk, and no checkpoint is taken before."""
    streams.trainer.is_frozen_on_disk = False
    streams.turns(STEPS + 2)
    assert "frozen" not in streams.link.kinds()
    assert streams.shelf.written == []
    assert streams.trainer.done.count("step") == STEPS + 2
    streams.trainer.written()
    assert streams.link.told[-1] == ("frozen", HEAD.anchor), "in the middle of a step"
    streams.turns(1)
    assert streams.link.kinds().count("frozen") == 1
    assert streams.shelf.written == [HEAD.anchor.hex()]


def test_a_disk_that_was_full_gets_all_that_was_made_meanwhile(streams: Story) -> None:
    """The peer stops, and offers it when there is room."""
    streams.trainer.is_frozen_on_disk, streams.trainer.room = False, False
    streams.turns(STEPS + 2)
    streams.trainer.is_frozen_on_disk = True
    with pytest.raises(DiskFull):
        streams.turns(1)
    assert not streams.trainer.frozen
    streams.trainer.room = True
    streams.turns(2)
    assert streams.trainer.done == ["begin", *["step"] * (STEPS + 2), "freeze", "step"]
    assert streams.link.kinds().count("frozen") == 1


def test_a_rest_is_kept_though_the_anchor_changes(streams: Story) -> None:
    """A peer whose owner wants pauses is no faster in a swarm than alone, and nothing within them is exposed."""
    streams.session.wishes.min_step_s, streams.link.on_wait = 10.0, streams.clock.sleep
    streams.trainer.apply_s, streams.trainer.begin_freeze_s = 0.5, 0.5
    for number in range(3):
        streams.until(lambda: streams.trainer.frozen)
        streams.turns(30)
        streams.link.queue.append(commit(block(update(round=number + 1))))
        streams.until(lambda number=number: streams.trainer.anchor.round > number)
    steps = streams.trainer.done.count("step")
    streams.until(lambda: streams.trainer.done.count("step") > steps)
    assert streams.clock.now - 1000.0 == pytest.approx(steps * 10.0 + streams.trainer.step_s)
    assert [event.exposed_s for event in streams.told(RoundCommitted)] == [0.0] * 3


def test_a_pause_gives_what_was_made_meanwhile_at_the_next_anchor(streams: Story) -> None:
    """One contribution per anchor: it stays in memory until then."""
    streams.turns(STEPS + 2)
    streams.session.wishes.wish(Intent.PAUSE)
    streams.link.on_wait = streams.clock.sleep
    streams.turns(2)
    assert streams.trainer.done.count("freeze") == 1
    streams.link.queue.append(commit())
    streams.turns(2)
    assert streams.trainer.done[-2:] == ["apply", "freeze"]
    assert streams.trainer.done.count("step") == STEPS + 2
    assert streams.link.told[-1] == ("paused", NEXT)


def test_a_pause_waits_for_what_is_being_written(streams: Story) -> None:
    """The others hear of the contribution before the pause, or never."""
    streams.trainer.is_frozen_on_disk = False
    streams.turns(STEPS + 1)
    streams.session.wishes.wish(Intent.PAUSE)
    streams.link.on_wait = streams.clock.sleep
    streams.turns(2)
    assert streams.trainer.done.count("freeze") == 1
    assert [kind for kind in streams.link.kinds() if kind != "progress"] == ["frozen", "paused"]


def test_no_checkpoint_is_taken_of_what_is_being_written(streams: Story) -> None:
    """It would wait for the disk, and training with it: one follows the contribution."""
    streams.trainer.is_frozen_on_disk = False
    streams.turns(STEPS)
    streams.shelf.every_s = 1.0
    streams.turns(2)
    assert streams.shelf.written == []


def test_nothing_is_given_after_the_last_round(streams: Story) -> None:
    """Steps that were made while it was agreed lead nowhere, however many they are."""
    streams.turns(STEPS)
    for number in (1, 2):
        streams.link.queue.append(commit(block(update(round=number))))
        streams.turns(STEPS + 1)
    streams.turns(3 * STEPS)
    told = len(streams.link.told)
    streams.link.queue.append(commit(block(update(round=3))))
    streams.turns(1)
    assert streams.peer.finished
    assert "frozen" not in [kind for kind, *_ in streams.link.told[told:]]
