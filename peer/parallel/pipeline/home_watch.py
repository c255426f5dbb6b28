"""How long a lead waits for its homes, and when it takes one for lost."""

from __future__ import annotations

import time
from collections.abc import Sequence

from peer.parallel.pipeline.flight_messages import Alive
from peer.parallel.pipeline.home_group import SilentHome

LOST_RESENDS = 5
"""If a flight was sent this often and has not come back, a home that is alive does not pass it on."""


class HomeWatch:
    """Watches homes during one wait; it begins anew when something awaited has arrived."""

    def __init__(self, homes: Sequence[str], silence_s: float) -> None:
        """`homes` are those from which something is expected, in the order of their stages."""
        self._homes, self._silence_s = homes, silence_s
        self._began = time.monotonic()
        self._heard_at = dict.fromkeys(homes, self._began)
        self._said: dict[str, Alive] = {}
        self.resends = 0

    def hear(self, sender: str, message: object) -> None:
        if sender in self._heard_at:
            self._heard_at[sender] = time.monotonic()
            if isinstance(message, Alive):
                self._said[sender] = message

    def require_alive(self, flight: int = 0) -> None:
        """Raises SilentHome for a home that is lost; `flight` is the number of the awaited flight."""
        now = time.monotonic()
        for home, heard_at in self._heard_at.items():
            if now - heard_at > self._silence_s:
                raise SilentHome(home, f"has sent nothing for {self._silence_s:.0f} s")
        if self.resends >= LOST_RESENDS and now - self._began > self._silence_s:
            why = f"does not pass on a flight that was sent {self.resends} times in {now - self._began:.0f} s"
            raise SilentHome(self._stopped_by(flight), why)

    def _stopped_by(self, flight: int) -> str:
        for home in self._homes:
            if home not in self._said or self._said[home].forwards <= flight:
                return home
        stuck = [home for home in self._homes if self._said[home].backwards <= flight]
        return stuck[-1] if stuck else self._homes[0]
