"""What the owner of a peer wants: that it trains, pauses, or pauses after this round; and what the limits ask for.

The threads of the control socket and of the limits set it, and listeners are called. The trainer looks at it between
micro-batches; none waits for another. A wish is remembered whatever the peer is doing, and kept for its next start: a
peer that was paused before the machine restarted stays paused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from dht.errors import DiskFull
from peer.node.limits.policy import Decision, Hold, until_of
from peer.schema.settings import PeerSettings

PAUSED_WHY = "its owner paused it; resume with: homefires resume"
SNOOZED_WHY = "its owner has it snooze; resume at once with: homefires resume"


class Intent(Enum):
    """The owner's wish, named like the commands."""

    TRAIN = "resume"
    FINISH = "finish"
    """Train until this round's contribution is made, then pause."""
    PAUSE = "pause"


@dataclass(frozen=True)
class Desired:
    """The owner's last wish."""

    wish: Intent = Intent.TRAIN
    snoozed_until: float | None = None
    """Unix time: a pause until then."""


class DesiredState:
    """The newest wish, and the newest verdict on the limits. `clock` gives Unix time. `wished` is the wish of an
    earlier life; `keep` writes the newest to disk for the next one, or raises."""

    def __init__(
        self, clock: Callable[[], float] | None = None, wished: Desired = Desired(),
        keep: Callable[[Desired], None] = lambda wished: None,
    ) -> None:  # fmt: skip
        self._clock, self._keep = clock or time.time, keep
        self._wished = wished
        """Replaced as a whole: other threads read it."""
        self._verdict = Decision()
        self._listener: Callable[[], object] = lambda: None
        self._changing = threading.Lock()
        self.min_step_s = 0.0
        """What `settings.min_step_s` says."""

    def listen(self, listener: Callable[[], object]) -> None:
        """Call it whenever something here may have changed, by the thread that changed it."""
        self._listener = listener

    @property
    def now(self) -> Intent:
        return self._wished.wish

    @property
    def holds(self) -> tuple[Hold, ...]:
        """Every reason not to train, the owner's own first; empty: it may train."""
        return (*self._owners_hold(), *self._verdict.holds)

    @property
    def slowing(self) -> tuple[Hold, ...]:
        """Why it computes only a part of the time; without codes that stop training anyway."""
        held = {hold.code for hold in self._verdict.holds}
        return tuple(hold for hold in self._verdict.slowing if hold.code not in held)

    @property
    def pausing(self) -> bool:
        """Whether no further micro-batch is wanted."""
        return bool(self.holds)

    @property
    def until(self) -> float | None:
        """Unix time at which the pause ends by itself; None if nobody knows, or if there is none."""
        return until_of(self.holds)

    @property
    def duty(self) -> float:
        """Share of the time in which to compute."""
        return self._verdict.duty

    def wish(self, wish: Intent) -> str:
        """Replace the last wish, and end a snooze; a peer that is asked to finish its round goes on to snooze after it,
        until the time it had been told. Returns what people should know about it, in words; mostly nothing."""
        with self._changing:
            until = self._wished.snoozed_until if wish is Intent.FINISH else None
            return self._replace(Desired(wish, until if self._is_to_come(until) else None))

    def snooze(self, seconds: float) -> str:
        """Pause for so long, then train. Replaces the last wish, and returns what `wish` does."""
        return self._say(Desired(Intent.TRAIN, self._clock() + seconds))

    def take(self, settings: PeerSettings) -> None:
        """Take over those settings that concern each step."""
        self.min_step_s = settings.min_step_s
        self._listener()

    def judge(self, verdict: Decision) -> None:
        self._verdict = verdict
        self._listener()

    def round_is_given(self) -> None:
        """This round's contribution is made: a peer that was asked to finish it pauses now, or goes on to snooze."""
        if self._wished.wish is not Intent.FINISH:  # mostly: the trainer waits for no disk
            return
        with self._changing:  # a `resume` that comes meanwhile stands
            if self._wished.wish is Intent.FINISH:
                until = self._wished.snoozed_until
                self._replace(Desired(Intent.TRAIN, until) if self._is_to_come(until) else Desired(Intent.PAUSE))

    def _say(self, wished: Desired) -> str:
        with self._changing:
            return self._replace(wished)

    def _replace(self, wished: Desired) -> str:
        """It is the wish from now on, whether it can be kept on disk or not."""
        self._wished = wished
        self._listener()
        try:
            self._keep(wished)
        except (DiskFull, OSError) as error:
            return f"{error}; it holds, but will be forgotten when the peer ends"
        return ""

    def _owners_hold(self) -> tuple[Hold, ...]:
        wished = self._wished
        if wished.wish is Intent.PAUSE:
            return (Hold("PAUSED", PAUSED_WHY),)
        if wished.wish is Intent.TRAIN and self._is_to_come(wished.snoozed_until):
            return (Hold("SNOOZED", SNOOZED_WHY, wished.snoozed_until),)
        return ()

    def _is_to_come(self, until: float | None) -> bool:
        return until is not None and self._clock() < until
