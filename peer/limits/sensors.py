"""What this machine says of the things that limits are about; only those are read that a setting asks for."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from peer.host.idle import Idleness
from peer.host.measurements import Gpu, Tree
from peer.limits.policy import Readings
from peer.settings import PeerSettings

MAINS = ("Mains", "USB")
COMM_MOST = 15
"""Characters of a process's name that Linux keeps."""
SHARE = 0.02
"""Of the time that looking at the run folder may take: ten thousands of files are looked at less often."""


class Sensors(Protocol):
    """What is read; `Machine` is the real one."""

    def read(self, settings: PeerSettings, now: float) -> Readings:
        """The readings at Unix time `now`, without the traffic; None for what no setting asks for."""
        ...


class Machine:
    """This machine, and the peer that lives in a run folder. `root` is where its /proc and /sys are."""

    def __init__(self, directory: Path, root: Path = Path("/"), gpu: Gpu | None = None) -> None:
        self._root = root
        self._idleness, self._gpu = Idleness(root), gpu or Gpu()
        self._tree = Tree(os.getpid(), root / "proc")
        self._folder = Spared(lambda: folder_bytes(directory))

    def read(self, settings: PeerSettings, now: float) -> Readings:
        """See `Sensors`."""
        asks_gpu = settings.max_temperature_c or settings.max_power_w
        figures = self._gpu.figures() if asks_gpu else {}
        return Readings(
            idle_s=self._idleness.idle_s(now) if settings.idle_min else None,
            on_battery=None if settings.on_battery else is_on_battery(self._root),
            running=self._running(settings.pause_for) if settings.pause_for else None,
            folder_bytes=self._folder() if settings.disk_gb else None,
            memory_bytes=self._tree.figures(time.monotonic())["memory_bytes"] if settings.memory_gb else None,
            temperature_c=figures.get("temperature_c"),
            power_w=figures.get("power_w"),
        )

    def _running(self, names: Collection[str]) -> tuple[str, ...] | None:
        return running(names, self._root / "proc", self._tree.pids())


class Spared:
    """A reading that may be costly: it is taken again once all looks take SHARE of the time at most."""

    def __init__(self, look: Callable[[], int | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._look, self._clock = look, clock
        self._says: int | None = None
        self._due_at = -math.inf

    def __call__(self) -> int | None:
        began_at = self._clock()
        if began_at >= self._due_at:
            self._says = self._look()
            self._due_at = began_at + (self._clock() - began_at) / SHARE
        return self._says


def is_on_battery(root: Path = Path("/")) -> bool:
    """Whether no mains feed this machine and a battery or a UPS is being emptied. One without any has mains."""
    emptied = False
    for supply in (root / "sys/class/power_supply").glob("*"):
        kind = _text(supply / "type")
        if kind in MAINS and _text(supply / "online") == "1":
            return False
        if kind in ("Battery", "UPS") and _text(supply / "scope") != "Device":  # or else a mouse's
            emptied = emptied or _text(supply / "status") == "Discharging"
    return emptied


def running(names: Collection[str], proc: Path, mine: Collection[int]) -> tuple[str, ...] | None:
    """Of the programs named, those that run, each as it was named; None where processes cannot be seen.

    A program's name is that of its process, of which Linux keeps 15 characters, or of the file that was started,
    without regard to case, folder and `.exe`. Processes that are `mine` do not count: who names python means others.
    """
    if not proc.is_dir():
        return None
    called: set[str] = set()
    for folder in proc.glob("[0-9]*"):
        if int(folder.name) not in mine:
            called.update(_names(folder))
    return tuple(name for name in names if {_bare(name), _bare(name)[:COMM_MOST]} & called)


def _names(process: Path) -> Iterator[str]:
    """What a process is called. One that has ended and waits for its parent has no command line: it has no name."""
    with suppress(OSError):
        command = (process / "cmdline").read_bytes()
        if command:
            yield (process / "comm").read_text(errors="replace").strip().lower().removesuffix(".exe")
            yield _bare(command.split(b"\0", 1)[0].decode(errors="replace"))


def _bare(name: str) -> str:
    return name.replace("\\", "/").rpartition("/")[2].lower().removesuffix(".exe")


def folder_bytes(folder: Path) -> int | None:
    """What all files below take on disk; None if the folder cannot be read. One that goes meanwhile is left out."""
    total, waiting = 0, [str(folder)]
    try:
        while waiting:
            place = waiting.pop()
            with suppress(FileNotFoundError), os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        with suppress(FileNotFoundError):
                            total += entry.stat(follow_symlinks=False).st_blocks * 512
    except OSError:
        return None
    return total


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
