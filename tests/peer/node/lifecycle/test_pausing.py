"""A peer whose owner pauses it: what it has made is given, nobody waits for it, and it goes on at once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from peer.node.lifecycle.inputs_effects import Evaluate, LeaveDevice, LinkEnded, Reconnect, Submit, TakeDevice
from peer.node.limits.policy import Hold
from peer.schema.events import AlertRaised, Evaluated, InnerProgressed, PeerStateChanged
from peer.schema.ipc import Leave, OfferContribution, PausedAt, StepsGoOn
from tests.peer.consensus.rounds.build import HEAD
from tests.peer.node.lifecycle.story import (
    NEXT,
    PAUSED,
    QUOTA,
    STEPS,
    Story,
    commit,
    in_step,
    joined,
    positioned,
    submit_asked,
)


@pytest.fixture
def paused(story: Story) -> Story:
    """After one of its steps."""
    story.turns(1)
    story.hold(PAUSED)
    story.turns(1)
    return story


def said(story: Story) -> list[object]:
    """What the link was told, but for progress."""
    kinds = (OfferContribution, PausedAt, StepsGoOn)
    return [message for message in story.told if isinstance(message, kinds)]


def test_a_pause_gives_what_was_made_and_frees_the_device(paused: Story) -> None:
    """People read it at once, in the middle of a step, which ends with its micro-batch."""
    assert (paused.state, paused.why) == ("PAUSED", PAUSED.why)
    assert paused.interrupted == [True]
    assert paused.trainer.done == ["begin", "step", "step", "submit"]
    assert not paused.trainer.status.on_device
    assert said(paused) == [PausedAt(HEAD.anchor)]
    assert paused.saved == [HEAD.anchor]


def test_the_device_is_free_before_anything_is_written(story: Story) -> None:
    """Its owner need not wait for a disk."""
    story.turns(1)
    story.hold(PAUSED)
    story.turns(1)
    work = [type(effect.work) for effect in story.effects if hasattr(effect, "work")]
    assert work.index(LeaveDevice) < work.index(Submit)


def test_what_was_made_is_told_to_people_before_the_pause(paused: Story) -> None:
    assert sum(event.tokens for event in paused.all(InnerProgressed)) == 2 * 64


def test_a_pause_without_work_gives_nothing(story: Story) -> None:
    """It says that nothing follows, and that is all."""
    story = joined(is_in_step=False)
    story.hold(PAUSED)
    story.feed(in_step)
    story.turns(2)
    assert story.trainer.done == []
    assert said(story) == [PausedAt(HEAD.anchor)]


def test_a_paused_peer_makes_no_step_and_nothing_wakes_it(paused: Story) -> None:
    paused.turns(5)
    assert paused.trainer.done.count("step") == 2
    assert set(paused.waits) <= {float("inf")}


def test_a_paused_peer_applies_and_says_so_at_each_anchor(paused: Story) -> None:
    """It votes and takes in every round."""
    paused.queue.append(commit())
    paused.turns(2)
    assert paused.trainer.done[-1] == "apply"
    assert said(paused)[-1] == PausedAt(NEXT)
    assert not paused.trainer.status.on_device


def test_time_in_a_pause_is_not_exposed(paused: Story) -> None:
    paused.wait(100.0)
    paused.queue.append(commit())
    paused.turns(1)
    assert [told.exposed_s for told in paused.rounds] == [0.0]
    assert paused.life.times.paused_s == 100.0


def test_who_has_given_goes_on_with_the_next_round(paused: Story) -> None:
    """And waits for nobody: its part of this round is given."""
    paused.hold()
    paused.turns(2)
    assert said(paused) == [PausedAt(HEAD.anchor), StepsGoOn()]
    assert (paused.state, paused.why) == ("TRAINING", "towards round 2, since its part of round 1 is given")
    assert paused.trainer.done[-1] == "step"


def test_who_gave_nothing_may_still_do_so() -> None:
    """All steps of the round, and one contribution."""
    story = joined(is_in_step=False)
    story.hold(PAUSED)
    story.feed(in_step)
    story.turns(1)
    story.hold()
    story.turns(2)
    assert (story.state, story.why) == ("TRAINING", "towards round 1")
    assert story.trainer.done == ["begin", "step"]
    story.turns(STEPS - 1)
    assert story.trainer.done[-1] == "submit"
    assert said(story) == [PausedAt(HEAD.anchor), StepsGoOn(), OfferContribution(HEAD.anchor)]


def test_a_device_that_others_use_is_tried_again(paused: Story) -> None:
    """It says so, and every second of that is exposed."""
    paused.trainer.room_on_device = False
    paused.hold()
    paused.turns(1)
    assert paused.why == "the GPU has no room for the model: others use it; tried every 5 s"
    exposed_s = paused.life.times.exposed_s
    paused.wait(5.0)
    assert isinstance(paused.pending, TakeDevice)
    assert paused.life.times.exposed_s - exposed_s == 5.0
    paused.trainer.room_on_device = True
    paused.turns(2)
    assert paused.trainer.done[-1] == "step"


def test_finishing_makes_all_steps_of_the_round_first(story: Story) -> None:
    story.turns(1)
    story.hold(finishing=True)
    story.turns(STEPS + 2)
    assert story.trainer.done == ["begin", *["step"] * STEPS, "submit"]
    assert said(story) == [OfferContribution(HEAD.anchor), PausedAt(HEAD.anchor)]
    assert story.state == "PAUSED"


def test_finishing_a_round_that_is_given_pauses_at_once(story: Story) -> None:
    story.turns(STEPS + 1)
    story.hold(finishing=True)
    story.turns(1)
    assert story.state == "PAUSED"


def test_who_resumes_before_the_round_is_finished_does_not_pause(story: Story) -> None:
    story.hold(finishing=True)
    story.turns(1)
    story.hold()
    story.turns(STEPS)
    assert story.state == "AVERAGING"


def test_finishing_is_done_with_the_submit(story: Story) -> None:
    """Also if the round is decided at that moment: no step of another round follows, until its owner says so."""
    story.hold(finishing=True)
    story.turns(STEPS - 1)
    story.queue.append(commit())
    story.turns(4)
    assert story.trainer.done.count("step") == STEPS
    assert story.state == "PAUSED"


def test_a_pause_while_it_catches_up_is_remembered() -> None:
    """It comes into step first, but the device is its owner's at once."""
    story = joined(is_in_step=False)
    story.hold(PAUSED)
    story.turns(2)
    assert story.state == "SYNCING"
    assert not story.trainer.status.on_device
    story.queue.append(in_step)
    story.turns(2)
    assert story.state == "PAUSED"
    assert story.trainer.done == []


