"""A watcher among logical peers, over memory: it asks as one who is behind, and nobody takes notice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from dht.errors import BadChain, Unreachable
from dht.records import PeerRecord
from dht.streams.base import MakeFrame, OnFrame
from peer.consensus.organiser import checkpoints
from peer.consensus.organiser.light_chain import QUESTION, packed_way, read_question, way_of
from peer.consensus.protocol.block import Block
from peer.consensus.protocol.encoding import pack
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.messages import Blocks, GetBlocks, Heartbeat, decode, encode
from peer.network.sync.chain_status import CHAIN_STATUS, ChainStatus
from peer.network.sync.checkpoint_keeper import CheckpointKeeper
from peer.network.sync.run_discovery import LAYERS
from peer.node.telemetry.reporter import Reporter
from peer.planning.forecast.watched_outlook import WatchedOutlook
from peer.planning.simulate.memory_network import MemoryStreams
from peer.schema.events import AlertRaised, Event, PeerStateChanged, ReportReceived, RoundCommitted, RoundForecast
from peer.schema.spec import load
from peer.testing.child_process import HANG_S
from peer.testing.memory_peer import ModelKeys
from peer.testing.memory_swarm import ORGANISER, RUN, World
from peer.tools.watch import watcher as watchers
from peer.tools.watch.watcher import Watcher
from tests.peer.tools.watch.test_verified_chain import parting

ME = "watcher"
SIZES = (1, 1, 1)
SPEED = 512.0
"""Tokens per second that each peer states."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time passes with every look and every question; the real one need not."""
    for name, seconds in (
        ("LOOK_S", 0.0),
        ("ANSWER_S", 0.02),
        ("SILENT_S", 0.05),
        ("REFUSE_S", 0.2),
        ("LINGER_S", 0.0),
    ):
        monkeypatch.setattr(watchers, name, seconds)
    monkeypatch.setattr(watchers, "CATCH_UP_BYTES_PER_S", 1 << 40)


class Enough(Exception):
    """A test has seen what it wanted."""


@dataclass
class Seat:
    """A watcher's place in a world: its streams, the board, and questions that the peers' links would answer."""

    world: World
    inner: MemoryStreams
    asked: list[tuple[str, str]] = field(default_factory=list)
    met: set[str] = field(default_factory=set)
    layers: dict[str, bytes | None] = field(default_factory=dict)
    """What peers say of the layers, where that is not the truth."""
    ways: Callable[[Sequence[Block]], Sequence[Block]] | None = None
    """What peers show of their blocks, who want to know where certificates lead; None if they show nothing."""
    swaps: Callable[[str, bytes], bytes] = lambda sender, frame: frame
    """What becomes of a frame to the watcher."""
    deaf: frozenset[str] = frozenset()
    """Peers that nothing reaches."""
    offset: int = 0
    """Rounds by which the board is further than the peers."""
    looks: int = -1
    """After so many looks at the board it is enough."""

    @property
    def streams(self) -> Any:
        return self

    def pass_time(self, seconds: float = 0.5) -> None:
        self.world.scheduler.run_until(self.world.now + seconds)

    def send(self, to: str, frame: bytes) -> None:
        message = decode(frame)
        assert isinstance(message, GetBlocks), "a watcher says nothing else"
        assert to in self.met
        self.asked.append((to, "GET"))
        if to not in self.deaf:
            self.inner.send(to, frame)
        asyncio.get_running_loop().call_soon(self.pass_time)

    def send_bulk(self, to: str, make_frame: MakeFrame) -> None:
        raise AssertionError("a watcher has nothing large to send")

    def listen(self, on_frame: OnFrame) -> None:
        self.inner.listen(lambda sender, frame: on_frame(sender, self.swaps(sender, frame)))

    async def meet(self, peer_id: str, addresses: Sequence[str]) -> bool:
        self.met.add(peer_id)
        return True

    async def ask(
        self, peer_id: str, name: str, timeout_s: float, max_bytes: int = 0, request: bytes = b""
    ) -> bytes | None:
        self.asked.append((peer_id, name))
        if peer_id in self.deaf:
            raise Unreachable(peer_id)
        if name == LAYERS:
            return self.layers.get(peer_id, pack(SIZES))
        disk = self.world.peers[0].disk
        if name == CHAIN_STATUS:
            return ChainStatus(round=disk.head.round, shared=-1, offers=()).to_bytes()
        assert name in (QUESTION, checkpoints.QUESTION)
        if self.ways is None or name == checkpoints.QUESTION:
            return None
        start, end = read_question(request)
        before = self.world.genesis if not start else disk.heads[start - 1]
        return packed_way(self.ways(way_of(disk.blocks[start : end or None], before)))

    async def read_heads(self) -> dict[str, PeerRecord]:
        if self.looks == 0:
            raise Enough
        self.looks -= 1
        self.pass_time()
        await asyncio.sleep(0)
        return {peer: self.record(peer, said) for peer, said in self.world.board.items()}

    def record(self, peer: str, said: Heartbeat) -> PeerRecord:
        return PeerRecord(
            run=RUN, anchor=said.anchor, round=said.round + self.offset, weight=said.weight, state=said.state,
            ready=said.ready, tokens=said.tokens, steps=said.steps, leaving=said.leaving,
            name=f"name of {peer}", version="1", tokens_per_s=SPEED,
        )  # fmt: skip


