"""A link that looks for other homes: whom it answers, whom it leaves out, and what its lead says of free places."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dht.errors import Unreachable
from dht.identity import Identity
from dht.records import HEAD, MAX_RECORD_BYTES, PeerRecord, SoughtHomes, pack, short_id
from peer.consensus.protocol.messages import Heartbeat
from peer.network.link import cluster_lead, cluster_worker
from peer.network.link.cluster_invite import (
    FOUND_FILE,
    LINE_FILE,
    FoundCluster,
    forget_found,
    found_in,
    issue_in,
    keep_found,
    note_formed,
    parse_cluster,
    saved_line,
)
from peer.network.link.cluster_lead import Offers, OpenPlaces
from peer.network.link.cluster_match import HomeMatcher, rounded_ms
from peer.network.link.cluster_worker import WorkSeeker
from peer.network.link.discovery import NOTHING, Announcer
from peer.planning.homes import home_search
from peer.schema import spec as specs
from peer.schema.cluster_messages import ASK, GATHER, PING, GatherWord, pack_gather, unpack_gather
from peer.schema.ipc import HomesFound, HomesMissing, LookForHomes, SeekWork
from peer.testing.child_process import HANG_S
from tests.memory_board import MemoryBoard

SPEC = specs.load("llama-1b")
RUN = b"r" * 32
SEEK = LookForHomes(10.0, 100.0, ())
"""Three such homes hold the model."""


@dataclass
class Wire:
    """Nodes that ask each other in memory."""

    nodes: dict[str, WireNode] = field(default_factory=dict)


@dataclass
class WireNode:
    wire: Wire
    peer_id: str
    upload_bps: float = 50e6
    answers: dict[str, Callable[[str, bytes], Awaitable[bytes | None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.wire.nodes[self.peer_id] = self

    def answer(self, name: str, answer: Callable[[str, bytes], Awaitable[bytes | None]]) -> None:
        self.answers[name] = answer

    async def ask(
        self, peer: str, name: str, timeout_s: float, max_bytes: int = 1 << 16, request: bytes = b""
    ) -> bytes | None:
        other = self.wire.nodes.get(peer)
        if other is None or name not in other.answers:
            raise Unreachable("nobody answers")
        return await other.answers[name](self.peer_id, request)

    async def connections(self) -> dict[str, str]:
        return dict.fromkeys(self.wire.nodes, "direct")

    async def meet(self, peer: str, ways: tuple[str, ...]) -> bool:
        return peer in self.wire.nodes


class Town:
    """Homes with one board."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder, self.wire, self.board = folder, Wire(), MemoryBoard(RUN, clock)
        self.said: dict[str, list[str]] = {}

    def announcer(self, seed: int) -> Announcer:
        return Announcer(self.board, Identity.from_seed(bytes([seed]) * 32), RUN, f"home-{seed}")

    def home(self, seed: int, seek: LookForHomes = SEEK) -> HomeMatcher:
        notices = self.announcer(seed)
        me = notices.identity.peer_id
        line = replace(issue_in(self.folder / str(seed)), lead=me)
        said = self.said.setdefault(me, [])
        node: Any = WireNode(self.wire, me)
        return HomeMatcher(node, notices, SPEC, seek, line, said.append)


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Town:
    monkeypatch.setattr(home_search, "SETTLE_S", 0.5)
    monkeypatch.setattr("peer.network.link.cluster_match.LOOK_S", 0.1)
    return Town(tmp_path)


async def test_a_home_whose_line_is_not_known_measures_it_and_offers_that(town: Town) -> None:
    """Else a home on a slow line would count as one without any limit."""
    homes = [town.home(seed) for seed in (1, 2, 3)]
    for node in town.wire.nodes.values():
        node.upload_bps = 0.0
    for home in homes:
        home._upload_mbps = 0.0
    async with asyncio.timeout(HANG_S):
        found = await asyncio.gather(*(home.find() for home in homes))
    assert [home._mine().upload_mbps > 0 for home in homes] == [True] * 3
    assert [each.upload_mbps for each in found] == [home._mine().upload_mbps for home in homes]


async def test_three_homes_find_each_other_and_hold_one_line(town: Town) -> None:
    async with asyncio.timeout(HANG_S):
        found = await asyncio.gather(*(town.home(seed).find() for seed in (1, 2, 3)))
    (lead,) = {each.lead for each in found}
    assert {each.order for each in found} == {found[0].order}
    lines = [each.line for each in found if each.line]
    assert len(lines) == 2
    assert {parse_cluster(line).lead for line in lines} == {lead}
    texts = [text for said in town.said.values() for text in said]
    assert any(text.startswith("looking for other homes: ") for text in texts)
    assert any("tokens/s" in text for text in texts)


