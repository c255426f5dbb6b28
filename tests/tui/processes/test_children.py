from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dht.errors import HomefiresError, PortInUse
from peer.schema.events import AlertRaised, InviteIssued, PeerStarted
from peer.testing.child_process import HANG_S, ORPHAN_S
from tui.processes.children import ChildExited, ChildProcess, EventPrinted, InterruptReceived, ProcessGroup, error_of

STOP_S = 20.0
FAKE_CHILD = str(Path(__file__).parents[1] / "fake_child.py")

GRANDCHILD = """
import subprocess, sys
from peer.schema.events import AlertRaised, EventLine, format_line
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
event = AlertRaised(level="info", code="PID", text=str(child.pid))
print(format_line(EventLine(seq=0, t=0.0, run="r", peer="p", event=event)))
"""


@pytest.fixture
def children() -> Iterator[ProcessGroup]:
    with ProcessGroup(stop_s=STOP_S) as group:
        yield group
    assert group.running == []


def start(children: ProcessGroup, log: Path, behaviour: str, *arguments: str) -> ChildProcess:
    return children.start("child", [sys.executable, FAKE_CHILD, behaviour, *arguments], log)


def waiting_bootstrap(children: ProcessGroup, log: Path) -> ChildProcess:
    """A child that has said its invite and now waits for SIGTERM."""
    child = start(children, log, "well", "bootstrap")
    until(
        children, lambda happened: isinstance(happened, EventPrinted) and isinstance(happened.line.event, InviteIssued)
    )
    return child


def stubborn_peer(children: ProcessGroup, log: Path) -> ChildProcess:
    """A child that ignores SIGTERM and is already past its last event."""
    child = start(children, log, "stubborn", "peer", "settings.name=peer-1")
    for _ in range(2):
        until(children, lambda happened: isinstance(happened, EventPrinted))
    return child


def until(children: ProcessGroup, wanted: object) -> object:
    """The first thing that happens for which `wanted` holds; fails after HANG_S."""
    assert callable(wanted)
    for _ in range(int(HANG_S / 0.1)):
        happened = children.next(timeout_s=0.1)
        if happened is not None and wanted(happened):
            return happened
    raise AssertionError("it did not happen in time")


def is_end(happened: object) -> bool:
    return isinstance(happened, ChildExited)


@pytest.mark.outside
def test_events_arrive_in_order_and_before_the_end(children: ProcessGroup, tmp_path: Path) -> None:
    start(children, tmp_path / "log", "well", "peer", "settings.name=peer-1")
    happened = []
    while children.running:
        happened.append(children.next(timeout_s=HANG_S))
    assert isinstance(happened[-1], ChildExited)
    lines = [each.line for each in happened if isinstance(each, EventPrinted)]
    assert [line.seq for line in lines] == list(range(len(lines)))
    assert isinstance(lines[0].event, PeerStarted)


@pytest.mark.outside
def test_what_is_no_event_is_counted_and_stderr_goes_to_the_log(
    children: ProcessGroup, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = r"import sys; print('hello'); print('{}'); sys.stdout.buffer.write(b'\xff\n'); print('oh', file=sys.stderr)"
    child = children.start("child", [sys.executable, "-c", code], tmp_path / "deep" / "log")
    until(children, is_end)
    assert child.bad_lines == 3
    assert (tmp_path / "deep" / "log").read_text() == "oh\n"
    assert capfd.readouterr() == ("", "")


@pytest.mark.outside
def test_the_first_interrupt_asks_the_children_to_stop(children: ProcessGroup, tmp_path: Path) -> None:
    child = waiting_bootstrap(children, tmp_path / "log")
    os.kill(os.getpid(), signal.SIGINT)
    until(children, lambda happened: isinstance(happened, InterruptReceived))
    until(children, is_end)
    assert (child.exit_code, child.describe_end()) == (0, "asked to leave")


@pytest.mark.outside
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_second_interrupt_kills_at_once(children: ProcessGroup, tmp_path: Path, number: signal.Signals) -> None:
    child = stubborn_peer(children, tmp_path / "log")
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)
    until(children, is_end)
    assert child.exit_code == -signal.SIGKILL
    assert child.describe_end() == "killed by SIGKILL"


@pytest.mark.outside
def test_a_child_that_does_not_stop_in_time_is_killed(tmp_path: Path) -> None:
    with ProcessGroup(stop_s=0.2) as children:
        child = stubborn_peer(children, tmp_path / "log")
    assert child.exit_code == -signal.SIGKILL


@pytest.mark.outside
def test_an_error_in_our_code_leaves_no_child(tmp_path: Path) -> None:
    def fail() -> None:
        with ProcessGroup() as children:
            started.append(waiting_bootstrap(children, tmp_path / "log"))
            raise RuntimeError("ours")

    started: list[ChildProcess] = []
    with pytest.raises(RuntimeError, match="ours"):
        fail()
    assert started[0].exit_code == 0


@pytest.mark.outside
def test_what_a_child_left_behind_is_killed(children: ProcessGroup, tmp_path: Path) -> None:
    children.start("child", [sys.executable, "-c", GRANDCHILD], tmp_path / "log")
    said = until(children, lambda happened: isinstance(happened, EventPrinted))
    assert isinstance(said, EventPrinted)
    assert isinstance(said.line.event, AlertRaised)
    until(children, is_end)
    assert is_gone(int(said.line.event.text))


def test_the_handlers_of_before_come_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with ProcessGroup():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.outside
def test_an_exit_code_of_the_tree_becomes_its_error(children: ProcessGroup, tmp_path: Path) -> None:
    child = start(children, tmp_path / "log", "mute", "bootstrap")
    until(children, is_end)
    error = error_of(child)
    assert isinstance(error, PortInUse)
    assert str(error) == "/ip4/127.0.0.1/tcp/4001 is taken"


@pytest.mark.outside
def test_a_crash_names_the_log(children: ProcessGroup, tmp_path: Path) -> None:
    child = children.start("peer-7", [sys.executable, "-c", "raise SystemExit(9)"], tmp_path / "log")
    until(children, is_end)
    error = error_of(child)
    assert type(error) is HomefiresError
    assert str(error) == f"peer-7: ended unexpectedly with exit code 9; its log is {tmp_path / 'log'}"


def is_gone(pid: int) -> bool:
    """Dead within seconds; a corpse that its new parent has yet to collect counts."""
    deadline = time.monotonic() + ORPHAN_S
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
    return False


@pytest.mark.outside
def test_nothing_that_children_print_is_seen(
    children: ProcessGroup, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It would land in the middle of a dashboard: their stderr, and that of their own children, is in the log."""
    program = "import subprocess, sys; print('NOISE', file=sys.stderr, flush=True); "
    program += "subprocess.run(['sh', '-c', 'echo NOISE below >&2; echo NOISE'])"
    child = children.start("child", [sys.executable, "-c", program], tmp_path / "log")
    while children.running:
        children.next(timeout_s=HANG_S)
    assert (tmp_path / "log").read_text() == "NOISE\nNOISE below\n"
    assert child.bad_lines == 1
    assert capfd.readouterr() == ("", "")
