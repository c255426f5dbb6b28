"""How far this machine's clock is from those of the nodes that it meets first.

hivemind drops a peer whose clock is more than 3 s off, without a word to it (`MAX_DHT_TIME_DISCREPANCY_SECONDS`): who
joins must hear of it before.
"""

from __future__ import annotations

import asyncio
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dht.addresses import peer_id_in
from dht.daemon import Daemon
from dht.errors import ClockOff, Unreachable

Clock = Callable[[], float]

TIME = "time"
"""Under this name every node gives its clock."""
MOST_S = 3.0
ASK_S = 3.0
ASK_MOST = 5

_QUESTION = bytes([len(TIME)]) + TIME.encode() + bytes(2)
_ANSWER = struct.Struct(">BId")
"""That there is one, its length, and Unix time in seconds."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one question came to."""

    ahead_s: float
    """By how much this machine's clock is ahead of the other's; negative if behind."""
    unsure_s: float
    """Half of the round trip."""

    @property
    def is_off(self) -> bool:
        return abs(self.ahead_s) - self.unsure_s > MOST_S


def pack_time(now_s: float) -> bytes:
    """What is given under `TIME`."""
    return struct.pack(">d", now_s)


async def require_right_clock(daemon: Daemon, protocol: str, addresses: Sequence[str], clock: Clock) -> None:
    """Compare with the nodes at these addresses, to which there is a connection. Raises ClockOff."""
    peers = list(dict.fromkeys(map(peer_id_in, addresses)))[:ASK_MOST]
    answers = await asyncio.gather(*(_read(daemon, protocol, peer, clock) for peer in peers))
    readings = [answer for answer in answers if answer is not None]
    if 2 * sum(reading.is_off for reading in readings) <= len(readings):
        return  # most agree with this machine, or nobody told the time
    ahead_s = statistics.median(reading.ahead_s for reading in readings)
    which = "the node" if len(readings) == 1 else f"{len(readings)} nodes"
    raise ClockOff(
        f"this machine's clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} that of {which} "
        f"asked, more than the {MOST_S:.0f} s that peers bear; set it with NTP (timedatectl set-ntp true), then start "
        "again"
    )


async def _read(daemon: Daemon, protocol: str, peer: str, clock: Clock) -> Reading | None:
    """None if the peer does not tell, such as one of an older client."""
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await daemon.open_stream(peer, protocol, ASK_S)
            try:
                asked_at, began = clock(), time.perf_counter()
                writer.write(_QUESTION)
                await writer.drain()
                has_it, size, theirs_s = _ANSWER.unpack(await reader.readexactly(_ANSWER.size))
            finally:
                writer.close()
    except (Unreachable, TimeoutError, EOFError, OSError):
        return None
    if (has_it, size) != (1, 8) or not abs(theirs_s) < float("inf"):
        return None
    half_s = (time.perf_counter() - began) / 2
    return Reading(asked_at + half_s - theirs_s, half_s)