@dataclass
class Watched:
    """A world with its watcher, and all that it told."""

    seat: Seat
    said: list[Event]
    watcher: Watcher

    async def follow(self, rounds: int) -> None:
        """Until it has told so many."""
        async with asyncio.timeout(HANG_S):
            await self.watcher.follow(rounds)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.said if isinstance(event, kind)]

    def rounds(self) -> list[int]:
        return [event.round for event in self.of(RoundCommitted)]

    def warnings(self) -> list[str]:
        return [event.text for event in self.of(AlertRaised) if event.level == "warning"]


def watch(world: World, **seat: Any) -> Watched:
    place, said = Seat(world, world.network.connect(ME), **seat), list[Event]()

    def rules_of(sizes: tuple[int, ...]) -> Any:
        if len(sizes) != len(SIZES):
            raise ValueError("another model")
        return world.rules("")

    keeper = CheckpointKeeper(place, ModelKeys(ME), ORGANISER, None, lambda code, who, why: None)
    outlook, session = WatchedOutlook(load("micro")), Reporter(said.append)
    watcher = Watcher(place, place.read_heads, rules_of, RUN, world.genesis, session, keeper, outlook, Random(1))
    return Watched(place, said, watcher)


def at_round(round: int, peers: int = 3) -> World:
    world = World(seed=7, peers=peers)
    while min(peer.disk.head.round for peer in world.peers) < round:
        assert world.now < 1000
        world.scheduler.run_until(world.now + 1)
    return world


async def test_every_round_from_the_first_and_each_new_one_as_it_is_made() -> None:
    watched = watch(at_round(3))
    await watched.follow(8)
    assert watched.rounds() == list(range(1, watched.rounds()[-1] + 1))
    told = {event.round: event for event in watched.of(RoundCommitted)}
    history = watched.seat.world.history[0]
    assert [told[made.round].digest for made in history[:8]] == [made.digest for made in history[:8]]
    assert {event.state for event in told.values()} <= {"", *(made.state for made in history)}
    assert any(event.state for event in told.values())
    reports = watched.of(ReportReceived)
    assert {(report.about, report.name) for report in reports} == {(f"p{n}", f"name of p{n}") for n in range(3)}
    assert "every round is checked" in watched.of(PeerStateChanged)[-1].why
    assert watched.warnings() == []


async def test_the_end_of_the_run_is_foretold_after_every_round() -> None:
    """From the dates of the blocks and the speeds that peers state, as a member foretells it; but after the last."""
    watched = watch(at_round(3))
    await watched.follow(8)
    foretold = watched.of(RoundForecast)
    assert [event.round - 1 for event in foretold] == watched.rounds()[:-1]
    assert all(event.expected_s > 0 and event.run_left_s >= event.expected_s for event in foretold)


async def test_nobody_takes_notice_of_it() -> None:
    """No peer hears, reports, elects or tells it anything but what it asked for; and the books residual."""
    watched = watch(at_round(3))
    await watched.follow(8)
    world = watched.seat.world
    world.check()
    assert ME not in world.board
    for peer in world.peers:
        assert ME not in peer.driver.state.heard
        assert all(ME not in head.electorate for head in peer.disk.heads)
        assert ME not in str(peer.reports)
    assert len({peer for peer, what in watched.seat.asked if what == "GET"}) == 3, "the work is shared"


