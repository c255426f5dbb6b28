"""What the network panel shows: this link's traffic, with whom, over which connections."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

from dht.addresses import CIRCUIT, are_loopback
from dht.errors import Unreachable
from dht.traffic import Tally, Traffic
from peer.events import NetworkMeasured

EVERY_S = 10.0
AT_LEAST_EVERY_S = 60.0
PEERS_MOST = 64
"""Rows in one event: those of the peers that were active last."""
ROUND_TRIP_EVERY_S = 60.0
ROUND_TRIP_S = 2.0
"""Who has not answered by then is not measured."""
ROUND_TRIPS = 4
"""At a time."""

DIRECT, RELAYED, UNKNOWN = "direct", "relayed", ""


class Metered(Protocol):
    """What is measured; `dht.node.Node` is one."""

    @property
    def tally(self) -> Tally: ...
    @property
    def upload_bps(self) -> int: ...
    @property
    def relays(self) -> tuple[str, ...]: ...
    async def addresses(self) -> tuple[str, ...]: ...
    async def connections(self) -> dict[str, str]: ...
    async def round_trip_s(self, peer_id: str, timeout_s: float) -> float: ...


class Room(Protocol):
    """What the chain takes; `peer.averaging.chain.ChainOnDisk` is one."""

    @property
    def disk_bytes(self) -> int: ...
    @property
    def quota_bytes(self) -> int: ...


class NetworkMeter:
    """Looks every EVERY_S, less often with many peers, and says what has changed, or the same once a minute."""

    def __init__(
        self, node: Metered, room: Room, say: Callable[[NetworkMeasured], None], is_exchanging: Callable[[], bool]
    ) -> None:
        self._node, self._room, self._say, self._is_exchanging = node, room, say, is_exchanging
        self._said: NetworkMeasured | None = None
        self._said_at = 0.0
        self._round_trips: dict[str, tuple[float, float | None]] = {}
        """By peer, when it was asked and how long its answer took."""

    async def follow(self) -> None:
        """For ever."""
        while True:
            rows = await self.look(time.monotonic())
            await asyncio.sleep(max(EVERY_S, min(rows, AT_LEAST_EVERY_S)))

    async def look(self, now: float) -> int:
        """Measure, and say it if it is news or long ago. Returns how many peers there are to tell of."""
        with suppress(Unreachable):
            measured = await self._measure(now)
            if measured != self._said or now - self._said_at >= AT_LEAST_EVERY_S:
                self._said, self._said_at = measured, now
                self._say(measured)
        return 0 if self._said is None else len(self._said.peers)

    async def _measure(self, now: float) -> NetworkMeasured:
        connections = await self._node.connections()
        await self._time_round_trips(connections, now)
        addresses, tally = await self._node.addresses(), self._node.tally
        last = dict.fromkeys([*reversed(tally.peers), *connections])
        return NetworkMeasured(
            addresses=list(addresses), reach=reach_of(addresses, self._node.relays), bytes_sent=tally.total.sent,
            bytes_received=tally.total.received,
            peers=[self._row(peer, connections.get(peer, "")) for peer in list(last)[:PEERS_MOST]],
            disk_bytes=self._room.disk_bytes, disk_quota_bytes=self._room.quota_bytes,
            upload_bps=self._node.upload_bps,
        )  # fmt: skip

    def _row(self, peer: str, address: str) -> dict[str, Any]:
        traffic = self._node.tally.peers.get(peer, Traffic())
        _, round_trip_s = self._round_trips.get(peer, (0.0, None))
        return {
            "peer": peer, "address": address, "relayed": CIRCUIT in address, "bytes_sent": traffic.sent,
            "bytes_received": traffic.received, "rtt_s": round_trip_s if address else None,
        }  # fmt: skip

    async def _time_round_trips(self, connected: Iterable[str], now: float) -> None:
        """A few peers at a time, never while parts are exchanged: it would be felt, and measure the queue."""
        self._round_trips = {peer: self._round_trips.get(peer, (float("-inf"), None)) for peer in connected}
        if self._is_exchanging():
            return
        due = sorted((at, peer) for peer, (at, _) in self._round_trips.items() if now - at >= ROUND_TRIP_EVERY_S)
        peers = [peer for _, peer in due[:ROUND_TRIPS]]
        answers = await asyncio.gather(*(self._round_trip_s(peer) for peer in peers))
        self._round_trips |= {peer: (now, answer) for peer, answer in zip(peers, answers, strict=True)}

    async def _round_trip_s(self, peer: str) -> float | None:
        try:
            return round(await self._node.round_trip_s(peer, ROUND_TRIP_S), 4)
        except Unreachable:
            return None


def reach_of(addresses: Iterable[str], relays: Iterable[str] = ()) -> str:
    """How others come to a peer that is dialled at these addresses, or through `relays`; empty if that does not tell.

    A daemon that nobody could dial directly announces addresses of relays. Private addresses alone say nothing:
    peers of the same house dial them.
    """
    known = list(addresses)
    if any(CIRCUIT in address for address in known) or (not known and any(relays)):
        return RELAYED
    if known and (are_loopback(known) or any(_is_global(address) for address in known)):
        return DIRECT
    return UNKNOWN


def _is_global(address: str) -> bool:
    _, kind, host, *_ = address.split("/")
    return kind.startswith("dns") or ipaddress.ip_address(host).is_global