async def test_the_line_is_for_those_alone_who_are_named(town: Town) -> None:
    """A stranger, and a home before the gathering is complete, get none."""
    home = town.home(1)
    me = home._me
    assert await home._answer("stranger", b"") is None
    finding = asyncio.create_task(home.find())
    await asyncio.sleep(0)
    assert await town.wire.nodes[me].answers[GATHER]("stranger", b"") is None
    assert await town.wire.nodes[me].answers[PING]("stranger", b"") == b"here"
    finding.cancel()
    await asyncio.gather(finding, return_exceptions=True)


@pytest.mark.parametrize(
    "word", [None, b"", b"\xff" * 90, pack_gather(GatherWord("hfc1:AAAA", ())), "another lead's", "silent"]
)
async def test_a_lead_that_gives_no_line_of_its_own_is_left_out(town: Town, word: bytes | str | None) -> None:
    """Garbage, a damaged line, the line of somebody else, or nothing: the home goes on with others."""
    home, liar = town.home(1), town.announcer(9)
    liar.homes.said = SoughtHomes(leads=True, free=1, expects=1e9)
    await liar.publish(Heartbeat(b"", -1, 0, b"", False, 0, 0, False))
    if word == "another lead's":
        word = pack_gather(GatherWord(issue_in(town.folder / "else").text(), ()))
    if word != "silent":
        node = WireNode(town.wire, liar.identity.peer_id)

        async def answer(peer: str, request: bytes) -> bytes | None:
            assert not isinstance(word, str)
            return word

        node.answer(GATHER, answer)
    for _ in range(2):
        assert await home._look() is None
    await home._look()
    assert liar.identity.peer_id in home._search._left_out


async def test_a_home_goes_first_to_a_cluster_that_lacks_one(town: Town) -> None:
    home, lead = town.home(1), town.announcer(9)
    lead.homes.said = SoughtHomes(leads=True, free=1, expects=50.0)
    await lead.publish(Heartbeat(b"", -1, 0, b"", False, 0, 0, False))
    line = replace(issue_in(town.folder / "lead"), lead=lead.identity.peer_id)
    node = WireNode(town.wire, lead.identity.peer_id)

    async def answer(peer: str, request: bytes) -> bytes | None:
        return pack_gather(GatherWord(line.text(), (lead.identity.peer_id, "gone")))

    node.answer(GATHER, answer)
    found = await home._look()
    assert found is not None
    assert (found.lead, found.line) == (lead.identity.peer_id, line.text())


async def test_a_name_with_control_characters_is_no_record(town: Town) -> None:
    """So nothing of it reaches a screen, and its offer does not count."""
    home, liar = town.home(1), replace(town.announcer(9), name="evil\x1b[2J")
    liar.homes.said = SoughtHomes(leads=True, free=1)
    await liar.publish(Heartbeat(b"", -1, 0, b"", False, 0, 0, False))
    await home._look()
    assert home._heads == {}
    assert all(text.isprintable() for text in town.said[home._me])


def test_the_longest_record_of_a_home_that_looks_fits(town: Town) -> None:
    """With sixteen round trips and addresses; of too many things round trips go first."""
    notices = town.announcer(1)
    trips = tuple((short_id(str(number)), 60_000) for number in range(16))
    said = SoughtHomes(
        memory_gb=1.5, tokens_per_s=1e6, upload_mbps=55.0, trips_ms=trips, gathers=tuple(name for name, _ in trips[:8]),
        expects=1e6,
    )  # fmt: skip
    head = Heartbeat(b"", -1, 0, b"", False, 0, 0, False)
    address = f"/ip4/203.0.113.200/tcp/65535/p2p/{notices.identity.peer_id}"
    record = notices._signed(head, NOTHING, (address,), said)
    assert len(pack(record)) <= MAX_RECORD_BYTES
    assert PeerRecord.unpack(record.body).homes == said


async def test_round_trips_go_before_addresses(town: Town) -> None:
    notices = town.announcer(1)
    address = f"/ip6/2001:db8:ffff:ffff:ffff:ffff:ffff:1/tcp/65535/p2p/{notices.identity.peer_id}"
    notices = replace(notices, addrs=lambda: (address,) * 4)
    notices.homes.said = SoughtHomes(memory_gb=1.5, trips_ms=tuple((short_id(str(at)), 1000) for at in range(16)))
    await notices.publish(Heartbeat(b"", -1, 0, b"", False, 0, 0, False))
    (record,) = (await town.board.read(HEAD)).values()
    body = PeerRecord.unpack(record.body)
    assert len(body.addrs) == 4
    assert body.homes == replace(notices.homes.said, trips_ms=())