def test_a_pause_ends_a_rest() -> None:
    """A gentle peer pauses within a moment."""
    story = joined(is_in_step=False)
    story.gentle(1000.0)
    story.feed(in_step)
    story.turns(1)
    story.hold(PAUSED)
    story.turns(1)
    assert story.state == "PAUSED"
    assert story.trainer.done == ["begin", "step", "submit"]
    assert story.now == 1001.0


def test_a_new_link_hears_that_the_peer_is_paused(paused: Story) -> None:
    """It knows nothing of what the one before was told."""
    paused.queue.append(positioned())
    paused.turns(2)
    assert len(paused.words(PausedAt)) == 2


def test_an_ask_of_before_a_pause_is_forgotten() -> None:
    """After the pause all steps are made."""
    story = joined(is_in_step=False)
    story.hold(PAUSED)
    story.feed(in_step, submit_asked)
    story.turns(2)
    story.hold()
    story.turns(3)
    assert "submit" not in story.trainer.done


def test_leaving_while_paused(paused: Story) -> None:
    """Whoever pauses can go."""
    paused.leave()
    paused.turns(1)
    assert paused.left
    assert paused.trainer.done.count("step") == 2


def test_a_full_disk_does_not_keep_the_pause_from_the_others(story: Story) -> None:
    """Else they would wait for it in every round; its work stays in memory and is given at the next anchor."""
    story.turns(1)
    story.trainer.room_on_disk = False
    story.hold(PAUSED)
    story.turns(4)
    assert said(story) == [PausedAt(HEAD.anchor)]
    (alert,) = story.all(AlertRaised)
    assert (alert.code, "stays in memory" in alert.text) == ("DISK", True)
    story.trainer.room_on_disk = True
    story.queue.append(commit())
    story.turns(3)
    assert story.trainer.done[-1] == "submit"


def test_a_paused_peer_measures_nothing(paused: Story) -> None:
    """Its owner wants the device."""
    paused.life = replace(paused.life, me="p1")
    paused.queue.append(commit())
    paused.turns(2)
    assert "evaluate" not in paused.trainer.done
    assert paused.all(Evaluated) == []


def test_a_pause_ends_a_measurement(story: Story) -> None:
    story.life = replace(story.life, me="p1")
    story.turns(STEPS)
    story.feed(commit())
    while not isinstance(story.pending, Evaluate):
        story._work()
    story.hold(PAUSED)
    assert story.interrupted[-1] is True


def test_an_end_that_moves_with_every_key_is_told_once(story: Story) -> None:
    """One that moves by a minute is told again, and one of which nobody knows when it ends."""
    for until in (1000.0, 1001.0, 1030.0, 1061.0, None):
        story.hold(Hold("IDLE", "somebody uses the machine", until))
    assert [event.until for event in story.all(PeerStateChanged)[1:]] == [1000.0, 1061.0, None]


# ---- without traffic ----


def test_without_traffic_the_link_leaves_once_nothing_waits_for_the_others(story: Story) -> None:
    """And comes back when there is traffic again."""
    story.turns(1)
    story.hold(QUOTA)
    story.turns(2)
    assert said(story) == [PausedAt(HEAD.anchor)]
    assert story.words(Leave) == [], "its contribution waits"
    story.queue.append(commit())
    story.turns(2)
    assert story.told[-1] == Leave(finished=False)
    story.feed(lambda now: LinkEnded(now, OSError()))
    story.turns(3)
    assert Reconnect() not in story.effects
    assert (story.state, story.why) == ("PAUSED", QUOTA.why)
    story.hold()
    assert Reconnect() in story.effects
    assert (story.state, story.why) == ("JOINING", "connecting again")


def test_traffic_that_is_back_before_the_link_has_left_waits_for_that(story: Story) -> None:
    story = joined(is_in_step=False)
    story.hold(QUOTA)
    story.turns(2)
    assert story.told[-1] == Leave(finished=False)
    story.hold()
    story.turns(1)
    assert Reconnect() not in story.effects
    story.feed(lambda now: LinkEnded(now, OSError()))
    assert Reconnect() in story.effects


def test_a_processor_cannot_be_left_and_nobody_tries_for_ever() -> None:
    """Its memory is nobody else's."""
    story = joined()
    story.trainer.status = replace(story.trainer.status, can_leave=False)
    story.turns(1)
    story.hold(PAUSED)
    story.turns(3)
    assert said(story) == [PausedAt(HEAD.anchor)]
    assert [effect.work for effect in story.effects if hasattr(effect, "work")].count(LeaveDevice()) == 0
