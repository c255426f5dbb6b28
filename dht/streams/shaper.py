"""One direction of a peer's line: whatever passes has its turn here first, so that it stays below the owner's cap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from dht.streams.token_bucket import CHUNK_BYTES, CHUNK_S, SMALLEST_CHUNK_BYTES, Lane, TokenBucket, WeightedTurns

BURST_S = 0.1
"""What a timer that fires late may let pass at once, so that the rate is kept."""
TIMER_S = 0.001

Clock = Callable[[], float]


class Shaper:
    """Lets at most `bps` bits per second pass, 0 for no cap; what is urgent first, peers of a lane in turn."""

    def __init__(self, bps: float = 0.0, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._turns: WeightedTurns[asyncio.Future[None]] = WeightedTurns()
        self._timer: asyncio.TimerHandle | None = None
        self._bucket: TokenBucket | None = None
        self.bps = 0.0
        self.chunk_bytes = CHUNK_BYTES
        """What is to be written or read at a time."""
        self._largest_bytes = 0
        """Of the pieces that may wait here, cut under this cap or an earlier one."""
        self.allow(bps)

    def allow(self, bps: float) -> None:
        """Another rate from now on, also for what waits here already; 0 for no cap."""
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
        """Give those their turn who may have it now, and come back for the next."""
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
