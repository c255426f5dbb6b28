"""Rests between micro-batches: what the duty asks for, and not a moment longer than its owner does."""

from __future__ import annotations

import time
from collections.abc import Callable

from peer.control.desired_state import DesiredState
from peer.limits.governor import rest_s

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
