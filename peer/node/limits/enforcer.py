"""A thread that reads this machine's sensors twice a second, decides what the limits ask for, and tells the trainer.

The trainer looks at its wishes between micro-batches. So from a sensor's change to the last step before a pause it
takes LOOK_S and one micro-batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import tzinfo
from typing import Protocol

from peer.node.host.processes import every
from peer.node.limits.desired_state import DesiredState
from peer.node.limits.governor import rest_s
from peer.node.limits.monthly_traffic import MonthlyTraffic
from peer.node.limits.policy import Decision, decide
from peer.node.limits.sensors import Sensors
from peer.schema.settings import PeerSettings

LOOK_S = 0.5
PIECE_S = 0.25
"""Who rests looks up so often."""
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


class Owner(Protocol):
    """The peer whose limits are enforced."""

    has_trained: bool

    @property
    def settings(self) -> PeerSettings: ...
    def judge(self, verdict: Decision) -> None: ...
    def warn(self, code: str, text: str) -> None: ...


class Enforcer:
    """Reads the sensors, decides, and tells the trainer. `clock` gives Unix time."""

    def __init__(
        self, owner: Owner, sensors: Sensors, traffic: MonthlyTraffic, clock: Callable[[], float] = time.time,
        zone: tzinfo | None = None,
    ) -> None:  # fmt: skip
        self._owner, self._sensors, self._traffic, self._clock, self._zone = owner, sensors, traffic, clock, zone
        self._verdict = Decision()
        self._unread: set[str] = set()
        self._failed = False

    def look(self) -> None:
        """Look once; the result holds from now on."""
        settings, now = self._owner.settings, self._clock()
        readings = replace(self._sensors.read(settings, now), month_bytes=self._traffic.month_bytes)
        self._verdict = decide(settings, readings, now, self._verdict, self._zone)
        self._owner.judge(self._verdict)
        self._tell_unread()

    def poll(self) -> None:
        """As `look`; if that fails the present verdict stays, and the owner is told once."""
        try:
            self.look()
        except Exception as error:  # whatever it is: a thread that ended would let limits pass unnoticed
            log.exception("the limits could not be looked at")
            if not self._failed:
                self._owner.warn("LIMIT", f"limits cannot be looked at ({error}); what held before goes on holding")
            self._failed = True
        else:
            self._failed = False

    def _tell_unread(self) -> None:
        """A limit whose sensor is missing here is reported once, and again if it is set again."""
        unread = set(self._verdict.unread)
        if not self._owner.has_trained:
            unread -= GPU_LIMITS
        for name in sorted(unread - self._unread):
            self._owner.warn("LIMIT", f"{name} has no effect: {NOT_READ[name]}")
        self._unread = unread


@contextmanager
def enforcing(enforcer: Enforcer) -> Iterator[None]:
    """Look every LOOK_S, and once before the block begins, until the block ends."""
    enforcer.poll()
    with every(LOOK_S, "limits", enforcer.poll):
        yield


class Throttle:
    """The rests of one inner step, which ends with its micro-batch once `stop` says so. The last rest is not taken."""

    def __init__(
        self, wishes: DesiredState, clock: Callable[[], float], stop: Callable[[], bool],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._wishes, self._clock, self._stop, self._sleep = wishes, clock, stop, sleep
        self._since = clock()

    def rest_or_stop(self) -> bool:
        """A micro-batch was made and another one follows: rest. Returns whether no further one shall follow."""
        ends = self._clock() + self.left_s()
        while not self._stop() and (left_s := ends - self._clock()) > 0:
            self._sleep(min(left_s, PIECE_S))
        self._since = self._clock()
        return self._stop()

    def left_s(self) -> float:
        """How long to rest after the computation since the last rest."""
        return rest_s(self._clock() - self._since, self._wishes.duty)
