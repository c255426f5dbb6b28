"""The trainer's handle on its link process, with processes that only play the link."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import psutil
import pytest

from dht.errors import RunMismatch
from peer.network.link import handle
from peer.network.link.channel import LinkLost
from peer.network.link.cluster_invite import issue_in, keep_found
from peer.network.link.handle import LinkProcess
from peer.schema.ipc import (
    AnyToTrainer,
    BeginAt,
    HomesFound,
    InStep,
    Leave,
    LinkLimits,
    OfferContribution,
    ReportEvent,
    SpecText,
    Waiting,
)
from peer.schema.settings import PeerSettings
from peer.testing.child_process import HANG_S

pytestmark = pytest.mark.outside

FAKE = Path(__file__).with_name("fake_link.py")
ANCHOR, NEXT = b"a" * 32, b"b" * 32
LIMITS = LinkLimits(chain_mb=4000, disk_gb=0.0, upload_mbps=0.0, download_mbps=0.0, newcomers_mbps=100.0)


def never() -> bool:
    return False


class Inbox:
    """What the reader of a link passes on, in its order."""

    def __init__(self) -> None:
        self.said: Queue[AnyToTrainer | Exception] = Queue()
        self.threads: set[str] = set()
        self.endings = 0
        self.may_hear, self.waits = threading.Event(), threading.Event()
        self.may_hear.set()

    def hear(self, message: AnyToTrainer) -> None:
        self.waits.set()
        self.may_hear.wait(HANG_S)
        self.threads.add(threading.current_thread().name)
        self.said.put(message)

    def ended(self, error: Exception) -> None:
        self.endings += 1
        self.said.put(error)

    def next(self) -> AnyToTrainer | Exception:
        return self.said.get(timeout=HANG_S)


Start = Callable[[str], LinkProcess]


@pytest.fixture
def inbox() -> Inbox:
    """What the trainer hears."""
    return Inbox()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inbox: Inbox) -> Iterator[Start]:
    """Starts the fake link with a scene; all of them are gone afterwards."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PYTHONPATH", str(FAKE.parents[3]))
    started = []

    def start_one(scene: str) -> LinkProcess:
        settings = PeerSettings(name="me", listen=("none",))
        started.append(LinkProcess(scene, tmp_path, settings, inbox.hear, inbox.ended))
        return started[-1]

    yield start_one
    for link in started:
        link.kill()
        link.__exit__(None, None, None)


def test_what_the_link_failed_with_is_told(start: Start, inbox: Inbox) -> None:
    """As the same kind of error, with its one line, and once."""
    link = start("error")
    error = inbox.next()
    assert isinstance(error, RunMismatch)
    assert str(error) == "other parameters"
    link.close(never)
    assert inbox.endings == 1


@pytest.mark.parametrize("scene", ["dies", "nonsense"])
def test_a_link_that_does_not_say_why_is_lost(start: Start, inbox: Inbox, scene: str) -> None:
    """Without a word, or with an error that is none of ours."""
    start(scene)
    assert isinstance(inbox.next(), LinkLost)


def test_why_a_link_ended_is_heard_whatever_it_is_told(start: Start, inbox: Inbox) -> None:
    """Whoever writes into its closed pipe notices nothing: what it said last is still there."""
    link = start("error")
    link._process.wait(HANG_S)
    for _ in range(3):
        link.send(OfferContribution(ANCHOR))
    assert isinstance(inbox.next(), RunMismatch)
    link.send(OfferContribution(ANCHOR))
    assert inbox.endings == 1


def test_everything_is_heard_in_its_order(start: Start, inbox: Inbox) -> None:
    """By a thread of its own, which takes the link's niceness and not the trainer's."""
    link = start("tells")
    heard = [inbox.next() for _ in range(3)]
    assert [type(message) for message in heard] == [Waiting, ReportEvent, SpecText]
    assert heard[2] == SpecText("text of the spec")
    (thread,) = inbox.threads
    assert thread.startswith("link")
    link.send(Leave(False))
    assert isinstance(inbox.next(), ReportEvent)
    assert isinstance(inbox.next(), LinkLost)


def test_the_first_message_says_how_to_join(start: Start, inbox: Inbox) -> None:
    """Name, addresses and limits; nothing of it is on the command line."""
    link = start("echo")
    assert inbox.next() == ReportEvent("opening", {"name": "me", "listen": ["none"], "limits": f"{LIMITS}"})
    link.send(OfferContribution(ANCHOR))
    assert inbox.next() == BeginAt(ANCHOR, ())
    assert "me" not in list(link._process.args)  # type: ignore[arg-type]


