"""What the owner of a peer wishes: that it trains, pauses, or pauses once its round is given; and what limits ask.

The thread of the control socket and the one that watches the limits say it, the trainer looks at it between
micro-batches; neither waits for the other. A wish is remembered whatever the peer does just then, and lasts as long
as the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum

from peer.limits.decide import Hold, Verdict, until_of
from peer.settings import PeerSettings

PAUSED_WHY = "its owner paused it; resume with: homefires resume"
SNOOZED_WHY = "its owner has it snooze; resume at once with: homefires resume"


class Wish(Enum):
    """As in the names of the commands."""

    TRAIN = "resume"
    FINISH = "finish"
    """Train until this round's contribution is made, then pause."""
    PAUSE = "pause"


class Wishes:
    """The newest wish, and the newest verdict on the limits. `clock` gives Unix time."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.time
        self._wish = Wish.TRAIN
        self._snoozed_until: float | None = None
        self._verdict = Verdict()
        self._changing = threading.Lock()
        self.min_step_s = 0.0
        """What `settings.min_step_s` says."""

    @property
    def now(self) -> Wish:
        """What is wished."""
        return self._wish

    @property
    def holds(self) -> tuple[Hold, ...]:
        """Every reason not to train, the owner's own first; none: it may."""
        return (*self._owners_hold(), *self._verdict.holds)

    @property
    def slowing(self) -> tuple[Hold, ...]:
        """Why it computes only a part of the time; for a code that holds, that says why already."""
        held = {hold.code for hold in self._verdict.holds}
        return tuple(hold for hold in self._verdict.slowing if hold.code not in held)

    @property
    def pausing(self) -> bool:
        """Whether no further micro-batch is wished."""
        return bool(self.holds)

    @property
    def until(self) -> float | None:
        """Unix time at which the pause ends by itself; None if nobody knows, or if there is none."""
        return until_of(self.holds)

    @property
    def duty(self) -> float:
        """Share of the time in which to compute."""
        return self._verdict.duty

    def wish(self, wish: Wish) -> None:
        """Replace the wish before, and end a snooze."""
        with self._changing:
            self._wish, self._snoozed_until = wish, None

    def snooze(self, seconds: float) -> None:
        """Pause for so long; then train. Replaces the wish before."""
        with self._changing:
            self._wish, self._snoozed_until = Wish.TRAIN, self._clock() + seconds

    def take(self, settings: PeerSettings) -> None:
        """What of the settings concerns each step."""
        self.min_step_s = settings.min_step_s

    def judge(self, verdict: Verdict) -> None:
        """What the limits ask for from now on."""
        self._verdict = verdict

    def round_is_given(self) -> None:
        """This round's contribution is made: who wished to finish it pauses now."""
        with self._changing:  # a `resume` that comes meanwhile stands
            if self._wish is Wish.FINISH:
                self._wish = Wish.PAUSE

    def _owners_hold(self) -> tuple[Hold, ...]:
        snoozed_until = self._snoozed_until  # another thread may end it meanwhile
        if self._wish is Wish.PAUSE:
            return (Hold("PAUSED", PAUSED_WHY),)
        if snoozed_until is not None and self._clock() < snoozed_until:
            return (Hold("SNOOZED", SNOOZED_WHY, snoozed_until),)
        return ()
