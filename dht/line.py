"""One direction of a peer's line: whatever passes has its turn here first, so that it stays below the owner's cap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from dht.bucket import CHUNK_BYTES, CHUNK_S, SMALLEST_CHUNK_BYTES, Bucket, Lane, Turns

BURST_S = 0.1
"""What a timer that fires late may let pass at once, so that the rate is kept."""
TIMER_S = 0.001

Clock = Callable[[], float]


class Line:
    """Lets at most `bps` bits per second pass, 0 for no cap; what is urgent first, peers of a lane in turn."""

    def __init__(self, bps: float = 0.0, clock: Clock = time.monotonic) -> None:
        self.bps = bps
        self._clock = clock
        self._turns: Turns[asyncio.Future[None]] = Turns()
        self._timer: asyncio.TimerHandle | None = None
        self._bucket: Bucket | None = None
        self.chunk_bytes = CHUNK_BYTES
        """What is to be written or read at a time."""
        if bps:
            per_s = bps / 8
            self.chunk_bytes = min(CHUNK_BYTES, max(SMALLEST_CHUNK_BYTES, round(per_s * CHUNK_S)))
            self._bucket = Bucket(per_s, max(2 * self.chunk_bytes, round(per_s * BURST_S)), clock())

    async def take(self, lane: Lane, peer: str, size_bytes: int) -> None:
        """Return when so many bytes to or from a peer may pass."""
        if self._bucket is None:
            return
        while size_bytes > 0:
            piece = min(size_bytes, self.chunk_bytes)
            size_bytes -= piece
            turn = asyncio.get_running_loop().create_future()
            self._turns.put(lane, peer, piece, turn)
            self._let_pass()
            await turn

    def _let_pass(self) -> None:
        """Give those their turn who may have it now, and come back for the next."""
        assert self._bucket is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (first := self._turns.first()) is not None:
            size, turn = first
            now = self._clock()
            wait_s = 0.0 if turn.cancelled() else self._bucket.wait_s(size, now)
            if wait_s > 0:
                self._timer = asyncio.get_running_loop().call_later(max(wait_s, TIMER_S), self._let_pass)
                return
            self._turns.pop()
            if not turn.cancelled():
                self._bucket.take(size, now)
                turn.set_result(None)
