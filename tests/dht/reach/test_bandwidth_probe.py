"""What is measured of a line, and how little of it strangers get."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dht.errors import Unreachable
from dht.reach.bandwidth_probe import (
    ALL_BYTES,
    MOST_BYTES,
    PEER_BYTES,
    PROBE_BACK,
    SIZES_BYTES,
    WINDOW_S,
    Bandwidth,
    measure_bandwidth,
    serve_probes,
)
from dht.streams.rpc import RateLimit
from peer.testing.child_process import HANG_S

Answer = Callable[[str, bytes], Awaitable[bytes | None]]
TRIP_S = 0.04


class Clock:
    """Stands still unless something is sent."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Pair:
    """One end of two nodes whose lines have these speeds, in megabits per second."""

    def __init__(self, name: str, clock: Clock, upload_mbps: float) -> None:
        self.name, self._clock, self._upload_mbps = name, clock, upload_mbps
        self.answers: dict[str, Answer] = {}
        self.other: Pair | None = None

    def answer(self, name: str, answer: Answer) -> None:
        self.answers[name] = answer

    async def ask(
        self, peer_id: str, name: str, timeout_s: float, max_bytes: int = 0, request: bytes = b""
    ) -> bytes | None:
        assert self.other is not None
        assert self.other.name == peer_id
        if name not in self.other.answers:
            return None
        self._clock.now += TRIP_S
        given = await self.other.answers[name](self.name, request)
        self._clock.now += len(given or b"") * 8e-6 / self.other._upload_mbps
        await asyncio.sleep(0)
        return given


def pair(clock: Clock, upload_mbps: float, download_mbps: float) -> tuple[Pair, Pair]:
    me, other = Pair("me", clock, upload_mbps), Pair("other", clock, download_mbps)
    me.other, other.other = other, me
    return me, other


@pytest.mark.parametrize(("up", "down"), [(0.4, 3.0), (20.0, 100.0), (5.0, 0.6)])
async def test_both_directions_are_measured(up: float, down: float) -> None:
    """Whatever the round trip: it is taken off."""
    clock = Clock()
    me, other = pair(clock, up, down)
    serve_probes(other, clock=clock)
    serve_probes(me, clock=clock)
    speed = await measure_bandwidth(me, "other", TRIP_S, 60.0, clock)
    assert speed.upload_mbps == pytest.approx(up, rel=0.03)
    assert speed.download_mbps == pytest.approx(down, rel=0.03)


async def test_who_does_not_serve_is_not_measured() -> None:
    """An older node has nothing under this name; one that is busy gives nothing."""
    clock = Clock()
    me, other = pair(clock, 10.0, 10.0)
    nothing = Bandwidth(upload_mbps=None, download_mbps=None)
    assert await measure_bandwidth(me, "other", TRIP_S, 10.0, clock) == nothing
    serve_probes(other, is_busy=lambda: True, clock=clock)
    assert await measure_bandwidth(me, "other", TRIP_S, 10.0, clock) == nothing


async def test_a_node_that_falls_silent_costs_no_more_than_the_limit() -> None:
    class Silent(Pair):
        async def ask(self, *about: object, **more: object) -> bytes | None:
            raise Unreachable("it did not answer")

    found = await measure_bandwidth(Silent("me", Clock(), 1.0), "other", TRIP_S, 10.0)
    assert found == Bandwidth(upload_mbps=None, download_mbps=None)


async def test_who_gives_slowly_keeps_nobody_else_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `probe-back` has its turn alone, and an answer that has begun may come at 4 KiB/s: 17 minutes of it."""
    monkeypatch.setattr("dht.reach.bandwidth_probe.BACK_S", 0.05)

    class Trickle(Pair):
        async def ask(self, *about: object, **more: object) -> bytes | None:
            return await asyncio.get_running_loop().create_future()

    node = Trickle("node", Clock(), 1.0)
    serve_probes(node)
    for peer in ("slow", "next"):
        async with asyncio.timeout(HANG_S):
            assert await node.answers[PROBE_BACK](peer, SIZES_BYTES[0].to_bytes(4, "big")) is None


def test_strangers_get_little() -> None:
    """So much each and minute, so much together, and nothing of an odd size."""
    clock = Clock()
    allowance = RateLimit(at_once=MOST_BYTES, each=PEER_BYTES, everybody=ALL_BYTES, window_s=WINDOW_S, clock=clock)
    assert not allowance.grant("odd", 0)
    assert not allowance.grant("odd", MOST_BYTES + 1)
    given = sum(allowance.grant("one", MOST_BYTES) for _ in range(10))
    assert given == PEER_BYTES // MOST_BYTES
    others = sum(MOST_BYTES * allowance.grant(f"peer {number}", MOST_BYTES) for number in range(1000))
    assert others + given * MOST_BYTES <= ALL_BYTES
    assert not allowance.grant("late", MOST_BYTES)
    clock.now += WINDOW_S
    assert all(allowance.grant("one", size) for size in SIZES_BYTES)
