"""A peer that makes inner steps while its round is agreed."""

from __future__ import annotations

import dataclasses

import pytest

from peer.node.lifecycle.inputs_effects import Apply, Step, Submit
from peer.schema.events import InnerProgressed, PeerStateChanged, RoundStarted
from peer.schema.ipc import OfferContribution, PausedAt
from tests.peer.consensus.rounds.build import HEAD, update
from tests.peer.node.lifecycle.story import NEXT, PAUSED, STEPS, Story, commit, in_step, joined, spec


@pytest.fixture
def streams() -> Story:
    """As many steps meanwhile as there is time for."""
    return joined(spec(overlap="streaming", merge="rebase"))


def test_steps_go_on_while_the_round_is_agreed(streams: Story) -> None:
    """They count for the next round, whose part is given H steps after the submit; people are told in words."""
    streams.turns(STEPS + 3)
    assert streams.trainer.done == ["begin", *["step"] * STEPS, "submit", *["step"] * 3]
    event = streams.all(PeerStateChanged)[-1]
    assert (event.state, event.why) == ("TRAINING", "towards round 2, while round 1 is being agreed")
    assert len(streams.words(OfferContribution)) == 1
    streams.queue.append(commit())
    streams.turns(3)
    assert streams.trainer.done[-5:] == ["step", "apply", "begin", "submit", "step"]
    assert OfferContribution(NEXT) in streams.told
    assert [event.round for event in streams.all(RoundStarted)] == [0, 1]
    assert [event.round for event in streams.all(InnerProgressed)] == [0] * STEPS + [1] * (STEPS + 1) + [2]


def test_after_its_part_of_the_last_round_a_peer_is_on_its_way_to_no_other() -> None:
    run = spec(overlap="streaming", merge="rebase")
    story = joined(dataclasses.replace(run, run=dataclasses.replace(run.run, rounds=1)))
    story.turns(STEPS + 1)
    assert story.why == "its part of round 1, the last one, is given"


def test_what_came_before_the_anchor_is_given_at_once_when_it_is_enough(streams: Story) -> None:
    """The round took longer than the next one's steps: nobody makes H steps more for that."""
    streams.turns(3 * STEPS)
    streams.queue.append(commit())
    streams.turns(3)
    assert streams.trainer.done[-4:] == ["apply", "begin", "submit", "step"]


def test_only_what_keeps_the_trainer_is_exposed(streams: Story) -> None:
    """Applying and writing; not the time in which the others agree."""
    streams.trainer.takes_s |= {Apply: 0.25, Submit: 0.5}
    streams.turns(STEPS + 2)
    streams.queue.append(commit())
    streams.turns(STEPS)
    streams.queue.append(commit(update(round=2)))
    streams.turns(2)
    first, second = streams.rounds
    assert first.exposed_s == second.exposed_s == 0.75
    assert first.round_s == STEPS + 4 + 0.75


def test_a_limit_of_steps_is_kept() -> None:
    """Then the peer waits, and says so; every second of that is exposed."""
    story = joined(spec(overlap="streaming", merge="rebase", delay=2))
    story.turns(STEPS + 2)
    story.on_wait = story.sleep
    story.turns(4)
    assert story.trainer.done[STEPS + 1 :] == ["submit", "step", "step"]
    assert story.state == "AVERAGING"
    story.now += 10.0
    waited_s = story.now - 1000.0 - STEPS - 2
    story.feed(commit())
    story.turns(2)
    assert [told.exposed_s for told in story.rounds] == [waited_s]
    assert story.trainer.done[-2:] == ["begin", "step"]


def test_without_a_delay_it_is_a_peer_that_waits() -> None:
    story = joined(spec(overlap="streaming", merge="rebase", delay=0))
    story.turns(STEPS + 5)
    assert story.trainer.done == ["begin", *["step"] * STEPS, "submit"]
    assert story.told[-1] == OfferContribution(HEAD.anchor)
    assert story.state == "AVERAGING"


