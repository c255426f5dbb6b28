"""A life driven for real: an inbox, a thread for the trainer, and a link that only plays its part."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from dht.errors import BadInput, DeviceLost, Unreachable
from peer import handshake
from peer.network.link.channel import LinkLost
from peer.network.link.handle import LeaveRequested
from peer.node.lifecycle.fragments import FragmentSchedule
from peer.node.lifecycle.inputs_effects import (
    Apply,
    Done,
    Evaluate,
    LayersReady,
    LeaveAsked,
    Moved,
    Post,
    Save,
    Saved,
    Step,
    Submit,
    TrainerStatus,
    Work,
    Written,
)
from peer.node.limits.desired_state import Intent
from peer.node.limits.policy import Decision
from peer.node.telemetry.reporter import Reporter
from peer.parallel.cluster.home_suspicion import HomesLacking
from peer.parallel.pipeline.home_group import HomeGone
from peer.schema import ipc
from peer.schema.events import AlertRaised, Event, PeerStateChanged, PenaltyImposed, RoundCommitted, RoundStarted
from peer.schema.ipc import Leave, OfferContribution, ReportProgress, StandsAt, ToLink
from peer.schema.spec import RunSpec
from peer.session import Inbox, Session, heard
from peer.testing.child_process import BUSY, HANG_S
from tests.peer.consensus.rounds.build import HEAD, NAMES, PARTS, block, update
from tests.peer.node.lifecycle.story import NEXT, STATE, FakeTrainer, spec
from tests.played_link import PlayedLink, watched

OBEYED_S = 2.0 * BUSY
"""In which an owner's word is obeyed, whatever the trainer does."""


class Worker:
    """A trainer that does everything at once, or once a test lets it."""

    def __init__(self) -> None:
        self.trainer = FakeTrainer(TrainerStatus(round=0, can_leave=False))
        self.held: type[Work] | None = None
        """What it is in the middle of until `go_on` is set."""
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.thread: int | None = None
        self.saved: list[str] = []
        self.snapshots: list[bytes] = []
        self.fails: Exception | None = None
        self.stopped = False

    @property
    def status(self) -> TrainerStatus:
        return self.trainer.status

    def enter_thread(self) -> None:
        self.thread = threading.get_ident()

    def write_snapshot(self, anchor: bytes, state: bytes) -> None:
        self.snapshots.append(anchor)

    def do(self, work: Work, post: Post, stop: Callable[[], bool]) -> None:
        assert threading.get_ident() == self.thread, "in its own thread"
        if self.held is not None and isinstance(work, self.held):
            self.entered.set()
            assert self.go_on.wait(HANG_S)
        if isinstance(work, Step):
            self.stopped = stop()
        if self.fails is not None and isinstance(work, Apply):
            raise self.fails
        result = self.trainer.result(work)
        if isinstance(work, Save):
            self.saved.append(work.when)
            post(lambda now: Saved(now, 0, 0.0, "DIR/1", 10))
        post(lambda now: Done(now, result, self.status))
        if isinstance(work, Submit):
            anchor = work.anchor
            post(lambda now: Written(now, anchor))
        if isinstance(result, Moved) and isinstance(work, Apply) and work.beside:
            post(lambda now: LayersReady(now, STATE))


