"""Limits how much of a node's upload goes to peers to which it owes nothing: each of them, and all together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MINUTE_S = 60.0
STRANGERS_SHARE = 0.1
"""Of the line, for all of them together."""
AHEAD_S = 10.0
"""They may have had so much of their share ahead of time; of the second half those who have had nothing lately."""


@dataclass
class _Given:
    """Bytes that were given lately."""

    size_bytes: float
    at: float

    def left(self, now: float, bytes_per_s: float) -> float:
        self.size_bytes = max(0.0, self.size_bytes - (now - self.at) * bytes_per_s)
        self.at = now
        return self.size_bytes


class AnswerBudget:
    """Limits the answers to strangers, each and all together, so that they do not slow a round. `most_bytes` is what
    one gets in a minute, `upload_bps` the bandwidth of the line, 0 while that is unknown. Peers that are `is_free`
    are not counted."""

    def __init__(
        self, clock: Callable[[], float], most_bytes: Callable[[], float], is_free: Callable[[str], bool],
        upload_bps: Callable[[], float] = lambda: 0.0,
    ) -> None:  # fmt: skip
        self._clock, self._most_bytes, self._is_free, self.upload_bps = clock, most_bytes, is_free, upload_bps
        self._each: dict[str, _Given] = {}
        self._all = _Given(0.0, clock())

    def has_room_for(self, peer: str) -> bool:
        """Whether it may have an answer now, however large: what is too much delays its next ones."""
        if self._is_free(peer):
            return True
        now, room = self._clock(), self._room_each(peer)
        self._each = {other: given for other, given in self._each.items() if given.left(now, room / MINUTE_S)}
        if peer in self._each and self._each[peer].size_bytes >= room:
            return False
        ahead = self._bytes_per_s * AHEAD_S
        return not ahead or self._all.left(now, self._bytes_per_s) < (ahead / 2 if peer in self._each else ahead)

    def give(self, peer: str, size_bytes: int) -> None:
        if not self._is_free(peer):
            self._each.setdefault(peer, _Given(0.0, self._clock())).size_bytes += size_bytes
            self._all.size_bytes += size_bytes

    @property
    def _bytes_per_s(self) -> float:
        return STRANGERS_SHARE * self.upload_bps() / 8

    def _room_each(self, peer: str) -> float:
        """Bytes a minute for each: equal for all that had an answer in the last minute."""
        most = self._most_bytes()
        askers = len(self._each.keys() | {peer})
        return min(most, self._bytes_per_s * MINUTE_S / askers or most)