def test_the_link_hears_of_a_contribution_once_it_is_on_disk(streams: Story) -> None:
    """Training does not wait for the disk, and no checkpoint is taken before."""
    streams.trainer.writes_at_once = False
    streams.turns(STEPS + 2)
    assert streams.words(OfferContribution) == []
    assert streams.saved == []
    assert streams.trainer.done.count("step") == STEPS + 2
    assert isinstance(streams.pending, Step)
    streams.written()
    assert streams.told[-1] == OfferContribution(HEAD.anchor), "in the middle of a step"
    streams.turns(1)
    assert len(streams.words(OfferContribution)) == 1
    assert streams.saved == [HEAD.anchor]


def test_a_disk_that_was_full_gets_all_that_was_made_meanwhile(streams: Story) -> None:
    """The peer stops, says so, and offers it when there is room."""
    streams.trainer.writes_at_once = streams.trainer.room_on_disk = False
    streams.turns(STEPS + 2)
    streams.written()
    streams.turns(1)
    assert (streams.state, streams.why) == (
        "PAUSED", "the disk is full; make room, training goes on by itself",
    )  # fmt: skip
    assert not streams.trainer.status.offered
    streams.trainer.room_on_disk = streams.trainer.writes_at_once = True
    streams.wait(5.0)
    streams.turns(2)
    assert streams.trainer.done == ["begin", *["step"] * (STEPS + 3), "submit", "step"]
    assert len(streams.words(OfferContribution)) == 1


def test_a_rest_is_kept_though_the_anchor_changes() -> None:
    """A peer whose owner wants pauses is no faster in a swarm than alone, and nothing within them is exposed."""
    streams = joined(spec(overlap="streaming", merge="rebase"), is_in_step=False)
    streams.gentle(10.0)
    streams.feed(in_step)
    streams.on_wait = streams.sleep
    streams.trainer.takes_s |= {Apply: 0.5, Submit: 0.5}
    for number in range(3):
        streams.until(lambda: streams.trainer.status.offered)
        streams.turns(30)
        streams.queue.append(commit(update(round=number + 1)))
        streams.until(lambda number=number: streams.trainer.status.round > number)
        if number == 1:  # the run would end with the next one
            break
    steps = streams.trainer.done.count("step")
    streams.until(lambda: streams.trainer.done.count("step") > steps)
    assert streams.now - 1000.0 == pytest.approx(steps * 10.0 + 1.0)
    assert [told.exposed_s for told in streams.rounds] == [0.0] * 2


def test_a_pause_gives_what_was_made_meanwhile_at_the_next_anchor(streams: Story) -> None:
    """One contribution per anchor: it stays in memory until then."""
    streams.turns(STEPS + 2)
    streams.hold(PAUSED)
    streams.turns(2)
    assert streams.trainer.done.count("submit") == 1
    streams.queue.append(commit())
    streams.turns(2)
    assert streams.trainer.done[-2:] == ["begin", "submit"]
    assert streams.trainer.done.count("step") == STEPS + 3
    assert streams.told[-1] == PausedAt(NEXT)


def test_a_pause_waits_for_what_is_being_written(streams: Story) -> None:
    """The others hear of the contribution before the pause, or never."""
    streams.trainer.writes_at_once = False
    streams.turns(STEPS + 1)
    streams.hold(PAUSED)
    streams.turns(2)
    assert streams.state == "PAUSED"
    assert streams.words(PausedAt) == []
    streams.written()
    assert [type(told) for told in streams.told if isinstance(told, OfferContribution | PausedAt)] == [
        OfferContribution, PausedAt,
    ]  # fmt: skip


def test_no_checkpoint_is_taken_of_what_is_being_written(streams: Story) -> None:
    """It would wait for the disk, and training with it: one follows the contribution."""
    streams.trainer.writes_at_once = False
    streams.trainer.takes_s[Step] = 400.0
    streams.turns(STEPS)
    streams.turns(2)
    assert streams.saved == []


def test_nothing_is_given_after_the_last_round(streams: Story) -> None:
    """Steps that were made while it was agreed lead nowhere, however many they are."""
    streams.turns(STEPS)
    for number in (1, 2):
        streams.queue.append(commit(update(round=number)))
        streams.turns(STEPS + 2)
    streams.turns(3 * STEPS)
    told = len(streams.told)
    streams.queue.append(commit(update(round=3)))
    streams.turns(3)
    assert streams.left
    assert OfferContribution not in [type(message) for message in streams.told[told:]]