class Driven:
    """A session in a thread of the test, which can be looked at."""

    def __init__(self, run: RunSpec | None = None, me: str = "p2") -> None:
        self.run = run or spec()
        self.events: list[Event] = []
        self.inbox: Inbox = Inbox()
        self.link, self.worker = PlayedLink(), Worker()
        self.reporter = Reporter(self.events.append)
        self.began = 0
        self.reporter.link_began = self._note_link
        facts = SimpleNamespace(
            spec=self.run, me=me, parameters=5, layer_sizes=(5,), layer_names=("layer",), held=range(1),
            start=SimpleNamespace(state=STATE),
            progress=SimpleNamespace(turns=FragmentSchedule(PARTS, 1)),
        )  # fmt: skip
        self.session = Session(
            self.link, self.inbox, facts, self.worker, self.reporter, b"",  # type: ignore[arg-type]
        )  # fmt: skip
        self.error: BaseException | None = None
        self._stepped = watched(self.session)
        self.reporter.emit = self._emit
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _note_link(self) -> None:
        self.began += 1

    def _emit(self, event: Event) -> None:
        with self._stepped:
            self.events.append(event)
            self._stepped.notify_all()

    def _run(self) -> None:
        try:
            with closing(self.session):
                self.session.run()
        except BaseException as error:  # for the test to look at
            with self._stepped:
                self.error = error
                self._stepped.notify_all()

    def start(self) -> None:
        self._thread.start()

    def say(self, *messages: Any) -> None:
        for message in messages:
            self.inbox.put(message)

    def meet(self) -> None:
        """Up to where it trains."""
        self.start()
        self.say(ipc.BeginAt(HEAD.anchor, NAMES), ipc.ResumeAt(HEAD.anchor), ipc.InStep(True))

    def commit(self, round: int = 1) -> None:
        self.say(ipc.BlockCommitted(block(update(round=round)).to_bytes(), NEXT, 10, 20, time.monotonic()))

    def until(self, reached: Callable[[], object], within_s: float = HANG_S) -> None:
        """AssertionError if it is not reached in time."""
        with self._stepped:
            assert self._stepped.wait_for(reached, within_s), (self.link.told, self.events, self.error)

    def has_told(self, kind: type[ToLink]) -> bool:
        return any(isinstance(message, kind) for message in self.link.told)

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def end(self) -> None:
        self.worker.go_on.set()
        self.say(LeaveAsked)
        if self._thread.ident is not None:
            self._thread.join(HANG_S)
            assert not self._thread.is_alive()


@pytest.fixture
def driven() -> Iterator[Driven]:
    one = Driven()
    yield one
    one.end()


# ---- a round ----


