"""Which processes run, and what ours take."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from peer.node.host.processes import CHILDREN_S, ProcessTree, running
from peer.testing.child_process import HANG_S


class Called:
    """A process, as psutil tells of it."""

    def __init__(self, pid: int, name: str, *argv: str, error: Exception | None = None) -> None:
        self.pid, self._name, self._argv, self._error = pid, name, argv, error

    def name(self) -> str:
        return self._name

    def cmdline(self) -> list[str]:
        if self._error is not None:
            raise self._error
        return list(self._argv)


def test_programs_are_known_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the process or by the file that was started; one that has ended and waits for its parent does not run."""
    processes = [
        Called(10, "steam", "/usr/lib/steam/steam", "-silent"),
        Called(11, "Main", "Z:\\games\\Elden Ring\\EldenRing.exe"),
        Called(12, "a-very-long-nam", "python3", "/opt/x"),
        Called(13, "blender"),
        Called(14, "python", "/usr/bin/python"),
        Called(15, "vlc", error=psutil.ZombieProcess(15)),
    ]
    monkeypatch.setattr(psutil, "process_iter", lambda: iter(processes))
    names = ("Steam", "eldenring", "a-very-long-name-of-a-program", "blender", "python", "vlc")
    assert running(names, {14}) == ("Steam", "eldenring", "a-very-long-name-of-a-program")
    assert running(("python",), {99}) == ("python",)


@pytest.mark.outside
def test_what_a_peer_has_started_itself_is_no_reason_to_pause() -> None:
    """Its link is a python, too, and is started by a thread of its own; the python of somebody else counts."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    name = Path(sys.executable).name
    with ThreadPoolExecutor(1) as starter:
        child = starter.submit(
            subprocess.Popen, [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ).result()  # fmt: skip
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            mine = ProcessTree(os.getpid()).pids()
            assert {os.getpid(), child.pid} <= mine
            others = set(map(int, filter(str.isdecimal, os.listdir("/proc")))) - mine
            assert running((name,), others) == (name,)
            assert running((name,), others | mine) == ()
            assert child.stdin is not None
            child.stdin.close()


def test_this_machine_runs_what_started_these_tests() -> None:
    """The real /proc: a child of this process is found by name, this process is not."""
    name = Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode().rpartition("/")[2]
    assert running((name,), ()) == (name,)


@pytest.mark.outside
def test_the_processes_that_it_started_count_too() -> None:
    """A percentage needs two looks; a process that came meanwhile counts, one that went does not make it negative."""
    code = "import sys; held = bytearray(64 << 20); print(flush=True); sys.stdin.read()"
    tree = ProcessTree(os.getpid())
    alone = tree.figures(0.0)
    assert alone["cpu_percent"] is None
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        both = tree.figures(CHILDREN_S)
        child.communicate(timeout=HANG_S)
    assert both["memory_bytes"] > alone["memory_bytes"] + (60 << 20)
    after = tree.figures(2 * CHILDREN_S)
    assert after["memory_bytes"] < both["memory_bytes"] - (60 << 20)
    assert after["cpu_percent"] >= 0


@pytest.mark.outside
def test_a_process_that_has_ended_tells_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait(HANG_S)
    assert ProcessTree(child.pid).figures(1.0) == {"cpu_percent": None, "memory_bytes": None}
    assert ProcessTree(child.pid).pids() == frozenset()


@pytest.mark.outside
def test_this_process_and_its_child_are_found() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        tree = ProcessTree(os.getpid())
        figures = tree.figures(0.0)
        assert {os.getpid(), child.pid} <= tree.pids()
        child.communicate()
    assert figures["memory_bytes"] > 10 << 20
    busy_until = time.process_time() + 0.2
    while time.process_time() < busy_until:
        pass
    assert tree.figures(1.0)["cpu_percent"] >= 15
