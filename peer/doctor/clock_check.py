"""Whether this machine's clock is right: records carry times, and those of a peer that is off are refused."""

from __future__ import annotations

import math
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from dht.errors import ClockOff, Unreachable
from peer.doctor.check import Check, failed, passed, unknown, warned

TIME = "time"
"""Under this name every node gives its Unix time."""
ASK_S = 3.0
MOST_SKEW_S = 3.0
"""Records of a peer whose clock differs by more are refused (hivemind's `MAX_DHT_TIME_DISCREPANCY_SECONDS`)."""
SKEW_S = 1.0

_TIME = struct.Struct(">d")


class Asking(Protocol):
    """Who is asked; `dht.node.Node` is one."""

    async def ask(
        self, peer_id: str, name: str, timeout_s: float, max_bytes: int = ..., request: bytes = ...
    ) -> bytes | None: ...


async def measure_skew_s(node: Asking, peers: Sequence[str], clock: Callable[[], float] = time.time) -> float | None:
    """By how many seconds this machine's clock is ahead of the others', the median; None if none told.

    The one place where the doctor looks at clocks; `check_clock` says what it means.
    """
    told = [await _ahead_s(node, peer, clock) for peer in peers]
    known = [ahead_s for ahead_s in told if ahead_s is not None]
    return statistics.median(known) if known else None


async def _ahead_s(node: Asking, peer: str, clock: Callable[[], float]) -> float | None:
    """Unsure by half a round trip. An older node has no answer."""
    before = clock()
    try:
        answer = await node.ask(peer, TIME, ASK_S, _TIME.size)
    except Unreachable:
        return None
    after = clock()
    if answer is None or len(answer) != _TIME.size:
        return None
    ahead_s = (before + after) / 2 - float(_TIME.unpack(answer)[0])
    return ahead_s if math.isfinite(ahead_s) else None


def check_clock(skew_s: float | None) -> Check:
    """Records carry times, so clocks must agree within seconds."""
    if skew_s is None:
        return unknown("clock", "no node told its time")
    way = "ahead of" if skew_s > 0 else "behind"
    found = f"this clock is {abs(skew_s):.1f} s {way} the others'"
    fix = "set the clock: sudo timedatectl set-ntp true"
    if abs(skew_s) > MOST_SKEW_S:
        return failed("clock", f"{found}; more than {MOST_SKEW_S:.0f} s is refused", fix, ClockOff, skew_s=skew_s)
    if abs(skew_s) > SKEW_S:
        return warned("clock", found, fix, skew_s=skew_s)
    return passed("clock", f"within {max(0.1, abs(skew_s)):.1f} s of the others'", skew_s=skew_s)