@pytest.mark.parametrize(("seconds", "rounded"), [(0.0, 1), (0.0126, 10), (0.0456, 50), (0.123, 120), (1e6, 60_000)])
def test_round_trips_are_told_in_few_digits(seconds: float, rounded: int) -> None:
    assert rounded_ms(seconds) == rounded


# ---- the cluster that was found


def test_a_place_is_kept_and_forgotten(tmp_path: Path) -> None:
    line = issue_in(tmp_path / "lead")
    found = HomesFound(line.lead, (line.lead, "me"), 100.0, line.text(), 7.0)
    assert not keep_found(tmp_path, found).leads
    assert saved_line(tmp_path) == line
    note_formed(tmp_path)
    kept = found_in(tmp_path)
    assert kept is not None
    assert kept.is_formed
    assert kept.upload_mbps == 7.0
    forget_found(tmp_path)
    assert found_in(tmp_path) is None
    assert not (tmp_path / LINE_FILE).exists()


def test_a_friends_line_is_not_forgotten(tmp_path: Path) -> None:
    (tmp_path / LINE_FILE).write_text(issue_in(tmp_path / "lead").text())
    forget_found(tmp_path)
    assert (tmp_path / LINE_FILE).exists()


@pytest.mark.parametrize("damaged", [b"", b"\xff", b"{}"])
def test_a_damaged_note_is_none(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / FOUND_FILE).write_bytes(damaged)
    assert found_in(tmp_path) is None


class Pipe:
    """In the place of a pipe: what was said to the trainer."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.has_given_up = asyncio.Event()

    def send(self, message: Any) -> None:
        self.said.append(message)
        if isinstance(message, HomesMissing):
            self.has_given_up.set()


FOUND = FoundCluster("lead", ("lead", "one", "two"), 50.0, leads=True)


def places(town: Town, found: FoundCluster) -> tuple[OpenPlaces, Announcer, Pipe, WireNode]:
    pipe: Any = Pipe()
    node: Any = WireNode(town.wire, "lead")
    line, notices = issue_in(town.folder / "lead"), town.announcer(1)
    offers = Offers(node, pipe, line)
    return OpenPlaces(node, pipe, notices, line, found, offers), notices, pipe, node


async def test_a_lead_says_what_it_lacks_and_gives_its_line(town: Town) -> None:
    open_places, notices, _, node = places(town, FOUND)
    open_places.look()
    assert notices.homes.said == SoughtHomes(leads=True, free=2, expects=50.0)
    packed = await node.answers[GATHER]("anybody", b"")
    assert packed is not None
    assert unpack_gather(packed).order == FOUND.order
    assert ASK in node.answers, "and takes offers as any lead does"


@pytest.mark.parametrize(("is_formed", "said"), [(False, [HomesMissing(("one", "two"))]), (True, [])])
def test_homes_that_found_each_other_and_do_not_come_are_named_once(
    town: Town, monkeypatch: pytest.MonkeyPatch, *, is_formed: bool, said: list[Any]
) -> None:
    """A worker that takes the line and never works. A cluster that stood waits for its homes."""
    now = [0.0]
    monkeypatch.setattr(cluster_lead.time, "monotonic", lambda: now[0])
    open_places, _, pipe, _ = places(town, FoundCluster("lead", FOUND.order, 50.0, leads=True, is_formed=is_formed))
    open_places.look()
    assert pipe.said == []
    for now[0] in (301.0, 302.0):
        open_places.look()
    assert pipe.said == said


async def test_a_lead_that_never_deals_is_given_up(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers, and is silent about layers."""
    monkeypatch.setattr(cluster_worker, "ASK_EVERY_S", 0.01)
    pipe: Any = Pipe()
    line = issue_in(town.folder / "lead")
    node: Any = WireNode(town.wire, "worker")
    WireNode(town.wire, line.lead)

    async def nobody() -> dict[str, PeerRecord]:
        return {}

    seeker = WorkSeeker(node, pipe, line, "worker", nobody, lambda assignment: None, patience_s=0.05)
    seeker._know(SeekWork(8.0, 100.0))
    following = asyncio.create_task(seeker.follow())
    async with asyncio.timeout(HANG_S):
        await pipe.has_given_up.wait()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert pipe.said.count(HomesMissing((line.lead,))) == 1
