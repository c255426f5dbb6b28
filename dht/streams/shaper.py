"""One direction of a peer's line: all traffic passes through this queue, so that it stays below the owner's limit.

`WeightedTurns` is self-clocked weighted fair queueing (Golestani 1994), once between lanes and once between the peers
of a lane. A lane that had less than its share goes first, so a few small frames never wait behind large ones. A lane
that wants more than its share delays the others by no more than that share.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Generic, TypeVar

T = TypeVar("T")
Clock = Callable[[], float]

CHUNK_BYTES = 64 * 2**10
"""Largest piece that is written or read at a time. Small enough that a peer whose line is shared by many takes or
gives it in time."""
SMALLEST_CHUNK_BYTES = 4 * 2**10
CHUNK_S = 0.02
"""A piece keeps a slow line for so long: what is more urgent waits for it."""
IDLE_MOST = 64
"""Peers of a lane that want nothing and are still remembered; beyond, those that are owed nothing are forgotten."""
BURST_S = 0.1
"""What a timer that fires late may let pass at once, so that the rate is kept."""
TIMER_S = 0.001


class Lane(IntEnum):
    """Kinds of traffic, the most urgent first."""

    CONTROL = 0
    """Small frames for which a round waits, and requests."""
    FLOW = 1
    """Activations and gradients between the homes of a cluster."""
    BULK = 2
    """Parts and means of a round."""
    TRANSFER = 3
    """Answers: downloads of newcomers."""


SHARES = {Lane.CONTROL: 256, Lane.FLOW: 16, Lane.BULK: 16, Lane.TRANSFER: 1}
"""Of the rate while all lanes want more than there is.

Flights and a round have half each. A cluster behind a home's line always has flights to send, and every member waits
for its parts: neither may have the most of the line, and both together take as long whoever goes first.
"""


class TokenBucket:
    """Lets `bytes_per_s` pass, and after a pause up to `burst_bytes` at once. In any time t at most `bytes_per_s` ·
    t + `burst_bytes` pass."""

    def __init__(self, bytes_per_s: float, burst_bytes: int, now_s: float) -> None:
        assert bytes_per_s > 0
        assert burst_bytes > 0
        self._bytes_per_s, self._burst_bytes = bytes_per_s, burst_bytes
        self._tokens, self._at_s = float(burst_bytes), now_s

    def wait_s(self, size_bytes: int, now_s: float) -> float:
        """Seconds until so many bytes may pass at once; 0 if they may pass now."""
        assert size_bytes <= self._burst_bytes, "it would wait for ever"
        self._fill(now_s)
        return max(0.0, (size_bytes - self._tokens) / self._bytes_per_s)

    def take(self, size_bytes: int, now_s: float) -> None:
        """The bytes pass; `wait_s` has said that they may."""
        self._fill(now_s)
        assert size_bytes <= self._tokens, "taken before its time"
        self._tokens -= size_bytes

    def _fill(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self._at_s)
        self._tokens = min(self._burst_bytes, self._tokens + passed_s * self._bytes_per_s)
        self._at_s += passed_s


class WeightedTurns(Generic[T]):
    """What waits, by lane and peer, and which piece is next."""

    def __init__(self) -> None:
        self._lanes: FairQueue[Lane] = FairQueue()
        self._peers: dict[Lane, FairQueue[str]] = {lane: FairQueue() for lane in Lane}
        self._waiting: dict[tuple[Lane, str], deque[tuple[int, T]]] = {}

    def put(self, lane: Lane, peer: str, size_bytes: int, item: T) -> None:
        """Wait behind what already waits in this lane for the same peer."""
        queue = self._waiting.setdefault((lane, peer), deque())
        queue.append((size_bytes, item))
        if len(queue) == 1:
            self._peers[lane].enter(peer, size_bytes)
        self._offer(lane)

    def first(self) -> tuple[int, T] | None:
        """(size in bytes, item) of what is next; None if nothing waits."""
        if not self._lanes:
            return None
        lane = self._lanes.first
        return self._waiting[lane, self._peers[lane].first][0]

    def pop(self) -> T:
        lane = self._lanes.first
        peer = self._peers[lane].first
        queue = self._waiting[lane, peer]
        _, item = queue.popleft()
        self._lanes.serve()
        self._peers[lane].serve()
        if queue:
            self._peers[lane].enter(peer, queue[0][0])
        else:
            del self._waiting[lane, peer]
        self._offer(lane)
        return item

    def _offer(self, lane: Lane) -> None:
        peers = self._peers[lane]
        if peers:
            size_bytes, _ = self._waiting[lane, peers.first][0]
            self._lanes.enter(lane, size_bytes / SHARES[lane])


K = TypeVar("K", Lane, str)


class FairQueue(Generic[K]):
    """Fair queueing in virtual time: each flow has its next piece, and the piece that ends first goes first."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ends: dict[K, float] = {}
        """When the last piece of each flow ends, in virtual time."""
        self._wanting: dict[K, float] = {}
        """How long the next piece of each waiting flow takes."""

    def __bool__(self) -> bool:
        return bool(self._wanting)

    @property
    def first(self) -> K:
        """The flow whose turn it is; of two that end together the smaller one."""
        return min(self._wanting, key=lambda key: (self._end(key), key))

    def enter(self, key: K, takes: float) -> None:
        """The next piece of a flow takes so long. A flow that wanted nothing saves nothing up."""
        if key not in self._wanting:
            self._ends[key] = max(self._ends.get(key, 0.0), self._now)
        self._wanting[key] = takes

    def serve(self) -> None:
        """The first flow has its turn, and wants nothing until it enters again."""
        key = self.first
        self._now = self._ends[key] = self._end(key)
        del self._wanting[key]
        if len(self._ends) > len(self._wanting) + IDLE_MOST:
            self._ends = {other: end for other, end in self._ends.items() if other in self._wanting or end > self._now}

    def _end(self, key: K) -> float:
        return self._ends[key] + self._wanting[key]


