"""Measures the bandwidth to another node by asking it for bytes: no web service, a few seconds at most.

`probe` answers with as many bytes as were asked for. `probe-back` makes the other node send `probe` to us, which
measures our upload. A node gives little of its line to this: a limit per peer and minute, a limit for all, one
`probe-back` at a time, and nothing while it sends parts of a round.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dht.errors import Unreachable
from dht.streams.base import Questions
from dht.streams.rpc import RateLimit

PROBE, PROBE_BACK = "probe", "upload-probe"
SIZES_BYTES = (64 << 10, 512 << 10, 4 << 20)
"""One after the other until one of them takes `ENOUGH_S`."""
ENOUGH_S = 0.5
MOST_BYTES = SIZES_BYTES[-1]
PEER_BYTES = sum(SIZES_BYTES) * 2
"""What one peer gets in `WINDOW_S`: both directions once."""
ALL_BYTES = 2 * PEER_BYTES
"""Names cost nothing: this is what strangers together can take of a home line, 2.6 Mbit/s."""
WINDOW_S = 60.0
BACK_S = 15.0
"""One `probe-back` takes no longer."""

Clock = Callable[[], float]


def serve_probes(node: Questions, is_busy: Callable[[], bool] = lambda: False, clock: Clock = time.monotonic) -> None:
    one_at_a_time = asyncio.Lock()
    allowance = RateLimit(at_once=MOST_BYTES, each=PEER_BYTES, everybody=ALL_BYTES, window_s=WINDOW_S, clock=clock)

    async def give(peer: str, request: bytes) -> bytes | None:
        size_bytes = int.from_bytes(request, "big")
        if is_busy() or not allowance.grant(peer, size_bytes):
            return None
        return bytes(size_bytes)

    async def take(peer: str, request: bytes) -> bytes | None:
        size_bytes = int.from_bytes(request[:4], "big")
        if one_at_a_time.locked() or is_busy() or not allowance.grant(peer, size_bytes):
            return None
        async with one_at_a_time:
            try:
                async with asyncio.timeout(BACK_S):  # whoever gives slowly keeps all others waiting
                    seconds = await _fetch_s(node, peer, size_bytes, BACK_S, clock)
            except (Unreachable, TimeoutError):
                return None
        return None if seconds is None else struct.pack(">d", seconds)

    node.answer(PROBE, give)
    node.answer(PROBE_BACK, take)


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """Free bandwidth between this node and another, in megabits per second; None: not measured."""

    upload_mbps: float | None
    download_mbps: float | None


async def measure_bandwidth(
    node: Questions, peer: str, round_trip_s: float, limit_s: float, clock: Clock = time.monotonic
) -> Bandwidth:
    """Both directions, within `limit_s`. An older or a busy node gives None. The round trip is subtracted from the
    time of a request. A line faster than `MOST_BYTES` in a few milliseconds is underestimated: the question is only
    whether it can carry a round."""
    deadline = clock() + limit_s

    async def down(size_bytes: int) -> float | None:
        return await _fetch_s(node, peer, size_bytes, max(0.05, deadline - clock()), clock)

    download = await _mbps(down, round_trip_s, deadline - limit_s / 2, clock)
    upload = await measure_upload(node, peer, round_trip_s, deadline - clock(), clock)
    return Bandwidth(download_mbps=download, upload_mbps=upload)


async def measure_upload(
    node: Questions, peer: str, round_trip_s: float, limit_s: float, clock: Clock = time.monotonic
) -> float | None:
    """That direction alone, in megabits per second, which nobody else's line is asked to send for."""
    deadline = clock() + limit_s

    async def up(size_bytes: int) -> float | None:
        left_s = max(0.05, deadline - clock())
        told = await node.ask(peer, PROBE_BACK, left_s, 8, _sized(size_bytes))
        return None if told is None or len(told) != 8 else float(struct.unpack(">d", told)[0])

    return await _mbps(up, round_trip_s, deadline, clock)


async def _mbps(
    move: Callable[[int], Awaitable[float | None]], round_trip_s: float, deadline: float, clock: Clock
) -> float | None:
    """By the largest size for which there was time."""
    found: float | None = None
    for size_bytes in SIZES_BYTES:
        try:
            async with asyncio.timeout(max(0.05, deadline - clock())):
                seconds = await move(size_bytes)
        except (TimeoutError, Unreachable):
            return found
        if seconds is None or not 0 <= seconds < float("inf"):
            return found
        busy_s = max(seconds - round_trip_s, 1e-3)
        found = 8e-6 * size_bytes / busy_s
        if seconds >= ENOUGH_S:
            return found
    return found


async def _fetch_s(node: Questions, peer: str, size_bytes: int, timeout_s: float, clock: Clock) -> float | None:
    """Seconds until this many bytes had arrived; None if they were not given. Raises Unreachable."""
    asked_at = clock()
    given = await node.ask(peer, PROBE, timeout_s, MOST_BYTES, _sized(size_bytes))
    return clock() - asked_at if given is not None and len(given) == size_bytes else None


def _sized(size_bytes: int) -> bytes:
    return size_bytes.to_bytes(4, "big")
