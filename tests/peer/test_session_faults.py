"""A peer's checkpoints, and how its story goes on after a full disk or a lost link."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch

from dht.errors import ClockOff, DiskFull, MemoryFull, RunMismatch, Unreachable
from peer import session as sessions
from peer.events import (
    AlertRaised,
    CheckpointWritten,
    Event,
    PeerStateChanged,
)
from peer.limits.desired_state import PAUSED_WHY, Intent
from peer.link.channel import LinkLost
from peer.settings import PeerSettings
from peer.spec import load
from peer.telemetry.reporter import Reporter
from tests.peer.rounds.build import HEAD, block, update
from tests.peer.story import NEXT, STEPS, Beginning, Story, commit, join_with

DAEMON_GONE = Unreachable("the network daemon (p2pd) ended by itself")
"""What a link says before it ends for that."""
CLOCK_OFF = ClockOff("this machine's clock is 90 s ahead of that of 2 nodes asked; set it with NTP")

# ---- checkpoints ----


def test_a_checkpoint_is_written_while_the_round_is_agreed(story: Story) -> None:
    """After the link heard of the contribution, so that nobody waits for a disk."""
    story.turns(STEPS)
    assert story.shelf.written == [HEAD.anchor.hex()]
    assert story.link.told[-1] == ("frozen", HEAD.anchor)
    (event,) = story.told(CheckpointWritten)
    assert (event.round, event.path) == (0, "DIR/checkpoints/00000001")


def test_a_long_round_is_written_within(story: Story) -> None:
    """A crash costs minutes, not the hours of a round."""
    story.shelf.every_s = 2.0
    story.turns(2)
    assert len(story.shelf.written) == 1
    assert "freeze" not in story.trainer.done


def test_no_room_for_a_checkpoint_is_told_once(story: Story) -> None:
    """Training goes on with the one before; when there is room again, the next one is written."""
    story.shelf.room = False
    for number in range(2):
        story.turns(STEPS)
        story.link.queue.append(commit(block(update(round=number + 1))))
        story.turns(1)
    assert story.trainer.anchor.round == 2
    assert [event.code for event in story.told(AlertRaised)] == ["CHECKPOINT"]
    story.peer.write_checkpoint(last=True)
    assert "are lost" in story.told(AlertRaised)[-1].text
    story.shelf.room = True
    story.turns(STEPS)
    assert len(story.shelf.written) == 1


def test_a_checkpoint_beside_the_chain_is_refused(story: Story) -> None:
    """One line that says what to do."""
    story.peer.link = Beginning(stands_at=b"elsewhere")  # type: ignore[assignment]
    with pytest.raises(RunMismatch, match="move the checkpoints away"):
        story.peer.meet()


# ---- a full disk, a lost link ----


def test_a_full_disk_pauses_and_loses_nothing(story: Story) -> None:
    """The link is heard meanwhile; the contribution is frozen when there is room."""
    story.trainer.room = False
    story.turns(STEPS - 1)
    with pytest.raises(DiskFull):
        story.turns(1)
    story.link.on_wait = story.clock.sleep
    story.peer.pause("the disk is full")
    assert story.told(PeerStateChanged)[-1].state == "PAUSED"
    assert story.told(PeerStateChanged)[-1].why.startswith("the disk is full; make room")
    story.trainer.room = True
    story.turns(1)
    assert story.trainer.done[-2:] == ["step", "freeze"]
    assert story.link.told[-1] == ("frozen", HEAD.anchor)


def test_a_device_without_room_pauses_and_its_round_goes_on(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one sequence had room: it says so, tries again, and gives all steps of the round."""
    train_step, tries = story.trainer.train_step, 0

    def step(*arguments: Any, **named: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise MemoryFull("the memory of cuda has no room for even one sequence")
        return train_step(*arguments, **named)

    def wait(timeout_s: float) -> None:
        story.clock.sleep(timeout_s)
        story.session.stopping = story.trainer.frozen

    monkeypatch.setattr(story.trainer, "train_step", step)
    link = Beginning(deque([("in_step",)]))
    link.on_wait = wait
    join_with(story, link, monkeypatch)
    (paused,) = [event for event in story.told(PeerStateChanged) if event.state == "PAUSED"]
    assert paused.why.startswith("the memory of cuda has no room for even one sequence; make room")
    assert tries == STEPS + 1
    assert story.trainer.done.count("freeze") == 1


def test_time_without_room_is_exposed(story: Story) -> None:
    """No step could be made, and nobody wished that."""
    story.turns(1)
    story.link.on_wait = story.clock.sleep
    exposed_s = story.peer.exposure.seconds
    story.peer.pause("the disk is full")
    assert story.peer.exposure.seconds - exposed_s == pytest.approx(sessions.RETRY_S)


def test_a_loss_for_which_there_is_no_room_is_not_measured(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said; the round counts, and training goes on."""

    def evaluate(stop: object) -> None:
        raise MemoryFull("the memory of cuda has no room to measure even one sequence")

    monkeypatch.setattr(story.peer, "_my_turn_to_evaluate", lambda update: True)
    monkeypatch.setattr(story.trainer, "evaluate", evaluate)
    story.turns(STEPS)
    story.link.queue.append(commit())
    story.turns(2)
    (alert,) = story.told(AlertRaised)
    assert (alert.code, alert.level) == ("MEMORY", "warning")
    assert alert.text.endswith("the held-out loss of this round is not measured here")
    assert "evaluated" not in story.link.kinds()
    assert story.told(PeerStateChanged)[-1].why == "towards round 2"


def test_a_model_for_which_there_is_no_room_ends_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an exit code of its own, after which a service tries again."""

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    monkeypatch.setattr("peer.train.trainer.Trainer", fail)
    with pytest.raises(MemoryFull, match=r"^the memory of cpu has no room for the model; close other programs"):
        sessions.make_trainer(
            load("micro"), PeerSettings(device="cpu"), "me", tmp_path, None, Reporter(lambda event: None)
        )


def test_until_a_step_is_to_be_made_the_gpu_is_its_owners(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for the founders of a run may wait for hours."""
    away_at: list[bool] = []
    link = Beginning(deque([("in_step",)]))
    link.on_wait = lambda timeout_s: setattr(story.session, "stopping", "step" in story.trainer.done)
    expect = link.expect

    def wait(kind: str, timeout_s: float | None) -> tuple[Any, ...]:
        away_at.append(story.trainer.is_away)
        return expect(kind, timeout_s)

    monkeypatch.setattr(link, "expect", wait)
    join_with(story, link, monkeypatch)
    assert away_at[-1], "while it waits for the run to begin"
    assert not story.trainer.is_away
    assert story.trainer.done == ["begin", "step"]


def test_a_peer_that_starts_paused_leaves_the_gpu_alone(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it meets the others, which may take minutes; it says that it is paused, and takes part."""
    story.session.wishes.wish(Intent.PAUSE)
    away_at: list[bool] = []
    link = Beginning(deque([("in_step",)]))

    def wait(timeout_s: float) -> None:
        away_at.append(story.trainer.is_away)
        story.clock.sleep(timeout_s)
        story.session.stopping = len(away_at) == 5

    link.on_wait = wait
    join_with(story, link, monkeypatch)
    assert away_at == [True] * 5
    assert story.trainer.done == []
    assert ("paused", HEAD.anchor) in link.told
    assert story.told(PeerStateChanged)[-1].why == PAUSED_WHY


def test_a_pause_ends_when_asked_to_leave(story: Story) -> None:
    """At once."""
    story.session.stopping = True
    story.peer.pause("the disk is full")
    assert story.link.waits == []


@pytest.mark.parametrize("failure", [DiskFull("the disk is full"), LinkLost(), DAEMON_GONE, CLOCK_OFF])
def test_a_link_that_ends_during_a_pause_is_started_again(
    story: Story, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """It writes to the same disk, so it is likely to fail too."""
    story.trainer.room = False
    link = Beginning(deque([("in_step",)]))

    def wait(timeout_s: float) -> None:
        story.clock.sleep(timeout_s)
        if story.session.state == "PAUSED" and not link.restarts:
            link.queue.append(("ends with", failure))
            story.trainer.room = True
        elif link.restarts and link.kinds()[-1] == "model":
            link.queue += [("resume", HEAD.anchor), ("in_step",)]
        story.session.stopping = story.trainer.frozen

    link.on_wait = wait
    join_with(story, link, monkeypatch)
    assert link.restarts == 1
    assert story.trainer.done.count("freeze") == 1
    assert link.kinds()[-2:] == ["frozen", "leave"]


def test_a_link_that_ends_as_it_is_told_goodbye(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service manager ends a whole group at once: the peer leaves all the same, with everything kept."""

    class Gone(Beginning):
        def send(self, kind: str, *fields: Any) -> None:
            super().send(kind, *fields)
            if kind == "leave":
                raise LinkLost

    link = Gone(deque([("in_step",)]), on_wait=lambda timeout_s: setattr(story.session, "stopping", True))
    join_with(story, link, monkeypatch)
    assert link.kinds()[-1] == "leave"
    assert len(story.shelf.written) == 1


@pytest.mark.parametrize("has_ended", [False, True])
def test_leaving_while_the_link_is_away(story: Story, monkeypatch: pytest.MonkeyPatch, has_ended: bool) -> None:
    """Everything is kept, and an ended link is told nothing."""
    link = Beginning(deque([("in_step",), ("ends with", DiskFull("the disk is full"))]))

    def leave(event: Event) -> None:
        if isinstance(event, PeerStateChanged):
            story.session.stopping = has_ended and event.state == "PAUSED"
            link.asked_to_leave = event.why == "connecting again"

    story.session.emit = leave
    join_with(story, link, monkeypatch)
    assert len(story.shelf.written) == 1
    assert link.kinds()[-1] == ("model" if has_ended else "leave")


@pytest.mark.parametrize("failure", [DiskFull("the disk is full"), LinkLost(), DAEMON_GONE])
def test_a_link_that_ended_is_started_again(story: Story, monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    """The trainer tells it where it stands, and hears what was decided since; no step is lost."""
    messages = [("in_step",), ("ends with", failure), ("replay", block().to_bytes(), 1), ("resume", NEXT), ("in_step",)]
    link, began = Beginning(deque([*messages, commit(), commit()])), list[int]()
    story.session.link_began = lambda: began.append(link.restarts)
    join_with(story, link, monkeypatch)
    assert began == [1], "its bytes are counted from 0"
    assert [fields for kind, *fields in link.told if kind == "model"] == [
        [(5,), b"state", b""],
        [(5,), b"state", HEAD.anchor],
    ]
    assert ("applied", NEXT, b"state") in link.told
    assert link.kinds()[-1] == "finish"


@pytest.mark.parametrize(("jumps", "waits_s"), [(True, 10.0), (False, sessions.CLOCK_RETRY_S)])
def test_a_clock_that_goes_wrong_holds_training_until_it_is_right(
    story: Story, monkeypatch: pytest.MonkeyPatch, jumps: bool, waits_s: float
) -> None:
    """It is told once, with what to do, however often the next link finds it wrong. Nothing is lost, and training goes
    on when the clock was set, or was right at the next try."""

    class Wrong(Beginning):
        def restart(self) -> None:
            super().restart()
            assert story.told(PeerStateChanged)[-1].state == "PAUSED", "each try is not told"
            if self.restarts == 1:
                self.queue.append(("ends with", CLOCK_OFF))

        def expect(self, kind: str, timeout_s: float | None) -> tuple[Any, ...]:
            if self.queue and self.queue[0][0] == "ends with":
                held.append(story.clock.now)
                self.receive(0.0)
            return super().expect(kind, timeout_s)

    sleep = story.clock.sleep

    def sleep_and_set(seconds: float) -> None:
        sleep(seconds)
        if jumps and story.clock.now - held[-1] >= 10.0:
            story.clock.ahead_s -= 90.0

    held: list[float] = []

    def emit(event: Event) -> None:
        story.events.append(event)
        if isinstance(event, PeerStateChanged) and event.state == "PAUSED":
            held.append(story.clock.now)
            assert event.why == f"{CLOCK_OFF}; training goes on by itself when it is right"
            assert story.trainer.is_away, "its owner has the device meanwhile"

    story.session.emit = emit
    monkeypatch.setattr(story.clock, "sleep", sleep_and_set)
    link = Wrong(deque([("in_step",), ("ends with", CLOCK_OFF)]))
    goes_on = [("resume", HEAD.anchor), ("in_step",), *[None] * STEPS]

    def wait(timeout_s: float) -> None:
        if link.restarts == 2 and goes_on:
            link.queue.append(goes_on.pop(0))
        story.session.stopping = story.trainer.frozen

    link.on_wait = wait
    join_with(story, link, monkeypatch)
    assert [alert.code for alert in story.told(AlertRaised)] == ["CLOCK"]
    assert "set it with NTP" in story.told(AlertRaised)[0].text
    assert len(held) == link.restarts == 2
    assert story.clock.now - held[0] >= 2 * waits_s
    assert held[1] - held[0] < waits_s + 2 * sessions.POLL_S
    assert story.trainer.done.count("step") == STEPS


def test_a_network_that_is_away_during_the_hold_ends_nothing(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop on its way home: as long as the hold lasts it is tried once a minute, and not counted."""

    class Away(Beginning):
        def expect(self, kind: str, timeout_s: float | None) -> tuple[Any, ...]:
            if 0 < self.restarts <= 2 * sessions.LINKS_LOST:
                self.has_ended = True
                raise Unreachable("no address of the invite answers")
            return super().expect(kind, timeout_s)

    link = Away(deque([("in_step",), ("ends with", CLOCK_OFF)]))
    goes_on = [("resume", HEAD.anchor), ("in_step",), *[None] * STEPS]

    def wait(timeout_s: float) -> None:
        if link.restarts > 2 * sessions.LINKS_LOST and goes_on:
            link.queue.append(goes_on.pop(0))
        story.session.stopping = story.trainer.frozen

    link.on_wait = wait
    join_with(story, link, monkeypatch)
    assert link.restarts == 2 * sessions.LINKS_LOST + 1
    assert [alert.code for alert in story.told(AlertRaised)] == ["CLOCK"]
    assert story.clock.now >= link.restarts * sessions.CLOCK_RETRY_S
    assert story.trainer.done.count("step") == STEPS


def test_who_leaves_by_a_link_that_says_why_it_ended_loses_no_checkpoint(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(Beginning):
        def send(self, kind: str, *fields: Any) -> None:
            if kind == "leave":
                raise CLOCK_OFF
            super().send(kind, *fields)

    link = Ended(deque([("in_step",)]))
    link.on_wait = lambda timeout_s: setattr(story.session, "stopping", True)
    join_with(story, link, monkeypatch)
    assert len(story.shelf.written) == 1


def test_a_clock_that_was_wrong_from_the_start_ends_the_peer_in_words(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody sits there who can set it."""

    class Wrong(Beginning):
        def expect(self, kind: str, timeout_s: float | None) -> tuple[Any, ...]:
            raise CLOCK_OFF

    with pytest.raises(ClockOff):
        join_with(story, Wrong(), monkeypatch)


def test_what_else_does_not_answer_ends_the_peer_as_ever(story: Story) -> None:
    """Such as a hub of data: its link is alive, and another one would not help."""
    with pytest.raises(Unreachable, match="the hub"):
        story.peer.note_lost_link(Unreachable("the hub does not answer"))


@pytest.mark.parametrize("failure", [LinkLost(), DAEMON_GONE])
def test_a_link_that_ends_again_and_again_ends_the_peer(
    story: Story, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """With a checkpoint of all that it learned."""
    link = Beginning(deque([("ends with", failure)] * 9))
    with pytest.raises(type(failure)):
        join_with(story, link, monkeypatch)
    assert link.restarts == sessions.LINKS_LOST
    assert len(story.shelf.written) == 1
    assert {event.code for event in story.told(AlertRaised)} == {"LINK"}
