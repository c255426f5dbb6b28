"""The trainer's handle on its link process, with processes that only play the link."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dht.errors import RunMismatch, Unreachable
from peer.link import handle
from peer.link.channel import Fields, LinkLost
from peer.link.handle import LeaveRequested, LinkProcess
from peer.settings import PeerSettings
from peer.testing.child_process import HANG_S

pytestmark = pytest.mark.outside

Start = Callable[..., LinkProcess]
FAKE = Path(__file__).with_name("fake_link.py")


def never() -> bool:
    return False


@pytest.fixture
def heard() -> list[Fields]:
    """What was passed on while something else was expected."""
    return []


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: list[Fields]) -> Iterator[Start]:
    """Starts the fake link with a scene; all of them are gone afterwards."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PYTHONPATH", str(FAKE.parents[3]))
    started = []

    def start_one(scene: str, asked_to_leave: Callable[[], bool] = never) -> LinkProcess:
        started.append(LinkProcess(scene, tmp_path, PeerSettings(name="me"), heard.append, asked_to_leave))
        return started[-1]

    yield start_one
    for link in started:
        link.kill()
        link._process.wait(HANG_S)
        link._pipe.close()


def test_what_the_link_failed_with_is_raised(start: Start) -> None:
    """As the same kind of error, with its one line."""
    link = start("error")
    with pytest.raises(RunMismatch, match="other parameters"):
        link.expect("spec", HANG_S)


def test_an_error_is_raised_while_sending_too(start: Start) -> None:
    """The link said why before it went; whoever writes into its closed pipe learns that, not a broken pipe."""
    link = start("error")
    link._process.wait(HANG_S)
    with pytest.raises(RunMismatch, match="other parameters"):
        link.send("progress", 0.5)


def test_a_link_that_dies_without_a_word_is_lost(start: Start) -> None:
    """Both when listening and when sending."""
    link = start("dies")
    with pytest.raises(LinkLost):
        link.receive(HANG_S)
    with pytest.raises(LinkLost):
        link.send("progress", 0.5)


def test_expecting_passes_on_what_comes_before(start: Start, heard: list[Fields]) -> None:
    """Reports of the time before the first round."""
    link = start("tells")
    assert link.expect("spec", HANG_S) == ("text of the spec",)
    assert [kind for kind, *_ in heard] == ["waiting", "report"]


def test_expecting_ends_when_asked_to_leave(start: Start) -> None:
    """A link that says nothing does not hold a person."""
    link = start("hangs", lambda: True)
    with pytest.raises(LeaveRequested):
        link.expect("spec", HANG_S)


def test_expecting_in_vain_is_unreachable(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says what did not come."""
    monkeypatch.setattr(handle, "POLL_S", 0.01)
    link = start("hangs")
    with pytest.raises(Unreachable, match="spec within 0 s"):
        link.expect("spec", 0.02)


def test_messages_go_both_ways(start: Start) -> None:
    """Numbers, text, bytes and rows."""
    link = start("echo")
    link.send("frozen", b"a" * 32, 0.5, ("p0", "p1"))
    assert link.receive(HANG_S) == ("frozen", b"a" * 32, 0.5, ("p0", "p1"))


def test_what_one_link_is_told_reaches_no_other(start: Start) -> None:
    """A thread that has something to tell a link that ended meanwhile tells nobody."""
    link = start("echo")
    announce = link.announcer("frozen", b"a" * 32)
    link.restart()
    announce()
    link.send("model", 1)
    assert link.receive(HANG_S) == ("model", 1)


def test_a_thread_tells_the_link_that_is_there(start: Start) -> None:
    link = start("echo")
    link.announcer("frozen", b"a" * 32)()
    assert link.receive(HANG_S) == ("frozen", b"a" * 32)


def test_a_link_takes_settings_while_it_runs_and_so_does_the_next_one(start: Start) -> None:
    """Only those that concern it, and only when they change."""
    link = start("echo")
    link.take(PeerSettings(name="me", idle_min=5))
    link.take(PeerSettings(name="me", upload_mbps=5.0, disk_gb=2.0))
    link.take(PeerSettings(name="me", upload_mbps=5.0, disk_gb=2.0, nice=3))
    live = {"chain_mb": 4000, "disk_gb": 2.0, "upload_mbps": 5.0, "download_mbps": 0.0, "newcomers_mbps": 100.0}
    assert link.receive(HANG_S) == ("settings", live)
    link.send("model", 1)
    assert link.receive(HANG_S) == ("model", 1)
    link.restart()
    words = list(link._process.args)  # type: ignore[arg-type]
    assert [words[words.index(f"--{name}") + 1] for name in ("upload-mbps", "disk-gb")] == ["5.0", "2.0"]


def test_a_polite_end_waits_for_the_last_words(start: Start) -> None:
    """The link ends by itself once it was told to leave."""
    with start("tells") as link:
        assert link.expect("spec", HANG_S)
        link.send("leave")
    assert link._process.returncode == 0


def test_a_link_that_does_not_end_is_killed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """After STOP_S, whatever it is at."""
    monkeypatch.setattr(handle, "STOP_S", 0.05)
    with start("hangs") as link:
        pass
    assert link._process.returncode is not None


def test_who_is_asked_to_leave_waits_no_longer_than_a_goodbye(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished peer's link may stay for the others, but not against its owner's will."""
    monkeypatch.setattr(handle, "GOODBYE_S", 0.05)
    monkeypatch.setattr(handle, "POLL_S", 0.01)
    before = time.monotonic()
    with start("hangs", lambda: True) as link:
        pass
    assert time.monotonic() - before < handle.STOP_S
    assert link._process.returncode is not None


def test_an_error_of_ours_ends_the_link(start: Start) -> None:
    """Its pipe closes, and that is enough."""
    with pytest.raises(ZeroDivisionError), start("echo") as link:
        raise ZeroDivisionError
    assert link._process.returncode == 0


def test_killing_leaves_no_process(start: Start) -> None:
    """At once."""
    link = start("hangs")
    link.kill()
    link._process.wait(HANG_S)
    assert not psutil.pid_exists(link._process.pid)
