"""How much strangers may have of something, each of them and all together: names cost nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Clock = Callable[[], float]


class RateLimit:
    """At most `at_once`, in any `window_s` at most `each` for one name and `everybody` for all."""

    def __init__(self, *, at_once: int, each: int, everybody: int, window_s: float, clock: Clock) -> None:
        self._at_once, self._each, self._everybody = at_once, each, everybody
        self._window_s, self._clock = window_s, clock
        self._given: deque[tuple[float, str, int]] = deque()

    def grant(self, peer: str, amount: int) -> bool:
        """Whether this peer may have so much now; counted if so."""
        now = self._clock()
        while self._given and now - self._given[0][0] >= self._window_s:
            self._given.popleft()
        mine = sum(given for _, who, given in self._given if who == peer)
        everyone = sum(given for _, _, given in self._given)
        if not 0 < amount <= self._at_once or mine + amount > self._each or everyone + amount > self._everybody:
            return False
        self._given.append((now, peer, amount))
        return True
