"""Measures how far this machine's clock is from those of other nodes.

hivemind silently drops a peer whose clock is more than 3 s off (`MAX_DHT_TIME_DISCREPANCY_SECONDS`), so a newcomer must
be told before it joins. A clock that goes wrong later does as much harm: the machine's records expire before others
read them, or it takes fresh records of others for expired. So the clock is compared again after every jump, for
example when a laptop wakes up, and every ten minutes.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from dht.errors import ClockOff, Unreachable
from dht.streams.base import Asking

Clock = Callable[[], float]

TIME = "time"
"""Under this name every node gives its clock."""
MOST_S = 3.0
ASK_S = 3.0
ASK_MOST = 5
"""At the start."""
LOOK_S = 5.0
"""A jump is noticed so soon."""
JUMP_S = 1.0
"""A clock that has moved so far against the one that only counts seconds was set, or its machine has slept."""
COMPARE_S = 600.0
"""One that has not jumped is compared so often."""
WITNESSES = 2
"""So many must disagree with a clock that has not jumped: of two machines either may be wrong."""

_TIME = struct.Struct(">d")
"""Unix time in seconds."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of asking one node for its time."""

    ahead_s: float
    """How far this machine's clock is ahead of the other's, in seconds; negative if it is behind."""
    unsure_s: float
    """Half of the round trip."""

    @property
    def is_off(self) -> bool:
        return abs(self.ahead_s) - self.unsure_s > MOST_S


def pack_time(now_s: float) -> bytes:
    return _TIME.pack(now_s)


class ClockWatch:
    """Says when a clock that was right must be compared again. Both clocks are in seconds; `steady` never jumps."""

    def __init__(self, wall: Clock, steady: Clock) -> None:
        self._wall, self._steady = wall, steady
        self.compared(self.now())

    def now(self) -> tuple[float, float]:
        """How far wall clock and steady clock are apart, and when that was read."""
        return self._wall() - self._steady(), self._steady()

    def compared(self, then: tuple[float, float]) -> None:
        """The clock was right then; later jumps are still to be compared."""
        self._apart_s, self._at_s = then

    @property
    def has_jumped(self) -> bool:
        return abs(self._wall() - self._steady() - self._apart_s) > JUMP_S

    @property
    def is_due(self) -> bool:
        return self.has_jumped or self._steady() - self._at_s >= COMPARE_S


async def require_right_clock(asker: Asking, peers: Sequence[str], clock: Clock, least: int = 1) -> bool:
    """Compare with these peers, if they are connected; returns whether any of them told the time. Raises ClockOff if
    most of those that did, and at least this many, are too far from `clock`."""
    readings = await read_clocks(asker, peers, clock)
    if len(readings) < least or 2 * sum(reading.is_off for reading in readings) <= len(readings):
        return bool(readings)
    ahead_s = statistics.median(reading.ahead_s for reading in readings)
    which = "the node" if len(readings) == 1 else f"{len(readings)} nodes"
    raise ClockOff(
        f"this machine's clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} that of {which} "
        f"asked, more than the {MOST_S:.0f} s that peers bear; set it with NTP (timedatectl set-ntp true)"
    )


async def read_clocks(asker: Asking, peers: Sequence[str], clock: Clock) -> list[Reading]:
    """Readings of the nodes that tell their time; older clients do not."""
    answers = await asyncio.gather(*(_read(asker, peer, clock) for peer in peers))
    return [answer for answer in answers if answer is not None]


async def _read(asker: Asking, peer: str, clock: Clock) -> Reading | None:
    asked_at, began = clock(), time.perf_counter()
    try:
        answer = await asker.ask(peer, TIME, ASK_S, _TIME.size)
    except Unreachable:
        return None
    half_s = (time.perf_counter() - began) / 2
    if answer is None or len(answer) != _TIME.size:
        return None
    (theirs_s,) = _TIME.unpack(answer)
    return Reading(asked_at + half_s - theirs_s, half_s) if math.isfinite(theirs_s) else None


class Connected(Protocol):
    """A node with a clock and connections: `dht.node.Node`."""

    async def connections(self) -> dict[str, str]: ...
    async def compare_clocks(self, peers: Sequence[str], least: int) -> bool: ...


async def watch_clock(node: Connected, others: Callable[[], Iterable[str]], watch: ClockWatch) -> None:
    """Returns never; raises ClockOff once the clock is wrong. It asks all connected peers among `others`: the
    members of the round, and the nodes of the invite. Any other peer, or a few of them, might hold peers up by lying
    about the time."""
    while True:
        await asyncio.sleep(LOOK_S)
        if not watch.is_due:
            continue
        then = watch.now()
        connected: Iterable[str] = ()
        with suppress(Unreachable):
            connected = await node.connections()
        near = sorted(set(others()) & set(connected))
        if await node.compare_clocks(near, least=1 if watch.has_jumped else WITNESSES):
            watch.compared(then)
