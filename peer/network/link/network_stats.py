"""The figures of the dashboard's Network screen: this link's traffic, its peers, and its connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgpack

from dht.addresses import CIRCUIT, are_loopback, is_global
from dht.errors import Unreachable
from dht.node import Node
from dht.reach.dial_back import port_of, request_dial_back
from dht.streams.traffic import PeerTraffic
from peer.node.store.chain import ChainStore
from peer.schema.events import NetworkMeasured, RoundTripsReported

EVERY_S = 10.0
AT_LEAST_EVERY_S = 60.0
PEERS_MOST = 64
"""Rows in one event: those of the peers that were active last."""
ROUND_TRIP_EVERY_S = 60.0
ROUND_TRIP_S = 2.0
"""Who has not answered by then is not measured."""
ROUND_TRIPS = 4
"""At a time."""
DISTANCES_EVERY_S = 300.0
"""Each peer is asked for its distances to others so often, one at a time."""
KNOCK_EVERY_S = 60.0
KNOCK_AGAIN_S = 1800.0
"""Once it is known."""
REFUSALS = 3
"""So many in a row that could not connect are believed, all of them if there are fewer; one that could is."""

DIRECT, RELAYED, UNKNOWN = "direct", "relayed", ""


class NetworkStats:
    """Looks every EVERY_S, less often with many peers, and reports what has changed, or the same once a minute."""

    def __init__(
        self, node: Node, disk: ChainStore, say: Callable[[NetworkMeasured | RoundTripsReported], None],
        is_exchanging: Callable[[], bool], is_heard: Callable[[str], bool], organiser: str = "",
    ) -> None:  # fmt: skip
        self._node, self._disk, self._say, self._is_exchanging = node, disk, say, is_exchanging
        self._is_heard, self._organiser = is_heard, organiser
        """Whether a peer itself says that it takes part: others are told only of those."""
        self._said: NetworkMeasured | None = None
        self._said_at = 0.0
        self._timed_at: dict[str, float] = {}
        """When each peer was asked for a round trip."""
        self._distances = RoundTrips()
        self._told_at: dict[str, float] = {}
        """When each peer was asked for its distances."""
        self._reached: bool | None = None
        """Whether a peer outside this network could connect; None: none has said."""
        self._knock_at, self._knocks = float("-inf"), 0
        self._refused: set[str] = set()
        """Peers that could not connect since the last that could."""

    async def follow(self) -> None:
        self._node.answer(DISTANCES, self._give)
        while True:
            rows = await self.look(time.monotonic())
            await asyncio.sleep(max(EVERY_S, min(rows, AT_LEAST_EVERY_S)))

    async def look(self, now: float) -> int:
        """Measure, and report if the result is news or the last report is old. Returns the number of peers to
        report."""
        with suppress(Unreachable):
            measured = await self._measure(now)
            if measured != self._said or now - self._said_at >= AT_LEAST_EVERY_S:
                self._said, self._said_at = measured, now
                self._say(measured)
            await self._hear_distances(now)
        return 0 if self._said is None else len(self._said.peers)

    async def _measure(self, now: float) -> NetworkMeasured:
        connections = await self._node.connections()
        await self._time_round_trips(connections, now)
        addresses, tally = await self._node.addresses(), self._node.tally
        await self._have_knocked(connections, addresses, now)
        last = dict.fromkeys([*reversed(tally.peers), *connections])
        return NetworkMeasured(
            addresses=list(addresses), reach=self._reach(addresses), bytes_sent=tally.total.sent,
            bytes_received=tally.total.received,
            peers=[self._row(peer, connections.get(peer, "")) for peer in list(last)[:PEERS_MOST]],
            disk_bytes=self._disk.disk_bytes, disk_quota_bytes=self._disk.quota_bytes,
            upload_bps=self._node.upload_bps,
        )  # fmt: skip

    def _row(self, peer: str, address: str) -> dict[str, Any]:
        traffic = self._node.tally.peers.get(peer, PeerTraffic())
        return {
            "peer": peer, "address": address, "relayed": CIRCUIT in address, "bytes_sent": traffic.sent,
            "bytes_received": traffic.received, "rtt_s": self._distances.of(peer) if address else None,
            **({"organiser": True} if peer == self._organiser else {}),
        }  # fmt: skip

    async def _time_round_trips(self, connected: Iterable[str], now: float) -> None:
        """A few peers at a time, and never while parts are exchanged: it would slow them, and measure the queue."""
        self._timed_at = {peer: self._timed_at.get(peer, float("-inf")) for peer in connected}
        self._distances.keep(self._timed_at)
        if self._is_exchanging():
            return
        peers = _due(self._timed_at, now, ROUND_TRIP_EVERY_S)[:ROUND_TRIPS]
        self._timed_at |= dict.fromkeys(peers, now)
        await asyncio.gather(*(self._time_round_trip(peer) for peer in peers))

    async def _have_knocked(self, connections: Mapping[str, str], addresses: Sequence[str], now: float) -> None:
        """One peer after the other is asked to try, until the answer is known."""
        port, straight = port_of(addresses), sorted(peer for peer, way in connections.items() if CIRCUIT not in way)
        if now < self._knock_at or port is None or not straight or self._is_exchanging():
            return
        peer = straight[self._knocks % len(straight)]
        self._knocks += 1
        knocked = await request_dial_back(self._node, peer, port)
        self._knock_at = now + KNOCK_EVERY_S
        if knocked is None or not knocked.tells:
            return
        self._refused = set() if knocked.answered else self._refused | {peer}
        if knocked.answered or len(self._refused) >= min(REFUSALS, len(straight)):
            self._reached, self._knock_at = knocked.answered, now + KNOCK_AGAIN_S

    def _reach(self, addresses: Iterable[str]) -> str:
        if self._reached is None:
            return reach_of(addresses, self._node.relays)
        return DIRECT if self._reached else RELAYED

    async def _time_round_trip(self, peer: str) -> None:
        try:
            self._distances.measured(peer, await self._node.round_trip_s(peer, ROUND_TRIP_S))
        except Unreachable:
            self._distances.missed(peer)

    async def _give(self, peer: str, request: bytes) -> bytes:
        """The answer for peers that ask; peers that only watch the run are left out."""
        return self._distances.told(self._is_heard)

    async def _hear_distances(self, now: float) -> None:
        """How far a connected peer is from the others, as it reports."""
        self._told_at = {peer: self._told_at.get(peer, float("-inf")) for peer in self._timed_at}
        due = _due(self._told_at, now, DISTANCES_EVERY_S)
        if not due or self._is_exchanging():
            return
        self._told_at[due[0]] = now
        with suppress(Unreachable, ValueError):
            answer = await self._node.ask(due[0], DISTANCES, ROUND_TRIP_S, ANSWER_BYTES)
            if answer is not None:
                self._say(RoundTripsReported(about=due[0], rtt_s=unpack(answer)))


def _due(asked_at: Mapping[str, float], now: float, every_s: float) -> list[str]:
    """Peers that were not asked for so long, those that have waited longest first."""
    return [peer for at, peer in sorted((at, peer) for peer, at in asked_at.items()) if now - at >= every_s]


def reach_of(addresses: Iterable[str], relays: Iterable[str] = ()) -> str:
    """How others reach a peer that is dialled at these addresses, or through `relays`; empty if that does not tell.
    A daemon that nobody could dial directly announces addresses of relays. Private addresses alone say nothing,
    since peers of the same house dial them."""
    known = list(addresses)
    if any(CIRCUIT in address for address in known) or (not known and any(relays)):
        return RELAYED
    if known and (are_loopback(known) or any(_is_outside(address) for address in known)):
        return DIRECT
    return UNKNOWN


def _is_outside(address: str) -> bool:
    _, kind, host, *_ = address.split("/")
    return kind.startswith("dns") or is_global(host)


DISTANCES = "round-trips"
ANSWER_BYTES = 8192
WEIGHT = 0.3
"""Of the newest round trip in the exponential mean."""
LONGEST_S = 60.0


class RoundTrips:
    """Round trips from here, in seconds."""

    def __init__(self) -> None:
        self._round_trips_s: dict[str, float] = {}

    def measured(self, peer: str, round_trip_s: float) -> None:
        before = self._round_trips_s.get(peer, round_trip_s)
        self._round_trips_s[peer] = before + WEIGHT * (round_trip_s - before)

    def missed(self, peer: str) -> None:
        """It did not answer: the earlier measurement may no longer be true."""
        self._round_trips_s.pop(peer, None)

    def keep(self, peers: Collection[str]) -> None:
        self._round_trips_s = {peer: trip_s for peer, trip_s in self._round_trips_s.items() if peer in peers}

    def of(self, peer: str) -> float | None:
        trip_s = self._round_trips_s.get(peer)
        return None if trip_s is None else round(trip_s, 4)

    def told(self, of: Callable[[str], bool]) -> bytes:
        """What others are told: microseconds by peer id, of at most PEERS_MOST of these."""
        rows = [(peer, trip_s) for peer, trip_s in self._round_trips_s.items() if of(peer)]
        return pack(dict(rows[:PEERS_MOST]))


def pack(round_trips_s: Mapping[str, float]) -> bytes:
    packed: bytes = msgpack.packb({peer: round(1e6 * trip_s) for peer, trip_s in round_trips_s.items()})
    return packed


def unpack(answer: bytes) -> dict[str, float]:
    """Round trips in seconds by peer id. Raises ValueError for anything else."""
    try:
        told = msgpack.unpackb(answer, max_map_len=PEERS_MOST, max_str_len=64)
    except (ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"no distances: {error}") from error
    if not isinstance(told, dict) or not all(_is_sound(peer, trip) for peer, trip in told.items()):
        raise ValueError("no distances: peers and microseconds were expected")
    return {peer: trip / 1e6 for peer, trip in told.items()}


def _is_sound(peer: object, trip: object) -> bool:
    is_time = isinstance(trip, int) and not isinstance(trip, bool) and 0 <= trip <= 1e6 * LONGEST_S
    return isinstance(peer, str) and bool(peer) and is_time
