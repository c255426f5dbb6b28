"""How faults reach a process of a real peer, with processes that only play one."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import psutil
import pytest

from peer.testing.child_process import HANG_S, Child, Printed, assert_no_orphans, processes_of
from peer.testing.fault_channel import (
    Orders,
    Striker,
    make_fifos,
    open_struck,
    open_thrown,
    parse_strike,
    read_thrown,
    throw,
)
from peer.testing.faults import Corrupt, Crash, Fault, Odd, Partition, Slow, Stall

IDS = ("alice", "bob", "carol")
KINDS: tuple[Fault, ...] = (
    Crash(peer=1, phase="commit", round=3, back_after_s=2.5),
    Stall(peer=1, phase="train", round=3, seconds=1.5),
    Slow(peer=1, phase="exchange", round=3, seconds=2.0, bytes_per_s=1e4),
    Corrupt(peer=1, phase="exchange", round=3, frames=7),
    Partition(peers=(0, 1), phase="exchange", round=3, seconds=9.0),
    Odd(peer=1, round=3, factor=8.0, layer="model.norm"),
)
PLAYER = """
import subprocess, sys
from pathlib import Path
from peer.testing.fault_channel import Striker
code = "import signal; print('up', flush=True); signal.pause()"
subprocess.Popen([sys.executable, "-c", code, sys.argv[1]], stdout=subprocess.PIPE).stdout.readline()
print("entering", flush=True)
Striker(Path(sys.argv[1]), by_link=True).enter("exchange", 3)
print("went on", flush=True)
"""


@pytest.fixture
def struck(tmp_path: Path) -> Iterator[TextIO]:
    """The swarm's end of `struck`; the peer in `tmp_path`/peer-1 is ready for orders."""
    make_fifos(tmp_path / "peer-1")
    with open_struck(tmp_path) as fifo:
        yield fifo


def write_orders(directory: Path, *faults: Fault) -> None:
    Orders(peer=1, ids=IDS, faults=dict(enumerate(faults))).write(directory / "peer-1")


def play(directory: Path) -> list[str]:
    """A peer with a child of its own that enters "exchange" of round 3."""
    return [sys.executable, "-c", PLAYER, str(directory / "peer-1")]


def test_orders_survive_the_disk(tmp_path: Path, struck: TextIO) -> None:
    """Every kind of fault is read as it was written."""
    write_orders(tmp_path, *KINDS)
    assert Orders.read(tmp_path / "peer-1") == Orders(peer=1, ids=IDS, faults=dict(enumerate(KINDS)))


def test_a_fault_of_the_network_is_told_and_handed_over_once(tmp_path: Path, struck: TextIO) -> None:
    """In its phase and round only."""
    write_orders(tmp_path, *KINDS[2:])
    striker = Striker(tmp_path / "peer-1", by_link=True)
    assert striker.enter("exchange", 2) == []
    assert striker.enter("weigh", 3) == []
    assert striker.enter("exchange", 3) == list(KINDS[2:5])
    assert [parse_strike(struck.readline()).number for _ in KINDS[2:5]] == [0, 1, 2]
    assert striker.enter("exchange", 3) == []
    assert striker.enter("submit", 3) == [KINDS[5]]


@pytest.mark.outside
def test_a_crash_takes_the_whole_group(tmp_path: Path, struck: TextIO) -> None:
    """The process and what it started are killed, after it said so."""
    write_orders(tmp_path, Crash(peer=1, phase="exchange", round=3))
    with subprocess.Popen(play(tmp_path), stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        told = parse_strike(struck.readline())
        out, _ = process.communicate(timeout=HANG_S)
    assert (told.peer, told.pid, told.by_link) == (1, process.pid, True)
    assert process.returncode == -signal.SIGKILL
    assert out == "entering\n"
    assert_no_orphans(tmp_path)


@pytest.mark.outside
def test_a_stall_stops_the_whole_group_until_it_is_woken(tmp_path: Path, struck: TextIO) -> None:
    """Every process of it; afterwards it goes on where it stood."""
    write_orders(tmp_path, Stall(peer=1, phase="exchange", round=3, seconds=1))
    inbox: queue.SimpleQueue[Printed] = queue.SimpleQueue()
    child = Child(play(tmp_path), tmp_path / "log", {}, inbox.put)
    assert inbox.get(timeout=HANG_S).text == "entering"
    parse_strike(struck.readline())
    group = processes_of(tmp_path)
    assert len(group) == 2
    _until_stopped(group)
    child.signal_group(signal.SIGCONT)
    assert inbox.get(timeout=HANG_S).text == "went on"
    child.end()
    child.signal_group(signal.SIGKILL)
    assert_no_orphans(tmp_path)


def test_a_switch_is_thrown_from_outside(tmp_path: Path, struck: TextIO) -> None:
    """What the swarm writes waits for the link to read it, in order."""
    descriptor = open_thrown(tmp_path / "peer-1")
    throw(tmp_path / "peer-1", KINDS[2])
    throw(tmp_path / "peer-1", KINDS[4])
    with open(descriptor):
        assert read_thrown(descriptor) == [KINDS[2], KINDS[4]]


@pytest.mark.outside
def test_orphans_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has a path below the directory on its command line is one."""
    monkeypatch.setattr("peer.testing.child_process.ORPHAN_S", 0.1)
    inbox: queue.SimpleQueue[Printed] = queue.SimpleQueue()
    # Before its first line a process may still be on the way from fork to exec, without a command line.
    code = "import signal; print('up', flush=True); signal.pause()"
    child = Child([sys.executable, "-c", code, str(tmp_path / "x")], tmp_path / "log", {}, inbox.put)
    assert inbox.get(timeout=HANG_S).text == "up"
    try:
        with pytest.raises(AssertionError, match="still running"):
            assert_no_orphans(tmp_path)
    finally:
        child.signal(signal.SIGKILL)
        child.end()
    assert_no_orphans(tmp_path)


@pytest.mark.outside
def test_half_a_line_is_not_handed_out(tmp_path: Path) -> None:
    """What a process was killed over is no line."""
    inbox: queue.SimpleQueue[Printed] = queue.SimpleQueue()
    child = Child([sys.executable, "-c", "print('whole\\nhal', end='')"], tmp_path / "log", {}, inbox.put)
    child.end()
    assert [inbox.get(timeout=HANG_S).text for _ in range(2)] == ["whole", None]


def _until_stopped(group: list[psutil.Process]) -> None:
    """The kernel stops the members of a group one after the other."""
    deadline = time.monotonic() + HANG_S
    while any(process.status() != psutil.STATUS_STOPPED for process in group):
        assert time.monotonic() < deadline