async def test_a_peer_is_asked_only_while_somebody_is_further() -> None:
    """Not once for every look: that would be work for volunteers."""
    watched = watch(at_round(3))
    await watched.follow(8)
    gets = sum(what == "GET" for _, what in watched.seat.asked)
    assert gets <= 2 * len(watched.rounds())


async def test_a_peer_that_does_not_answer_is_left_for_another() -> None:
    watched = watch(at_round(3), deaf=frozenset({"p0"}))
    await watched.follow(5)
    assert watched.rounds()[:5] == [1, 2, 3, 4, 5]


async def test_a_forged_chain_is_refused_aloud_and_the_others_are_asked() -> None:
    """p0 cuts the votes off; the warning names it."""

    def cut_votes(sender: str, frame: bytes) -> bytes:
        message = decode(frame)
        if sender != "p0" or not isinstance(message, Blocks):
            return frame
        return encode(Blocks(tuple(replace(block, votes=block.votes[:1]) for block in message.blocks)))

    watched = watch(at_round(3), swaps=cut_votes)
    await watched.follow(12)
    assert watched.rounds()[:12] == list(range(1, 13))
    (warning, *_) = watched.warnings()
    assert "as p0 gives it cannot be verified" in warning
    assert "votes" in warning


@pytest.mark.parametrize("nonsense", [b"", b"\xc1", pack((1, 1)), pack((1, 0, 1)), pack("x"), None])
async def test_what_one_peer_says_of_the_layers_does_not_count_against_the_others(nonsense: bytes | None) -> None:
    watched = watch(at_round(3), layers={"p1": nonsense})
    await watched.follow(4)
    assert watched.rounds()[:4] == [1, 2, 3, 4]


async def test_without_the_layers_nothing_is_told_of_rounds_and_that_is_said() -> None:
    watched = watch(at_round(3), layers=dict.fromkeys(("p0", "p1", "p2")), looks=5)
    with pytest.raises(Enough):
        await watched.follow(4)
    assert watched.rounds() == []
    (warning,) = watched.warnings()
    assert warning == "no peer tells how large the model's layers are; without that no round can be checked"
    watched.seat.layers.clear()
    watched.seat.looks = -1
    await watched.follow(4)
    assert watched.rounds()[:4] == [1, 2, 3, 4]


async def test_where_the_first_rounds_are_gone_it_begins_where_certificates_lead_and_says_so() -> None:
    """No peer knows the genesis: they have dropped what came before round 4."""
    world = at_round(6)
    newest = world.peers[0].disk.head.round
    for peer in world.peers:
        state = peer.driver.state
        late = {anchor: round for anchor, round in state.ancestors.items() if round >= 4}
        object.__setattr__(state, "ancestors", late)
    watched = watch(world, ways=tuple)
    await watched.follow(newest + 3)
    first = watched.rounds()[0]
    assert newest < first
    assert watched.rounds() == list(range(first, watched.rounds()[-1] + 1))
    (warning,) = watched.warnings()
    assert f"no peer has round 1 any more: watching begins at round {first - 1}, to which certificates lead" in warning
    assert "the rounds before are not checked" in warning


def uncertified(way: Sequence[Block]) -> list[Block]:
    return [replace(block, votes=block.votes[:1]) for block in way]


@pytest.mark.parametrize("ways", [None, uncertified])
async def test_where_nothing_leads_anywhere_that_is_said(
    ways: Callable[[Sequence[Block]], Sequence[Block]] | None,
) -> None:
    """The first rounds are gone, and nobody shows certificates."""
    world = at_round(6)
    for peer in world.peers:
        state = peer.driver.state
        object.__setattr__(state, "ancestors", {state.head.anchor: state.head.round})
    watched = watch(world, looks=20, ways=ways)
    with pytest.raises(Enough):
        await watched.follow(9)
    assert watched.rounds() == []
    assert watched.warnings() == ["no peer has round 1 any more, and no peer shows the certificates that lead further"]


async def test_where_too_much_would_be_to_load_it_begins_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "FAR_ROUNDS", 4)
    world = at_round(6)
    watched = watch(world, ways=tuple)
    await watched.follow(world.peers[0].disk.head.round + 3)
    first = watched.rounds()[0]
    assert first > 6
    assert f"rounds are too many to load: watching begins at round {first - 1}" in watched.warnings()[0]


