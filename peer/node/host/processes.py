"""The processes of this machine: what ours use, which others run, and the priority of ours."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from peer.node.host.memory_room import find_memory_room
from peer.schema.settings import PeerSettings

CHILDREN_S = 5.0
"""How long a list of children is used: to find them the whole of /proc is read."""
COMM_MOST = 15
"""Characters of a process's name that Linux keeps."""
END_S = 2.0
"""A driver or a disk that hangs holds the end of this process up no longer."""


class ProcessTree:
    """A process and its children: this peer, its link, the network daemon."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._processes: list[psutil.Process] = []
        self._listed_at: float | None = None
        self._used_s: dict[int, float] = {}
        self._looked_at: float | None = None

    def figures(self, now: float) -> dict[str, Any]:
        """CPU time since the last look, in percent of one core, and resident memory; pages that two processes share
        count twice. `now` is seconds of any clock. There is no CPU figure at the first look, and none of either once
        the process has ended."""
        used_s, memory_bytes = dict[int, float](), 0
        for process in self._list(now):
            with suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                memory_bytes += process.memory_info().rss
                used_s[process.pid] = times.user + times.system
        if not used_s:
            return {"cpu_percent": None, "memory_bytes": None}
        before, since, self._used_s, self._looked_at = self._used_s, self._looked_at, used_s, now
        spent_s = sum(max(0.0, value - before.get(pid, 0.0)) for pid, value in used_s.items())
        percent = None if since is None or now <= since else round(100 * spent_s / (now - since), 1)
        return {"cpu_percent": percent, "memory_bytes": memory_bytes}

    def pids(self) -> frozenset[int]:
        return frozenset(process.pid for process in self._find())

    def _list(self, now: float) -> list[psutil.Process]:
        if self._listed_at is None or not 0 <= now - self._listed_at < CHILDREN_S:
            self._processes, self._listed_at = self._find(), now
        return self._processes

    def _find(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            root = psutil.Process(self._pid)
            return [root, *root.children(recursive=True)]
        return []


def available_bytes() -> int:
    """Main memory that this process can still have."""
    return find_memory_room().available_bytes


def running(names: Collection[str], mine: Collection[int]) -> tuple[str, ...]:
    """Those of the named programs that run, each as it was named. A program's name is that of its process, of which
    Linux keeps 15 characters, or of its executable, ignoring case, folder and `.exe`. Processes that are `mine` do
    not count: a person who names python means others."""
    called: set[str] = set()
    for process in psutil.process_iter():
        if process.pid not in mine:
            with suppress(psutil.Error):  # one that has ended and waits for its parent is called nothing
                command = process.cmdline()
                called |= {_bare(process.name()), _bare(command[0])} if command else set()
    return tuple(name for name in names if {_bare(name), _bare(name)[:COMM_MOST]} & called)


def _bare(name: str) -> str:
    return name.replace("\\", "/").rpartition("/")[2].lower().removesuffix(".exe")


SPARED = ("control", "limits", "measuring", "link")
"""How the names of threads begin that answer the owner, or start the link."""


def stand_back(settings: PeerSettings) -> str:
    """Set the trainer's niceness, as `set_niceness` does; returns in words what else that needs."""
    spared = {
        thread.native_id for thread in threading.enumerate() if thread.name.startswith(SPARED) and thread.native_id
    }
    return "" if set_niceness(settings.nice, spared) else "a lower nice takes effect when the peer starts again"


def set_niceness(value: int, spared: Collection[int]) -> bool:
    """Give all threads of this process except those `spared` (by native id) this niceness; returns whether all took
    it. Linux keeps it by thread, and a new thread or process inherits it. A lower value than now needs a privilege."""
    took = True
    for thread in sorted(int(path.name) for path in Path("/proc/self/task").glob("[0-9]*")) or [0]:
        if thread in spared:
            continue
        with suppress(ProcessLookupError):
            try:
                os.setpriority(os.PRIO_PROCESS, thread, value)
            except PermissionError:
                took = False
    return took


@contextmanager
def every(seconds: float, name: str, call: Callable[[], None]) -> Iterator[None]:
    """Call it again and again, from a thread of this name, until the block ends."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            call()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(END_S)
