"""Counts the bytes sent to and received from each peer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

PEERS_MOST = 256
"""Peer ids cost nothing, so only so many are remembered: those that were active last."""


@dataclass(slots=True)
class PeerTraffic:
    """Bytes between this peer and another."""

    sent: int = 0
    received: int = 0


class TrafficCounter:
    """Counts by peer and in total. The bytes of forgotten peers stay in the total."""

    def __init__(self, most: int = PEERS_MOST) -> None:
        self.total = PeerTraffic()
        self._most = most
        self._peers: dict[str, PeerTraffic] = {}

    @property
    def peers(self) -> MappingProxyType[str, PeerTraffic]:
        """By peer id; the most recently active last."""
        return MappingProxyType(self._peers)

    def add(self, peer: str, *, sent: int = 0, received: int = 0) -> None:
        """Count bytes to or from `peer`."""
        self._peers[peer] = found = self._peers.pop(peer, None) or PeerTraffic()
        for traffic in (found, self.total):
            traffic.sent += sent
            traffic.received += received
        if len(self._peers) > self._most:
            del self._peers[next(iter(self._peers))]


BUFFERED_BYTES = 2**20
"""What a socket, the daemon and a stream's window may hold of what goes to one peer."""
PAUSE_S = 0.1
"""Whoever makes the next frame takes less. Buffers that had longer than that are taken to be empty."""
WINDOW_S, WINDOW_BYTES = 0.5, 16 * 2**20
"""One value is made of so many seconds of sending, or of so many bytes if those are sent sooner."""
REMEMBERED_BYTES = 64 * 2**20
"""The newest, of which the median counts. By bytes, not by time: what one slow receiver takes alone when the others
have theirs lasts long, and says nothing of the line."""
FASTEST_BPS = 100_000_000
"""More is not told apart: beyond, what is seen on a busy machine is its processor, and shares that follow such noise
cost more than they gain. Ours."""

Clock = Callable[[], float]


class UplinkEstimator:
    """Is told of every large write, and estimates the bandwidth of the line from it."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._writers = 0
        self._paused_at = float("-inf")
        self._buffered: dict[str, int] = {}
        """By peer, bytes since the pause that may still lie in buffers."""
        self._counted_bytes, self._counted_s = 0, 0.0
        self._since: float | None = None
        """When the open window began; None while buffers are filled."""
        self._windows: deque[tuple[float, int]] = deque()
        """(bits per second, bytes), the oldest first."""
        self._remembered_bytes = 0

    @property
    def bps(self) -> float | None:
        """Bits per second, at most FASTEST_BPS; None before there was enough to measure."""
        return min(_median(self._windows), FASTEST_BPS) if self._windows else None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """While a large frame is written; several may be written at the same time."""
        if not self._writers and self._clock() - self._paused_at > PAUSE_S:
            self._buffered.clear()
            self._since = None
        self._writers += 1
        try:
            yield
        finally:
            self._writers -= 1
            if not self._writers:
                self._paused_at = self._clock()

    def wrote(self, peer: str, size_bytes: int) -> None:
        now = self._clock()
        if self._buffered.get(peer, 0) < BUFFERED_BYTES:
            self._buffered[peer] = self._buffered.get(peer, 0) + size_bytes
            if self._since is None and self._buffered[peer] >= BUFFERED_BYTES:
                self._since = now
            return
        assert self._since is not None
        self._counted_bytes += size_bytes
        self._counted_s += now - self._since
        self._since = now
        if self._counted_s < WINDOW_S and self._counted_bytes < WINDOW_BYTES:
            return
        if self._counted_s > 0:
            self._remember(8 * self._counted_bytes / self._counted_s, self._counted_bytes)
        self._counted_bytes, self._counted_s = 0, 0.0

    def _remember(self, bps: float, size_bytes: int) -> None:
        self._windows.append((bps, size_bytes))
        self._remembered_bytes += size_bytes
        while self._remembered_bytes - self._windows[0][1] >= REMEMBERED_BYTES:
            self._remembered_bytes -= self._windows.popleft()[1]


def _median(windows: Iterable[tuple[float, int]]) -> float:
    ranked = sorted(windows)
    half, below = sum(size for _, size in ranked) / 2, 0
    for bps, size in ranked:
        below += size
        if below >= half:
            return bps
    raise AssertionError("there is a window")
