"""The network panel's figures: what is counted, what is measured, and what is not known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack
import pytest

from dht.errors import Unreachable
from dht.reach.dial_back import KNOCK
from dht.streams.traffic import TrafficCounter
from peer.network.link import network_stats
from peer.network.link.network_stats import (
    DISTANCES,
    DISTANCES_EVERY_S,
    KNOCK_AGAIN_S,
    PEERS_MOST,
    NetworkStats,
    RoundTrips,
    pack,
    reach_of,
    unpack,
)
from peer.schema.events import EventLine, NetworkMeasured, RoundTripsReported, format_line, parse_line

HERE = "/ip4/127.0.0.1/tcp/4001/p2p/me"
CIRCUIT = "/ip4/198.51.100.7/tcp/1/p2p/relay/p2p-circuit"


@dataclass
class Network:
    """Node and disk in one; `silent` answers no question."""

    tally: TrafficCounter = field(default_factory=TrafficCounter)
    connected: dict[str, str] = field(default_factory=dict)
    silent: str = ""
    asked: list[str] = field(default_factory=list)
    is_gone: bool = False
    disk_bytes: int = 300
    quota_bytes: int = 1000
    relays: tuple[str, ...] = ()
    upload_bps: int = 20_000_000
    knock: bytes | None = None
    """What everybody answers who is asked to knock."""
    knockers: list[str] = field(default_factory=list)
    distances: bytes | None = None
    """What everybody answers who is asked how far others are."""
    told: list[str] = field(default_factory=list)
    """Who was asked that."""
    answers: dict[str, Callable[[str, bytes], Awaitable[bytes | None]]] = field(default_factory=dict)

    async def addresses(self) -> tuple[str, ...]:
        return (HERE,)

    async def connections(self) -> dict[str, str]:
        if self.is_gone:
            raise Unreachable("the daemon is gone")
        return self.connected

    def answer(self, name: str, answer: Callable[[str, bytes], Awaitable[bytes | None]]) -> None:
        self.answers[name] = answer

    async def ask(
        self, peer_id: str, name: str, timeout_s: float, max_bytes: int = 0, request: bytes = b""
    ) -> bytes | None:
        if name == DISTANCES:
            self.told.append(peer_id)
            return self.distances
        assert (name, request) == (KNOCK, (4001).to_bytes(2, "big"))
        self.knockers.append(peer_id)
        return self.knock

    async def round_trip_s(self, peer_id: str, timeout_s: float) -> float:
        self.asked.append(peer_id)
        if peer_id == self.silent:
            raise Unreachable(peer_id)
        return 0.0314159


def meter(network: Network, is_exchanging: Callable[[], bool] = lambda: False) -> tuple[NetworkStats, list[Any]]:
    said: list[Any] = []
    return NetworkStats(network, network, said.append, is_exchanging, lambda peer: True, "organiser"), said


async def test_traffic_connections_and_room_are_told() -> None:
    """Who was active last comes first; a peer that is not connected any more has no address."""
    network = Network(connected={"bob": "/ip4/10.0.0.2/tcp/1", "carol": CIRCUIT}, silent="carol")
    network.tally.add("gone", sent=1, received=2)
    network.tally.add("bob", sent=30, received=40)
    metered, said = meter(network)
    await metered.look(100.0)
    (event,) = said
    assert event == NetworkMeasured(
        addresses=[HERE], reach="direct", bytes_sent=31, bytes_received=42,
        peers=[
            {
                "peer": "bob", "address": "/ip4/10.0.0.2/tcp/1", "relayed": False, "bytes_sent": 30,
                "bytes_received": 40, "rtt_s": 0.0314,
            },
            {"peer": "gone", "address": "", "relayed": False, "bytes_sent": 1, "bytes_received": 2, "rtt_s": None},
            {"peer": "carol", "address": CIRCUIT, "relayed": True, "bytes_sent": 0, "bytes_received": 0, "rtt_s": None},
        ],
        disk_bytes=300, disk_quota_bytes=1000, upload_bps=20_000_000,
    )  # fmt: skip
    line = EventLine(seq=1, t=1.0, run="r", peer="p", event=event)
    assert parse_line(format_line(line)) == line


async def test_the_organisers_node_is_marked() -> None:
    network = Network(connected={"organiser": "/ip4/10.0.0.9/tcp/1", "bob": "/ip4/10.0.0.2/tcp/1"})
    metered, said = meter(network)
    await metered.look(100.0)
    assert [(row["peer"], row.get("organiser")) for row in said[0].peers] == [("organiser", True), ("bob", None)]


async def test_the_same_is_said_once_a_minute_and_news_at_once() -> None:
    network = Network()
    metered, said = meter(network)
    for now in (100.0, 110.0, 150.0):
        await metered.look(now)
    assert len(said) == 1
    await metered.look(160.0)
    assert len(said) == 2
    network.tally.add("bob", sent=1)
    await metered.look(170.0)
    assert [event.bytes_sent for event in said] == [0, 0, 1]


async def test_round_trips_are_asked_for_a_few_at_a_time_and_once_a_minute() -> None:
    network = Network(connected={f"p{n}": "/ip4/10.0.0.2/tcp/1" for n in range(6)})
    metered, said = meter(network)
    await metered.look(100.0)
    assert network.asked == ["p0", "p1", "p2", "p3"]
    for now in (110.0, 120.0, 150.0):
        await metered.look(now)
    assert sorted(network.asked) == [f"p{n}" for n in range(6)]
    assert all(row["rtt_s"] for row in said[-1].peers)
    await metered.look(161.0)
    assert sorted(network.asked[6:]) == ["p0", "p1", "p2", "p3"]


async def test_nobody_is_asked_while_parts_are_exchanged() -> None:
    network = Network(connected={"bob": "/ip4/10.0.0.2/tcp/1"})
    exchanging = True
    metered, said = meter(network, lambda: exchanging)
    await metered.look(100.0)
    assert (network.asked, said[0].peers[0]["rtt_s"]) == ([], None)
    exchanging = False
    await metered.look(110.0)
    assert said[1].peers[0]["rtt_s"] == 0.0314


async def test_a_daemon_that_does_not_answer_is_waited_for() -> None:
    """Its end is noticed elsewhere; until then nothing is said."""
    network = Network(is_gone=True)
    metered, said = meter(network)
    await metered.look(100.0)
    assert said == []
    network.is_gone = False
    await metered.look(110.0)
    assert len(said) == 1


async def test_one_event_holds_so_many_rows_and_no_more() -> None:
    """The most active ones; strangers that only connected come last."""
    network = Network(connected={f"stranger{n}": "" for n in range(100)})
    network.tally.add("bob", sent=1)
    metered, said = meter(network)
    await metered.look(100.0)
    assert len(said[0].peers) == network_stats.PEERS_MOST
    assert said[0].peers[0]["peer"] == "bob"


async def test_with_many_peers_it_is_looked_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows must not fill the volunteer's disk."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        network.connected = {f"p{n}": "" for n in range(40)}
        if len(pauses) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(network_stats.asyncio, "sleep", sleep)
    network = Network()
    with pytest.raises(asyncio.CancelledError):
        await meter(network)[0].follow()
    assert pauses == [10.0, 40]


@pytest.mark.parametrize(
    ("addresses", "reach"),
    [
        ([], ""),
        ([HERE], "direct"),
        (["/ip4/192.168.1.7/tcp/1/p2p/me", HERE], ""),
        (["/ip4/192.168.1.7/tcp/1/p2p/me", "/ip4/8.8.8.8/tcp/1/p2p/me"], "direct"),
        (["/ip6/fe80::1/tcp/1/p2p/me"], ""),
        (["/ip6/2a00:1450::1/udp/1/quic-v1/p2p/me"], "direct"),
        (["/dns4/home.example.org/tcp/1/p2p/me"], "direct"),
        (["/ip4/192.168.1.7/tcp/1/p2p/me", CIRCUIT], "relayed"),
    ],
)
def test_reach_is_what_the_addresses_tell(addresses: list[str], reach: str) -> None:
    assert reach_of(addresses) == reach


def test_who_listens_nowhere_is_reached_through_its_relays_alone() -> None:
    assert reach_of([], ["relay"]) == "relayed"
    assert reach_of([HERE], ["relay"]) == "direct"


@pytest.mark.parametrize(
    ("knock", "reach"),
    [
        (b"\x018.8.8.8", "direct"), (b"\x008.8.8.8", "relayed"),
        (b"\x01192.168.1.7", "direct"), (b"\x00192.168.1.7", "direct"), (None, "direct"),
    ],
)  # fmt: skip
async def test_who_tried_from_outside_knows_how_one_is_reached(knock: bytes | None, reach: str) -> None:
    """Here it listens on loopback alone, which is direct as far as that tells."""
    network = Network(connected={"bob": "/ip4/10.0.0.2/tcp/1", "carol": CIRCUIT}, knock=knock)
    metered, said = meter(network)
    await metered.look(100.0)
    assert said[-1].reach == reach
    assert network.knockers == ["bob"], "carol comes through a relay, and could not tell"


async def test_others_are_asked_to_knock_until_it_is_known() -> None:
    """Each in turn, once a minute; never while a round is exchanged."""
    network, busy = Network(connected={"bob": "/ip4/10.0.0.2/tcp/1", "eve": "/ip4/10.0.0.3/tcp/1"}), [True]
    metered, _ = meter(network, lambda: busy[0])
    await metered.look(0.0)
    assert network.knockers == []
    busy[0] = False
    for now in (10.0, 20.0, 70.0, 80.0):
        await metered.look(now)
    assert network.knockers == ["bob", "eve"]
    network.knock = b"\x018.8.8.8"
    for now in (200.0, 300.0, 200.0 + KNOCK_AGAIN_S):
        await metered.look(now)
    assert network.knockers == ["bob", "eve", "bob", "eve"]


async def test_one_who_could_not_connect_is_not_believed_alone() -> None:
    """It may lie, or stand behind a firewall of its own."""
    network = Network(connected={f"p{number}": "/ip4/10.0.0.2/tcp/1" for number in range(5)}, knock=b"\x018.8.8.8")
    metered, said = meter(network)
    await metered.look(0.0)
    network.knock = b"\x008.8.8.8"
    reached = []
    for minute in range(3):
        await metered.look(KNOCK_AGAIN_S + 60.0 * minute)
        reached.append(said[-1].reach)
    assert len(network.knockers) == 4
    await metered.look(KNOCK_AGAIN_S + 200.0)
    assert reached[:2] == ["direct", "direct"]
    assert said[-1].reach == "relayed"


# ---- distances of others ----


async def test_others_are_asked_in_turn_how_far_they_are_from_whom() -> None:
    """One at a look, each every five minutes; what they say is told, and can be read again."""
    network = Network(connected={"bob": "/ip4/10.0.0.2/tcp/1", "carol": CIRCUIT}, distances=pack({"dave": 0.0125}))
    metered, said = meter(network)
    for now in (100.0, 110.0, 120.0, 100.0 + DISTANCES_EVERY_S):
        await metered.look(now)
    assert network.told == ["bob", "carol", "bob"]
    told = [event for event in said if isinstance(event, RoundTripsReported)]
    assert told[1] == RoundTripsReported(about="carol", rtt_s={"dave": 0.0125})
    line = EventLine(seq=1, t=1.0, run="r", peer="p", event=told[1])
    assert parse_line(format_line(line)) == line


@pytest.mark.parametrize(
    "answer",
    [
        None, b"", b"\xc1", msgpack.packb([1]), msgpack.packb({"bob": -1}), msgpack.packb({"bob": 1.5}),
        msgpack.packb({"bob": True}), msgpack.packb({"": 1}), msgpack.packb({1: 1}), msgpack.packb({"bob": 10**9}),
        msgpack.packb({f"p{number}": 1 for number in range(PEERS_MOST + 1)}), msgpack.packb({"b" * 65: 1}),
    ],
)  # fmt: skip
async def test_nonsense_about_distances_is_not_told(answer: bytes | None) -> None:
    network = Network(connected={"bob": "/ip4/10.0.0.2/tcp/1"}, distances=answer)
    metered, said = meter(network)
    await metered.look(100.0)
    assert network.told == ["bob"]
    assert [type(event) for event in said] == [NetworkMeasured]


async def test_what_this_peer_measured_is_an_exponential_mean_that_it_gives_to_whoever_asks() -> None:
    distances = RoundTrips()
    for trip_s in (0.1, 0.2):
        distances.measured("bob", trip_s)
    distances.measured("carol", 0.5)
    distances.missed("carol")
    for number in range(2 * PEERS_MOST):
        distances.measured(f"p{number}", 0.01)
    assert distances.of("bob") == 0.13
    assert distances.of("carol") is None
    given = unpack(distances.told(lambda peer: True))
    assert given["bob"] == pytest.approx(0.13)
    assert len(given) == PEERS_MOST
    distances.keep({"bob"})
    assert unpack(distances.told(lambda peer: True)) == {"bob": pytest.approx(0.13)}
    assert unpack(distances.told(lambda peer: peer != "bob")) == {}, "who only watches is named to nobody"
