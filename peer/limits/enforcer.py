"""A thread that looks at this machine twice a second, decides what the limits ask for, and says it to the trainer.

The trainer looks at its wishes between micro-batches: from a sensor to the last step before a pause it takes LOOK_S
and one micro-batch.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import tzinfo
from pathlib import Path
from typing import Protocol

from peer.control.desired_state import DesiredState
from peer.host.idle import Idleness
from peer.host.measurements import Gpu, Tree
from peer.limits.governor import rest_s
from peer.limits.policy import Decision, Readings, decide
from peer.limits.traffic import MonthlyTraffic
from peer.settings import PeerSettings
from peer.telemetry.reporter import Reporter

LOOK_S = 0.5
END_S = 2.0
"""A driver or a disk that hangs holds the end of this process up no longer."""
GPU_LIMITS = frozenset({"max_temperature_c", "max_power_w"})
"""They can be looked at when the model is on the GPU, not before."""

NOT_READ = {
    "idle_min": "nothing here tells when somebody last used a keyboard or a mouse",
    "pause_for": "this system does not show which programs run",
    "disk_gb": "the run folder cannot be read",
    "memory_gb": "this system does not show how much memory a process takes",
    "max_temperature_c": "no GPU here tells its temperature",
    "max_power_w": "no GPU here tells its power",
}
log = logging.getLogger(__name__)


class Enforcer:
    """Looks, decides, and says it. `clock` gives Unix time."""

    def __init__(
        self, session: Reporter, sensors: Sensors, traffic: MonthlyTraffic, clock: Callable[[], float] = time.time,
        zone: tzinfo | None = None,
    ) -> None:  # fmt: skip
        self._session, self._sensors, self._traffic, self._clock, self._zone = session, sensors, traffic, clock, zone
        self._verdict = Decision()
        self._unread: set[str] = set()
        self._failed = False

    def look(self) -> None:
        """Once; what follows from it holds from now on."""
        settings, now = self._session.chosen.settings, self._clock()
        readings = replace(self._sensors.read(settings, now), month_bytes=self._traffic.month_bytes)
        self._verdict = decide(settings, readings, now, self._verdict, self._zone)
        self._session.wishes.judge(self._verdict)
        self._tell_unread()

    def look_or_tell(self) -> None:
        """As `look`; where that fails what holds now goes on holding, and its owner is told once."""
        try:
            self.look()
        except Exception as error:  # whatever it is: a thread that ended would let limits pass unnoticed
            log.exception("the limits could not be looked at")
            if not self._failed:
                self._session.warn("LIMIT", f"limits cannot be looked at ({error}); what held before goes on holding")
            self._failed = True
        else:
            self._failed = False

    def _tell_unread(self) -> None:
        """A limit that nothing here can hold is told once, and again if it is set again."""
        unread = set(self._verdict.unread)
        if not self._session.has_trained:
            unread -= GPU_LIMITS
        for name in sorted(unread - self._unread):
            self._session.warn("LIMIT", f"{name} has no effect: {NOT_READ[name]}")
        self._unread = unread


@contextmanager
def enforcing(enforcer: Enforcer) -> Iterator[None]:
    """Have it look every LOOK_S, and once before the block begins, until the block ends."""
    ended = threading.Event()
    enforcer.look_or_tell()

    def watch() -> None:
        while not ended.wait(LOOK_S):
            enforcer.look_or_tell()

    thread = threading.Thread(target=watch, name="limits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(END_S)


PIECE_S = 0.25
"""Who rests looks up so often."""


class Throttle:
    """The rests of one inner step. The last one is left to who makes the step, and may do something else meanwhile."""

    def __init__(
        self, wishes: DesiredState, clock: Callable[[], float], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._wishes, self._clock, self._sleep = wishes, clock, sleep
        self._since = clock()

    def rest_or_stop(self) -> bool:
        """A micro-batch was made and another one follows: rest. Returns whether none shall follow any more."""
        ends = self._clock() + self.left_s()
        while not self._wishes.pausing and (left_s := ends - self._clock()) > 0:
            self._sleep(min(left_s, PIECE_S))
        self._since = self._clock()
        return self._wishes.pausing

    def left_s(self) -> float:
        """How long to rest after what was computed since the rest before."""
        return rest_s(self._clock() - self._since, self._wishes.duty)


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
