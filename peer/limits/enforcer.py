"""A thread that looks at this machine twice a second, decides what the limits ask for, and says it to the trainer.

The trainer looks at its wishes between micro-batches: from a sensor to the last step before a pause it takes LOOK_S
and one micro-batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import tzinfo

from peer.limits.policy import Decision, decide
from peer.limits.sensors import Sensors
from peer.limits.traffic import MonthlyTraffic
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