def test_a_round_of_a_life(driven: Driven) -> None:
    """The link hears where the trainer stands, of its progress and its contribution; people hear everything."""
    driven.meet()
    driven.until(lambda: driven.has_told(OfferContribution))
    assert driven.link.told[0] == ipc.Hello((5,), STATE, b"")
    assert driven.has_told(ReportProgress)
    driven.commit()
    driven.until(lambda: StandsAt(NEXT, STATE) in driven.link.told)
    (event,) = driven.all(RoundCommitted)
    assert (event.round, event.group, event.bytes_sent, event.bytes_received) == (1, list(NAMES), 10, 20)
    assert (event.tokens, event.digest, event.state) == (300, NEXT.hex(), STATE.hex())
    assert event.round_s >= event.exposed_s >= 0
    full = update().weights[0]
    assert event.weights == dict(zip(NAMES, (full[0], full[1] * 4 // 5, full[2] * 3 // 5), strict=True))
    driven.until(lambda: driven.worker.snapshots == [NEXT])


def test_the_penalties_of_a_round_are_told(driven: Driven) -> None:
    """One event each, in plain words, and all of them in that of the round."""
    driven.meet()
    driven.until(lambda: driven.has_told(OfferContribution))
    driven.commit()
    driven.until(lambda: len(driven.all(PenaltyImposed)) == 2)
    told = [(event.about, event.code, event.evidence, event.factor) for event in driven.all(PenaltyImposed)]
    assert told == [
        ("p1", "LATE", "2 of 3 parts came in time", 0.6667), ("p2", "LATE", "2 of 3 parts came in time", 0.6667),
    ]  # fmt: skip
    (committed,) = driven.all(RoundCommitted)
    assert committed.penalties == [asdict(event) for event in driven.all(PenaltyImposed)]


def test_who_catches_up_tells_only_its_own_penalties(driven: Driven) -> None:
    """What happened to others long ago is in the rounds."""
    driven.start()
    driven.say(ipc.BeginAt(HEAD.anchor, NAMES), ipc.ResumeAt(HEAD.anchor))
    driven.commit()
    driven.until(lambda: driven.all(RoundCommitted))
    driven.until(lambda: driven.all(PenaltyImposed))
    assert [event.about for event in driven.all(PenaltyImposed)] == ["p2"]
    assert len(driven.all(RoundCommitted)[0].penalties) == 2


def test_reports_of_the_link_are_events(driven: Driven) -> None:
    """Their fields by name."""
    driven.start()
    driven.say(ipc.ReportEvent("RoundStarted", {"round": 7, "steps": 1}))
    driven.until(lambda: RoundStarted(round=7, steps=1) in driven.events)


def test_a_new_link_takes_the_place_of_one_that_ended(driven: Driven) -> None:
    """Its bytes are counted from 0."""
    driven.meet()
    driven.until(lambda: driven.has_told(ReportProgress))
    driven.say(OSError("it ended"))
    driven.until(lambda: driven.link.restarts == 1)
    assert driven.began == 1
    driven.say(ipc.SpecText("the same"))
    driven.until(lambda: driven.link.told.count(ipc.Hello((5,), STATE, HEAD.anchor)) == 1)


def test_a_life_in_a_cluster_ends_with_its_link(driven: Driven) -> None:
    """The next link knows neither who works for whom nor what flew: the cluster comes together again."""
    cluster: Any = SimpleNamespace(is_lead=True)
    driven.session._cluster = cluster
    driven.meet()
    driven.until(lambda: driven.has_told(ReportProgress))
    driven.say(LinkLost())
    driven.until(lambda: driven.error)
    assert isinstance(driven.error, HomeGone)
    assert driven.link.restarts == 0


@pytest.mark.parametrize("is_lead", [False, True])
def test_a_home_whose_lead_gives_it_no_layers_looks_for_others(driven: Driven, *, is_lead: bool) -> None:
    """What a lead is told while its cluster forms says nothing of a cluster that has formed."""
    cluster: Any = SimpleNamespace(is_lead=is_lead)
    driven.session._cluster = cluster
    driven.session.life = replace(driven.session.life, serves=not is_lead)
    driven.meet()
    driven.until(lambda: driven.has_told(ipc.Hello))
    driven.say(ipc.HomesMissing(("lead",)), LinkLost())
    driven.until(lambda: driven.error)
    assert isinstance(driven.error, HomeGone if is_lead else HomesLacking)


# ---- its owner ----


@pytest.mark.parametrize("work", [Apply, Save, Evaluate, Submit, Step])
@pytest.mark.parametrize("word", ["pause", "leave"])
def test_its_owner_is_obeyed_whatever_the_trainer_does(work: type[Work], word: str) -> None:
    """People read that it pauses, and the others hear that it leaves, in the middle of it."""
    driven = Driven(me="p1")  # which measures the first round
    driven.worker.held = work
    driven.meet()
    driven.until(lambda: work not in (Apply, Evaluate) or driven.has_told(OfferContribution))
    if work in (Apply, Evaluate):
        driven.commit()
    assert driven.worker.entered.wait(HANG_S)
    asked_at = time.monotonic()
    if word == "pause":
        driven.reporter.wishes.wish(Intent.PAUSE)
        driven.until(lambda: driven.reporter.state == "PAUSED", OBEYED_S)
    else:
        driven.say(LeaveAsked)
        driven.until(lambda: Leave(finished=False) in driven.link.told, OBEYED_S)
    assert time.monotonic() - asked_at < OBEYED_S
    driven.end()
    assert driven.error is None
    assert driven.worker.saved[-1] == "last"
    assert driven.worker.stopped or work is not Step, "its step ends with the micro-batch"


def test_a_wish_to_finish_becomes_a_pause(driven: Driven) -> None:
    """Once its contribution is made, and no step follows."""
    driven.reporter.wishes.wish(Intent.FINISH)
    driven.meet()
    driven.until(lambda: driven.reporter.state == "PAUSED")
    assert driven.reporter.wishes.now is Intent.PAUSE
    assert driven.worker.trainer.done.count("step") == 4


def test_a_rest_that_a_limit_asks_for_is_kept(driven: Driven) -> None:
    """Of the time that passes it computes as much as it may."""
    driven.reporter.wishes.judge(Decision(duty=0.5))
    driven.meet()
    driven.until(lambda: driven.has_told(OfferContribution))
    assert driven.session.life.rests_until > 0


def test_who_was_asked_to_leave_before_leaves_at_once(driven: Driven) -> None:
    driven.reporter.stopping = True
    driven.start()
    driven.until(lambda: driven.session.life.leaving)


# ---- what goes wrong ----


def test_damage_ends_the_peer_with_everything_kept(driven: Driven) -> None:
    """In one line; the last checkpoint is that of where it stood."""
    driven.worker.fails = BadInput("its bytes are not those that were agreed")
    driven.meet()
    driven.until(lambda: driven.has_told(OfferContribution))
    driven.commit()
    driven.until(lambda: driven.error is driven.worker.fails)
    assert driven.worker.saved[-1] == "last"


def test_a_device_that_is_gone_ends_the_peer_without_a_last_checkpoint(driven: Driven) -> None:
    """What is on disk stays as it is; the others hear that it leaves."""
    driven.worker.fails = DeviceLost("cuda has failed; restart the machine or its driver")
    driven.meet()
    driven.until(lambda: driven.has_told(OfferContribution))
    driven.commit()
    driven.until(lambda: driven.error is driven.worker.fails)
    assert "last" not in driven.worker.saved
    assert driven.link.told[-1] == Leave(finished=False)


def test_a_mistake_of_ours_is_raised_as_it_is(driven: Driven) -> None:
    """Nobody waits for a trainer that has ended."""
    driven.worker.fails = AssertionError("ours")
    driven.meet()
    driven.until(lambda: driven.has_told(OfferContribution))
    driven.commit()
    driven.until(lambda: driven.error is driven.worker.fails)


def test_a_full_link_disk_is_told(driven: Driven) -> None:
    """And it is tried again."""
    driven.meet()
    driven.until(lambda: driven.has_told(ReportProgress))
    driven.say(OSError(), OSError())
    driven.until(lambda: driven.link.restarts == 2)
    assert {alert.code for alert in driven.all(AlertRaised)} == {"LINK"}


# ---- before it knows its run ----


def spec_text(*items: Any, stopping: bool = False) -> tuple[str, list[Event]]:
    events: list[Event] = []
    inbox: Inbox = Inbox()
    for item in items:
        inbox.put(item)
    reporter = Reporter(events.append)
    reporter.stopping = stopping
    return handshake.await_spec(inbox, reporter), events


def test_the_spec_comes_after_whatever_the_link_waits_for() -> None:
    text, events = spec_text(
        ipc.Waiting("asking for an admission"), ipc.ReportEvent("RoundStarted", {"round": 1, "steps": 2}),
        ipc.SpecText("the run"),
    )  # fmt: skip
    assert text == "the run"
    assert events == [
        PeerStateChanged(state="JOINING", why="asking for an admission"), RoundStarted(round=1, steps=2),
    ]  # fmt: skip


def test_what_the_link_ended_with_is_raised() -> None:
    with pytest.raises(Unreachable, match="no address"):
        spec_text(Unreachable("no address of the invite answers"))


def test_nobody_waits_for_a_spec_that_a_person_does_not_want_any_more() -> None:
    with pytest.raises(LeaveRequested):
        spec_text(stopping=True)
    with pytest.raises(LeaveRequested):
        spec_text(LeaveAsked, stopping=True)


def test_a_spec_that_does_not_come_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "SPEC_TIMEOUT_S", 0.05)
    with pytest.raises(Unreachable, match="the run's spec within"):
        spec_text()


def test_a_block_that_is_none_is_refused() -> None:
    """It came from this machine's own link: there is nothing to go on with."""
    with pytest.raises(ValueError, match="a row of 3 fields"):
        heard(ipc.ReplayBlock(b"\x90", 1), 0.0)


def test_a_thread_that_cannot_begin_ends_the_peer_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for work that will never be done."""
    driven = Driven()

    def refuse() -> None:
        raise DeviceLost("the trainer's thread cannot use cuda:0")

    monkeypatch.setattr(driven.worker, "enter_thread", refuse)
    driven.start()
    driven.until(lambda: driven.error is not None)
    assert isinstance(driven.error, DeviceLost)
    driven.end()