def test_what_a_link_said_is_not_heard_once_another_has_taken_its_place(start: Start, inbox: Inbox) -> None:
    """It never stops talking, and is told to have ended before the new one begins."""
    link = start("chatters")
    assert inbox.next() == InStep(True)
    before, reader = link._pipe, link._reader
    inbox.may_hear.clear()
    inbox.waits.clear()
    assert inbox.waits.wait(HANG_S), "it is in the middle of a word"
    threading.Timer(0.5, inbox.may_hear.set).start()
    link._invite = "tells"
    link.restart()
    assert not reader.is_alive()
    while isinstance(said := inbox.next(), InStep):
        continue
    assert isinstance(said, LinkLost)
    assert [type(inbox.next()) for _ in range(3)] == [Waiting, ReportEvent, SpecText]
    assert inbox.said.empty()
    assert inbox.endings == 1
    assert before._socket.fileno() == -1


def test_a_link_takes_limits_while_it_runs_and_so_does_the_next_one(start: Start, inbox: Inbox) -> None:
    """Only those that concern it, and only when they change."""
    link = start("echo")
    inbox.next()
    link.take(PeerSettings(name="me", idle_min=5))
    link.take(PeerSettings(name="me", upload_mbps=5.0, disk_gb=2.0))
    link.take(PeerSettings(name="me", upload_mbps=5.0, disk_gb=2.0, nice=3))
    limits = LinkLimits(chain_mb=4000, disk_gb=2.0, upload_mbps=5.0, download_mbps=0.0, newcomers_mbps=100.0)
    assert inbox.next() == Waiting(f"{limits}")
    link.send(OfferContribution(ANCHOR))
    assert inbox.next() == BeginAt(ANCHOR, ())
    link.restart()
    assert isinstance(inbox.next(), LinkLost)
    opened = inbox.next()
    assert isinstance(opened, ReportEvent)
    assert opened.fields["limits"] == f"{limits}"


def test_a_polite_end_waits_for_the_last_words(start: Start, inbox: Inbox) -> None:
    """The link ends by itself once it was told to leave, and is heard until then."""
    with start("tells") as link:
        link.send(Leave(True))
        link.close(never)
    assert link._process.returncode == 0
    assert [type(inbox.next()) for _ in range(5)] == [Waiting, ReportEvent, SpecText, ReportEvent, LinkLost]


@pytest.mark.parametrize("scene", ["hangs", "chatters"])
def test_a_link_that_does_not_end_is_killed(
    start: Start, inbox: Inbox, monkeypatch: pytest.MonkeyPatch, scene: str
) -> None:
    """After STOP_S, whatever it is at."""
    with start(scene) as link:
        assert inbox.next() == InStep(True)
        monkeypatch.setattr(handle, "STOP_S", 0.05)
        link.close(never)
        assert link._process.returncode is not None
    while inbox.next() == InStep(True):
        continue
    assert inbox.endings == 1


def test_who_is_asked_to_leave_waits_no_longer_than_a_goodbye(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished peer's link may stay for the others, but not against its owner's will."""
    monkeypatch.setattr(handle, "GOODBYE_S", 0.05)
    monkeypatch.setattr(handle, "POLL_S", 0.01)
    before = time.monotonic()
    with start("hangs") as link:
        link.close(lambda: True)
    assert time.monotonic() - before < handle.STOP_S
    assert link._process.returncode is not None


def test_an_error_of_ours_ends_the_link(start: Start, inbox: Inbox) -> None:
    """Its pipe closes, and that is enough."""
    link = start("echo")
    assert isinstance(inbox.next(), ReportEvent)
    with pytest.raises(ZeroDivisionError), link:
        raise ZeroDivisionError
    assert link._process.returncode == 0
    assert inbox.endings == 1


def test_killing_leaves_no_process(start: Start, inbox: Inbox) -> None:
    """At once, and it is heard."""
    link = start("hangs")
    assert inbox.next() == InStep(True)
    link.kill()
    assert isinstance(inbox.next(), LinkLost)
    link.close(never)
    assert not psutil.pid_exists(link._process.pid)


def test_the_next_link_has_the_place_in_a_cluster_that_was_found_meanwhile(tmp_path: Path) -> None:
    """As a lead of so many homes, or as a worker with the line; what the owner chose comes first."""
    line = issue_in(tmp_path / "lead")
    folders = {name: tmp_path / name for name in ("worker", "leads", "chosen")}
    for folder in folders.values():
        folder.mkdir()
    order = (line.lead, "b", "c")
    keep_found(folders["worker"], HomesFound(line.lead, order, 9.0, line.text(), 0.0))
    for name in ("leads", "chosen"):
        keep_found(folders[name], HomesFound("me", order, 9.0, "", 0.0))

    def opened(name: str, **chosen: int) -> handle.OpenLink:
        link = LinkProcess.__new__(LinkProcess)
        link.directory, link._invite, link._settings = folders[name], "invite", PeerSettings(**chosen)
        link._take_place()
        assert link.is_of_cluster == (link._open(LIMITS).stages > 1 or link._open(LIMITS).cluster != "")
        return link._open(LIMITS)

    assert (opened("worker").stages, opened("worker").cluster) == (1, line.text())
    assert (opened("leads").stages, opened("leads").cluster) == (3, "")
    assert opened("chosen", stages=1).stages == 1
    assert opened("chosen", stages=2).stages == 2