class Shaper:
    """Lets at most `bps` bits per second pass, 0 for no limit; urgent lanes first, peers of a lane in turn."""

    def __init__(self, bps: float = 0.0, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._turns: WeightedTurns[asyncio.Future[None]] = WeightedTurns()
        self._timer: asyncio.TimerHandle | None = None
        self._bucket: TokenBucket | None = None
        self.bps = 0.0
        self.chunk_bytes = CHUNK_BYTES
        """The size of a piece to write or read."""
        self._largest_bytes = 0
        """The largest piece that may wait here, cut under this limit or an earlier one."""
        self.allow(bps)

    def allow(self, bps: float) -> None:
        """Set another rate, also for what already waits; 0 for no limit."""
        if bps == self.bps:
            return
        self.bps = bps
        self._largest_bytes = max(self._largest_bytes, self.chunk_bytes) if self._turns.first() else 0
        if not bps:
            self._bucket, self.chunk_bytes = None, CHUNK_BYTES
        else:
            per_s = bps / 8
            self.chunk_bytes = min(CHUNK_BYTES, max(SMALLEST_CHUNK_BYTES, round(per_s * CHUNK_S)))
            burst_bytes = max(2 * self.chunk_bytes, round(per_s * BURST_S), self._largest_bytes)
            self._bucket = TokenBucket(per_s, burst_bytes, self._clock())
        if self._turns.first():
            self._let_pass()

    async def take(self, lane: Lane, peer: str, size_bytes: int) -> None:
        """Return when so many bytes to or from a peer may pass."""
        while size_bytes > 0 and self._bucket is not None:
            piece = min(size_bytes, self.chunk_bytes)
            size_bytes -= piece
            turn = asyncio.get_running_loop().create_future()
            self._turns.put(lane, peer, piece, turn)
            self._let_pass()
            await turn

    def _let_pass(self) -> None:
        """Let those pass whose turn it is, and come back for the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (first := self._turns.first()) is not None:
            size, turn = first
            now = self._clock()
            wait_s = 0.0 if turn.cancelled() or self._bucket is None else self._bucket.wait_s(size, now)
            if wait_s > 0:
                self._timer = asyncio.get_running_loop().call_later(max(wait_s, TIMER_S), self._let_pass)
                return
            self._turns.pop()
            if turn.cancelled():
                continue
            if self._bucket is not None:
                self._bucket.take(size, now)
            turn.set_result(None)
