"""Whom the organiser's node promotes by itself, on nobody's word of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bootstrap import chain_follower, promotion
from bootstrap.chain_follower import FOLLOWED_FILE, ChainFollower
from bootstrap.promotion import ROUNDS, Promoter
from bootstrap.roster import load_promoted
from dht.addresses import RELAYED, network_of
from dht.errors import BadInput, Unreachable
from dht.identity import Identity, RunKeys
from dht.node import Node
from dht.records import Genesis
from peer.consensus.organiser.light_chain import QUESTION, packed_way, read_question
from peer.consensus.protocol.block import Block, Roster, Tenure, Update, Vote
from peer.consensus.protocol.electorate import instance_of
from peer.consensus.protocol.head import genesis_anchor, next_anchor
from peer.schema.events import AlertRaised, Event
from peer.testing.memory_swarm import World

RUN, DAY_S = b"r" * 32, 86400.0
ORGANISER, FOUNDER = Identity.from_seed(b"o" * 32), Identity.from_seed(b"f" * 32)
STRANGERS = tuple(Identity.from_seed(letter * 32).peer_id for letter in (b"s", b"t", b"u", b"v"))
GENESIS = Genesis(run=RUN, founders=(FOUNDER.peer_id,), state=bytes(32))


@cache
def sample() -> Update:
    world = World(1, 1)
    world.scheduler.run_until(20.0)
    return world.peers[0].disk.blocks[-1].update


def block(parent: bytes, round: int, strangers: tuple[str, ...], author: Identity = FOUNDER) -> Block:
    """What the one founder has decided: by it these strangers gave something that was counted."""
    tenures = tuple(Tenure(peer, min(round, 8), round) for peer in sorted(strangers))
    electorate = (FOUNDER.peer_id,)
    update = replace(
        sample(), parent=parent, round=round, elect=electorate, tenures=tenures, roster=Roster(0, electorate)
    )
    update = Update.from_bytes(update.to_bytes())
    vote = Vote(FOUNDER.peer_id, instance_of(update.parent, electorate), 0, update.digest, bytes(64))
    return Block(update, (vote.signed(RunKeys(author, RUN)),))


class Peer:
    """Somebody on the board, who says that it is far and shows this way; and who is connected with the node."""

    def __init__(self, networks: Mapping[str, str]) -> None:
        self.newest: Block | None = None
        self.networks = networks
        self.asked: list[int] = []

    async def ask(self, peer: str, name: str, timeout_s: float, most: int, request: bytes = b"") -> bytes | None:
        assert name == QUESTION
        start, end = read_question(request)
        if end:
            return None  # it has dropped that block
        self.asked.append(start)
        if self.newest is None:
            raise Unreachable("nobody answers")
        return packed_way((self.newest,))

    async def connections(self) -> dict[str, str]:
        return {peer: f"/ip4/{host}/tcp/4001" for peer, host in self.networks.items()}

    async def heads(self) -> dict[str, Any]:
        return {"somebody": SimpleNamespace(round=1 << 30)}


class Days:
    """Of a node that looks every hour."""

    def __init__(
        self, folder: Path, peer: Peer, monkeypatch: pytest.MonkeyPatch, after_s: float | None = DAY_S
    ) -> None:
        monkeypatch.setattr(chain_follower, "LOOK_S", 0.0)
        self.now, self.peer, self.folder, self.after_s = 1e9, peer, folder, after_s
        self._anchor = genesis_anchor(RUN, GENESIS.founders, GENESIS.state)
        self.events: list[Event] = []
        self.start()

    def start(self) -> None:
        self.follower = ChainFollower(self.folder, RunKeys(ORGANISER, RUN), 0, self.events.append)
        self._promoter = Promoter(self.folder, self.after_s, self.events.append, lambda: self.now)

    async def hours(self, count: int, strangers: tuple[str, ...], author: Identity = FOUNDER, first: int = 1) -> None:
        for round in range(first, first + count):
            newest = self.peer.newest = block(self._anchor, round, strangers, author)
            self._anchor = next_anchor(newest.update.parent, newest.update.digest)
            node = cast(Node, self.peer)
            blocks = await self.follower.look(node, GENESIS, self.peer.heads)
            await self._promoter.look(node, blocks, GENESIS.founders)
            self.now += 3600.0

    @property
    def promoted(self) -> set[str]:
        return set(load_promoted(self.folder))


async def test_a_day_of_counted_work_promotes_and_less_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = Days(tmp_path, Peer({STRANGERS[0]: "203.0.113.5"}), monkeypatch)
    await days.hours(24, STRANGERS[:1])
    assert days.promoted == set()
    await days.hours(1, STRANGERS[:1], first=25)
    assert days.promoted == {STRANGERS[0]}
    assert load_promoted(tmp_path)[STRANGERS[0]].endswith("from 203.0.113.0/24")
    (event,) = days.events
    assert isinstance(event, AlertRaised)
    assert (event.code, STRANGERS[0] in event.text) == ("PROMOTED", True)


async def test_long_presence_without_work_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its work was counted in too few rounds, however long that goes on."""
    days = Days(tmp_path, Peer({STRANGERS[0]: "203.0.113.5"}), monkeypatch)
    await days.hours(ROUNDS - 1, STRANGERS[:1])
    days.now += 10 * DAY_S
    await days.hours(1, (), first=ROUNDS)
    await days.hours(5, STRANGERS[:1], first=ROUNDS + 1)
    assert days.promoted == set()