async def test_garbage_and_unasked_frames_are_nothing() -> None:
    """Somebody who was not asked sends a chain; who was asked sends garbage before its answer."""
    world = at_round(3)
    garbage = [b"", b"\xff", encode(GetBlocks((b"a" * 32,)))]
    watched = watch(world, swaps=lambda sender, frame: garbage.pop() if garbage else frame)
    chain = encode(Blocks(tuple(world.peers[0].disk.blocks)))
    watched.watcher._on_frame("p0", chain)
    assert watched.said == []
    await watched.follow(4)
    assert watched.rounds()[:4] == [1, 2, 3, 4]


async def test_a_board_that_lies_about_rounds_costs_a_question_now_and_then() -> None:
    """All peers seem to be further than they are: what they have is told, and nothing is invented."""
    watched = watch(at_round(3), offset=50, looks=20)
    with pytest.raises(Enough):
        await watched.follow(1000)
    assert watched.rounds() == list(range(1, len(watched.rounds()) + 1))
    assert watched.rounds()


async def test_an_empty_board_is_said() -> None:
    world = at_round(1)
    world.board.clear()
    watched = watch(world)
    reading = watched.seat.read_heads

    async def nothing_once() -> dict[str, PeerRecord]:
        watched.watcher._read_heads = reading
        return {}

    watched.watcher._read_heads = nothing_once
    await watched.follow(3)
    assert watched.of(PeerStateChanged)[0].why == "no peer is on the board of this run"
    assert watched.rounds()[:3] == [1, 2, 3]


def test_it_starts_at_the_head_it_was_given() -> None:
    head: ChainHead = at_round(1).genesis
    assert watch(at_round(1)).watcher.head == head


async def test_strangers_do_not_lead_away_from_what_is_verified() -> None:
    """Two ids that nobody elected claim to be far ahead and show a round that they made up."""
    world = at_round(5)
    watching = watch(world, looks=40)
    seat, fakes = watching.seat, ("p90", "p91")
    block = world.peers[0].disk.blocks[4]
    invented = replace(block, update=replace(block.update, round=105, elect=fakes, weight=10**6))
    honest_heads, honest_send, honest_ask = seat.read_heads, seat.send, seat.ask

    async def read_heads() -> dict[str, PeerRecord]:
        heads = dict(await honest_heads())
        if len(watching.rounds()) >= 5:
            heads |= {fake: replace(next(iter(heads.values())), anchor=b"F" * 32, round=106) for fake in fakes}
        return heads

    def send(to: str, frame: bytes) -> None:
        if to not in fakes:
            honest_send(to, frame)
            return
        said = Heartbeat(b"F" * 32, 106, 10**6, b"s" * 32, False, 0, 0, False, "x", 0)
        asyncio.get_running_loop().call_soon(watching.watcher._on_frame, to, encode(said))

    async def ask(peer: str, name: str, timeout_s: float, max_bytes: int = 0, request: bytes = b"") -> bytes | None:
        if peer not in fakes or name not in (CHAIN_STATUS, QUESTION):
            return await honest_ask(peer, name, timeout_s, max_bytes, request)
        if name == QUESTION:
            return packed_way((invented,))
        return ChainStatus(round=106, shared=-1, offers=()).to_bytes()

    watching.watcher._read_heads = read_heads
    seat.send, seat.ask = send, ask
    with contextlib.suppress(Enough):
        await watching.watcher.follow(10**9)
    assert watching.watcher.head.electorate == world.peers[0].disk.head.electorate
    assert watching.rounds() == list(range(1, watching.watcher.head.round + 1))
    assert watching.warnings() == []


async def test_certificates_that_part_end_the_watching() -> None:
    """Which chain is the run's only its organiser can say."""
    watched = watch(at_round(5))
    await watched.follow(4)
    other = parting(watched.seat.world, 2)

    def another(sender: str, frame: bytes) -> bytes:
        return encode(Blocks((other,))) if isinstance(decode(frame), Blocks) else frame

    watched.seat.swaps = another
    with pytest.raises(BadChain, match=r"round 3 as p\d gives it is certified and is not the one"):
        await watched.follow(30)
