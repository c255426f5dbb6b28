"""How a peer's life goes on after a full disk, a lost link, a wrong clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from dht.errors import ClockOff, DiskFull, NotAdmitted, Unreachable
from peer.node.lifecycle.inputs_effects import (
    Began,
    ClockJumped,
    Greet,
    Greeted,
    LinkEnded,
    LinkWaits,
    Reconnect,
    Step,
    Woken,
    Written,
)
from peer.node.lifecycle.state import CLOCK_RETRY_S, LINKS_LOST, RETRY_S, SPEC_TIMEOUT_S
from peer.schema.events import AlertRaised, PeerStateChanged
from peer.schema.ipc import Leave, OfferContribution, StandsAt
from tests.peer.consensus.rounds.build import HEAD, NAMES
from tests.peer.node.lifecycle.story import (
    NEXT,
    PAUSED,
    QUOTA,
    STATE,
    STEPS,
    Story,
    beginning,
    commit,
    in_step,
    joined,
    positioned,
    replayed,
    spec,
)

DAEMON_GONE = Unreachable("the network daemon (p2pd) ended by itself")
"""What a link says before it ends for that."""
CLOCK_OFF = ClockOff("this machine's clock is 90 s ahead of that of 2 nodes asked; set it with NTP")
DISK_FULL = DiskFull("the disk is full")
LOST = ConnectionError("the link is lost")


def ended(error: Exception) -> Callable[[float], LinkEnded]:
    return lambda now: LinkEnded(now, error)


def restarts(story: Story) -> int:
    return story.effects.count(Reconnect())


def meets(story: Story, at: bytes = HEAD.anchor) -> None:
    """The new link is heard, and follows the chain from where the trainer stands."""
    story.feed(Greeted, lambda now: Began(now, at, NAMES), positioned(at), in_step)


def wait_until(story: Story, reached: Callable[[], Any]) -> None:
    """Nothing happens but what wakes it up by itself."""
    for _ in range(100):
        if reached():
            return
        story.now = story.life.wake_at
        story.feed(Woken)
    raise AssertionError("it is not reached")


# ---- a full disk or device ----


def test_a_full_disk_pauses_and_loses_nothing(story: Story) -> None:
    """The link is heard meanwhile; the contribution is offered when there is room."""
    story.trainer.room_on_disk = False
    story.turns(STEPS)
    assert (story.state, story.why) == ("PAUSED", "the disk is full; make room, training goes on by itself")
    story.feed(commit())
    story.turns(1)
    assert story.trainer.done[-1] == "apply"
    story.trainer.room_on_disk = True
    story.wait(RETRY_S)
    story.turns(STEPS)
    assert story.trainer.done[-1] == "submit"
    assert story.told[-1] == OfferContribution(NEXT)


def test_a_device_without_room_pauses_and_its_round_goes_on(story: Story) -> None:
    """Not even one sequence had room: it says so, tries again, and gives all steps of the round."""
    story.turns(1)
    story.trainer.room_to_train = False
    story.turns(1)
    assert story.why == (
        "the memory of cuda has no room for even one sequence; make room, training goes on by itself"
    )  # fmt: skip
    exposed_s = story.life.times.exposed_s
    story.trainer.room_to_train = True
    wait_until(story, lambda: isinstance(story.pending, Step))
    assert story.life.times.exposed_s - exposed_s == RETRY_S
    story.turns(STEPS)
    assert story.trainer.done == ["begin", *["step"] * STEPS, "submit"]


def test_a_full_disk_is_no_reason_to_stay(story: Story) -> None:
    story.trainer.room_on_disk = False
    story.turns(STEPS)
    story.leave()
    story.turns(1)
    assert story.left
    assert story.now == 1000.0 + STEPS


# ---- a link that ends ----


@pytest.mark.parametrize("failure", [LOST, DAEMON_GONE])
def test_a_link_that_ended_is_started_again(story: Story, failure: Exception) -> None:
    """The trainer tells it where it stands, and hears what was decided since; no step is lost."""
    story.turns(2)
    story.feed(ended(failure))
    assert restarts(story) == 1
    assert (story.state, story.why) == ("JOINING", "connecting again")
    story.feed(Greeted)
    story.turns(1)
    assert story.effects[-1] == Greet(HEAD.anchor)
    story.feed(lambda now: Began(now, HEAD.anchor, NAMES), replayed(), positioned(NEXT), in_step)
    story.turns(2)
    assert StandsAt(NEXT, STATE) in story.told
    assert story.trainer.done.count("step") >= 3
    assert {event.code for event in story.all(AlertRaised)} == {"LINK"}


def test_what_a_lost_link_had_decided_is_heard_of_the_next(story: Story) -> None:
    """None is ever applied twice: the one in work is done first, then the new link hears where the trainer stands."""
    story.turns(STEPS)
    story.feed(commit(), commit(), ended(LOST), Greeted)
    assert Greet(HEAD.anchor) not in story.effects
    story.turns(1)
    assert story.trainer.done.count("apply") == 1
    assert story.effects[-1] == Greet(NEXT) or Greet(NEXT) in story.effects


def test_a_contribution_that_is_being_written_is_on_disk_before_the_next_link_looks() -> None:
    story = joined(spec(overlap="streaming", merge="rebase"))
    story.trainer.writes_at_once = False
    story.turns(STEPS)
    story.feed(ended(LOST), Greeted)
    story.turns(1)
    assert not [effect for effect in story.effects if isinstance(effect, Greet)]
    story.written()
    story.turns(1)
    assert Greet(HEAD.anchor) in story.effects
    assert story.words(OfferContribution) == [], "it finds that on the disk"


def test_a_link_that_is_full_of_disk_is_started_again_when_there_may_be_room(story: Story) -> None:
    """It writes to the same disk."""
    story.feed(ended(DISK_FULL))
    story.turns(1)
    assert restarts(story) == 0
    assert (story.state, story.why) == ("PAUSED", "the disk is full; make room, training goes on by itself")
    began_at = story.now
    wait_until(story, lambda: restarts(story))
    assert story.now - began_at >= RETRY_S - 1.0


def test_a_link_that_ends_again_and_again_ends_the_peer(story: Story) -> None:
    """With a checkpoint of all that it learned."""
    for _ in range(LINKS_LOST):
        story.feed(ended(LOST), Greeted)
        assert story.failed is None
    story.feed(ended(LOST))
    assert story.failed is LOST
    story.leave()
    story.turns(1)
    assert story.left
    assert len(story.saved) == 1


def test_a_link_that_ends_now_and_then_ends_nothing(story: Story) -> None:
    story.turns(STEPS)
    for _ in range(5 * LINKS_LOST):
        story.wait(300.0)
        story.feed(ended(LOST), Greeted)
    assert story.failed is None


def test_a_link_that_never_hears_of_the_run_ends_the_peer(story: Story) -> None:
    story.turns(STEPS)
    story.feed(ended(LOST))
    story.now += SPEC_TIMEOUT_S
    story.feed(Woken)
    assert isinstance(story.failed, Unreachable)


def test_a_link_that_waits_for_founders_may_wait_for_hours() -> None:
    """And says for what."""
    story = beginning()
    story.feed(Woken, lambda now: LinkWaits(now, "waiting for 2 more of 3 first peers"))
    assert (story.state, story.why) == ("JOINING", "waiting for 2 more of 3 first peers")
    assert story.life.wake_at == float("inf")


def test_who_was_never_met_and_does_not_answer_ends_the_peer() -> None:
    story = beginning()
    failure = Unreachable("no address of the invite answers")
    story.feed(Woken, ended(failure))
    assert story.failed is failure


def test_what_no_new_link_would_help_against_ends_the_peer(story: Story) -> None:
    failure = NotAdmitted("the organiser does not let it in")
    story.feed(ended(failure))
    assert story.failed is failure


def test_leaving_while_the_link_is_away(story: Story) -> None:
    """Everything is kept, and an ended link is told nothing."""
    story.feed(ended(DISK_FULL))
    story.leave()
    story.turns(1)
    assert story.left
    assert len(story.saved) == 1
    assert story.words(Leave) == []


def test_a_link_that_ends_as_it_is_told_goodbye(story: Story) -> None:
    """A service manager ends a whole group at once: the peer leaves all the same, with everything kept."""
    story.leave()
    story.feed(ended(CLOCK_OFF))
    story.turns(1)
    assert story.left
    assert len(story.saved) == 1
    assert restarts(story) == 0


def test_a_contribution_to_another_anchor_is_not_told(story: Story) -> None:
    story.turns(STEPS)
    told = len(story.told)
    story.feed(lambda now: Written(now, NEXT))
    assert len(story.told) == told


# ---- a wrong clock ----


@pytest.mark.parametrize(("jumps", "waits_s"), [(True, 10.0), (False, CLOCK_RETRY_S)])
def test_a_clock_that_goes_wrong_holds_training_until_it_is_right(story: Story, jumps: bool, waits_s: float) -> None:
    """It is told once, with what to do, however often the next link finds it wrong. Nothing is lost, and training goes
    on when the clock was set, or was right at the next try."""
    story.turns(1)
    for number in range(2):
        story.feed(ended(CLOCK_OFF))
        story.turns(1)
        began_at = story.now
        assert story.why == f"{CLOCK_OFF}; training goes on by itself when it is right"
        assert not story.trainer.status.on_device, "its owner has the device meanwhile"
        if jumps:
            story.wait(waits_s)
            story.feed(ClockJumped)
        wait_until(story, lambda number=number: restarts(story) == number + 1)
        assert waits_s - 1.0 <= story.now - began_at <= waits_s
        assert story.all(PeerStateChanged)[-1].state == "PAUSED", "each try is not told"
    assert [alert.code for alert in story.all(AlertRaised)] == ["CLOCK"]
    assert "set it with NTP" in story.all(AlertRaised)[0].text
    meets(story)
    story.turns(STEPS + 2)
    assert story.trainer.done.count("step") == STEPS
    assert story.trainer.done.count("submit") == 1


def test_a_network_that_is_away_during_the_hold_ends_nothing(story: Story) -> None:
    """A laptop on its way home: as long as the hold lasts it is tried once a minute, and not counted."""
    story.turns(1)
    story.feed(ended(CLOCK_OFF))
    story.turns(1)
    began_at = story.now
    for number in range(2 * LINKS_LOST):
        wait_until(story, lambda number=number: restarts(story) == number + 1)
        story.feed(ended(Unreachable("no address of the invite answers")))
    assert story.failed is None
    assert [alert.code for alert in story.all(AlertRaised)] == ["CLOCK"]
    assert story.now - began_at >= 2 * (LINKS_LOST - 1) * CLOCK_RETRY_S
    wait_until(story, lambda: restarts(story) == 2 * LINKS_LOST + 1)
    meets(story)
    story.turns(STEPS + 2)
    assert story.trainer.done.count("step") == STEPS


def test_during_the_hold_of_a_clock_people_read_what_its_owner_wants(story: Story) -> None:
    """Time in a pause is not exposed, and without traffic no link begins."""
    story.turns(1)
    story.feed(ended(CLOCK_OFF))
    story.turns(1)
    story.hold(PAUSED)
    exposed_s = story.life.times.exposed_s
    assert (story.state, story.why) == ("PAUSED", PAUSED.why)
    story.wait(10.0)
    assert story.life.times.exposed_s == exposed_s
    story.hold(QUOTA)
    story.wait(2 * CLOCK_RETRY_S)
    assert restarts(story) == 0
    story.hold()
    assert restarts(story) == 1


def test_a_wrong_clock_is_no_reason_to_stay(story: Story) -> None:
    story.feed(ended(CLOCK_OFF))
    story.life = replace(story.life, links_lost=())
    story.leave()
    story.turns(2)
    assert story.left
