"""How long a peer could make no inner step, for whatever reason but its owner's."""

from __future__ import annotations

import time


class ExposedTime:
    """A clock that runs while no inner step can be made: waiting, writing, applying, measuring.

    Neither a pause nor a rest that the owner wants is exposed, whatever is done meanwhile.
    """

    def __init__(self) -> None:
        self._before_s = 0.0
        self._since: float | None = None
        self._rests_until = 0.0

    @property
    def seconds(self) -> float:
        """All that was exposed in this life so far."""
        if self._since is None:
            return self._before_s
        return self._before_s + max(0.0, time.monotonic() - max(self._since, self._rests_until))

    def begin(self) -> None:
        """From now on no step can be made. Said again it changes nothing."""
        if self._since is None:
            self._since = time.monotonic()

    def end(self) -> None:
        """From now on steps can be made."""
        self._before_s, self._since = self.seconds, None

    def add(self, seconds: float) -> None:
        """A step was made, and stood still for so long meanwhile."""
        self._before_s += seconds

    def rest(self, until: float) -> None:
        """Up to then, by the monotonic clock, no step would be made in any case. Said while the clock stands."""
        assert self._since is None, "a rest begins with a step"
        self._rests_until = until