async def test_what_the_voters_have_not_certified_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = Days(tmp_path, Peer({STRANGERS[0]: "203.0.113.5"}), monkeypatch)
    await days.hours(40, STRANGERS[:1], author=ORGANISER)
    assert days.promoted == set()
    assert days.peer.asked == [0] * 40
    assert not (tmp_path / FOLLOWED_FILE).exists()


async def test_of_one_network_two_are_promoted_at_most_and_nobody_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, unseen = sorted(STRANGERS)
    networks = {first: "203.0.113.5", second: "203.0.113.77", third: "203.0.113.200"}
    days = Days(tmp_path, Peer(networks), monkeypatch)
    await days.hours(30, (first, second, third, unseen))
    assert days.promoted == {first, second}
    days.peer.networks = {**networks, third: "198.51.100.1"}
    await days.hours(1, (first, second, third, unseen), first=31)
    assert days.promoted == {first, second, third}


async def test_a_node_that_starts_again_goes_on_where_it_stood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    days = Days(tmp_path, Peer({STRANGERS[0]: "203.0.113.5"}), monkeypatch)
    await days.hours(20, STRANGERS[:1])
    days.start()
    await days.hours(5, STRANGERS[:1], first=21)
    assert days.peer.asked[19:22] == [19, 20, 21]
    assert days.promoted == {STRANGERS[0]}


async def test_never_promotes_nobody_and_follows_the_chain_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = Days(tmp_path, Peer({STRANGERS[0]: "203.0.113.5"}), monkeypatch, after_s=None)
    await days.hours(30, STRANGERS[:1])
    assert days.promoted == set()
    assert days.peer.asked, "voters have places on the board and circuits before strangers"


def test_a_damaged_table_is_one_line(tmp_path: Path) -> None:
    (tmp_path / promotion.CANDIDATES_FILE).write_text('{"a": 3}')
    with pytest.raises(BadInput, match="remove it"):
        Promoter(tmp_path, DAY_S, lambda event: None)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("/ip4/203.0.113.5/tcp/4001", "203.0.113.0/24"),
        ("/ip6/2001:db8:1:2::5/udp/4001/quic-v1", "2001:db8:1::/48"),
        ("/ip4/203.0.113.5/tcp/4001/p2p/12D3/p2p-circuit", RELAYED),
        ("", ""),
    ],
)
def test_a_network_is_what_costs_something(address: str, network: str) -> None:
    assert network_of(address) == network
