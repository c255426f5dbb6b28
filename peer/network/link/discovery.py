"""Finds the other peers of the run on the board, tells the round machine about them, and dials them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.metadata import version

from dht import records
from dht.board import Board, peers_in
from dht.clock import MOST_S
from dht.errors import KeyInUse
from dht.identity import Identity, public_key_of
from dht.node import Node
from dht.records import (
    MAX_LABEL_CHARS,
    MAX_MEASURE,
    MAX_RECORD_BYTES,
    MAX_RELAYS,
    PeerRecord,
    Record,
    SoughtHomes,
    pack,
    sign_record,
)
from dht.streams.shaper import TokenBucket
from peer.consensus.protocol.messages import Heartbeat
from peer.consensus.rounds.driver import Driver
from peer.consensus.rounds.interface import Received
from peer.network.link.gatekeeper import Gatekeeper
from peer.schema.events import DeviceReported

READ_BOARD_S = 3.0
MEET_AGAIN_S = 20.0
DEVICE_AGAIN_S = 600.0
"""Nobody makes this peer write more often what GPU he says to have."""
COPIES_DIFFER_S = 2 * MOST_S
"""The clocks of two machines are no further apart: who says something with the key of this peer so long after it began
is no process that ended before."""
DIALS = 4
"""At a time, of voters and of others: a dial of an address that swallows all takes five seconds, and each name has
four."""
STRANGE_DIALS = 16
"""Of peers without a vote that have never answered: so many at once, and STRANGE_DIALS_PER_S in the long run. Anybody
may put names on the board, and each name has four addresses."""
STRANGE_DIALS_PER_S = 1 / 3


class PeerDiscovery:
    """Finds the peers of the run and connects to those that are not heard. `hear_speeds` is called with the tokens
    per second that the others of the electorate report; records of other peers prove nothing. `report` is called
    with the memory of their GPUs."""

    def __init__(
        self, node: Node, notices: Announcer, driver: Driver, hear_speeds: Callable[[Mapping[str, float]], None],
        report: Callable[[DeviceReported], None],
    ) -> None:  # fmt: skip
        self._report = report
        self._devices: dict[str, tuple[float, float]] = {}
        """What each peer reported about its GPU, and when."""
        self._node, self._notices, self._driver, self._hear_speeds = node, notices, driver, hear_speeds
        self._met: dict[str, tuple[float, tuple[str, ...]]] = {}
        """When each peer was last dialled, and where."""
        self._voters_dials, self._other_dials = asyncio.Semaphore(DIALS), asyncio.Semaphore(DIALS)
        self._strange_dials = TokenBucket(STRANGE_DIALS_PER_S, STRANGE_DIALS, time.monotonic())
        self._answered: set[str] = set()

    async def follow(self) -> None:
        """Read the board again and again. A dial that hangs delays no other."""
        async with asyncio.TaskGroup() as dialling:
            while True:
                heads = await self._notices.read_heads()
                self._hear_speeds(self._speeds(heads))
                self._tell_devices(heads)
                others = list(said_by(heads).items())
                random.shuffle(others)  # else whose names come first would have all dials
                for peer, (head, addresses) in others:
                    if head is not None and self._is_news(peer, head):
                        self._driver.deliver(Received(time.monotonic(), peer, head))
                    if self._is_due(peer, addresses) and self._may_dial(peer):
                        self._met[peer] = time.monotonic(), addresses
                        dialling.create_task(self._meet(peer, addresses))
                self._forget(heads)
                await asyncio.sleep(READ_BOARD_S)

    def _forget(self, heads: Mapping[str, PeerRecord]) -> None:
        """Forget peers that are gone from the board, since ids cost nothing."""
        now = time.monotonic()
        self._met = {peer: met for peer, met in self._met.items() if peer in heads or now - met[0] <= MEET_AGAIN_S}
        self._answered &= self._met.keys()

    def _speeds(self, heads: Mapping[str, PeerRecord]) -> dict[str, float]:
        voters = (peer for peer in self._driver.state.electorate if peer in heads)
        return {peer: speed for peer in voters if (speed := heads[peer].tokens_per_s)}

    def _tell_devices(self, heads: Mapping[str, PeerRecord]) -> None:
        now = time.monotonic()
        for peer in self._driver.state.electorate:
            device_gb = heads[peer].device_gb if peer in heads else None
            before, told_at = self._devices.get(peer, (None, float("-inf")))
            if device_gb is not None and device_gb != before and now - told_at > DEVICE_AGAIN_S:
                self._devices[peer] = device_gb, now
                self._report(DeviceReported(about=peer, device_gb=device_gb))

    def _is_news(self, peer: str, head: Heartbeat) -> bool:
        """News about a peer that sends nothing to me itself: it may be in another part of a network that was split."""
        heard, heard_at = self._driver.state.heard.get(peer, (None, float("-inf")))
        return heard is None or (time.monotonic() - heard_at > MEET_AGAIN_S and heard.anchor != head.anchor)

    def _is_due(self, peer: str, addresses: tuple[str, ...]) -> bool:
        """Dial at once; again while nothing is heard of it, and when its addresses change."""
        if peer not in self._met:
            return True
        _, heard_at = self._driver.state.heard.get(peer, (None, float("-inf")))
        (met_at, where), now = self._met[peer], time.monotonic()
        return now - met_at > MEET_AGAIN_S and (addresses != where or now - heard_at > MEET_AGAIN_S)

    def _may_dial(self, peer: str) -> bool:
        now = time.monotonic()
        if peer in self._driver.state.electorate:
            return True
        if self._other_dials.locked():
            return False  # at the next look: else more would wait each time than can be dialled
        if peer in self._answered:
            return True
        if self._strange_dials.wait_s(1, now) > 0:
            return False
        self._strange_dials.take(1, now)
        return True

    async def _meet(self, peer: str, addresses: tuple[str, ...]) -> None:
        is_voter = peer in self._driver.state.electorate
        async with self._voters_dials if is_voter else self._other_dials:
            if await self._node.meet(peer, addresses):
                self._answered.add(peer)


@dataclass(frozen=True, kw_only=True)
class TrainingFigures:
    """The figures of this peer's training for people who read the board. Nothing is decided by them except how many
    steps others make, where `round.pace` is `speed`."""

    loss: float | None = None
    """Nats per token, as last reported."""
    tokens_per_s: float | None = None
    evaluated: float | None = None
    """The newest held-out loss that this peer measured, and the anchor."""
    evaluated_round: int | None = None
    device_gb: float | None = None
    """Memory of the GPU on which it trains, in 10⁹ bytes; None without one."""


NOTHING = TrainingFigures()


@dataclass
class HomesNotice:
    """What this peer's record says about homes that it looks for; changed as that changes."""

    said: SoughtHomes | None = None


@cache
def client_version() -> str:
    """The version of this client, as far as it fits into a HEAD."""
    return version("homefires")[:MAX_LABEL_CHARS]


@dataclass(frozen=True)
class Announcer:
    """Publishes this peer's record on the board of one run, and reads those of others."""

    board: Board
    identity: Identity
    run: bytes
    name: str
    """The name that people see."""
    organiser: str = ""
    """The organiser of the run."""
    addrs: Callable[[], tuple[str, ...]] = tuple
    """Where this peer can be dialled now."""
    guard: Gatekeeper | None = None
    """Decides whose records are believed; None: everybody's."""
    admission: Callable[[], bytes | None] = lambda: None
    """The admission that I show now, in a run that asks for one."""
    relays: Callable[[], tuple[str, ...]] = tuple
    """Peer ids of the relays through which this peer can be dialled now."""
    homes: HomesNotice = field(default_factory=HomesNotice)
    life: int = field(default_factory=lambda: round(1e6 * time.time()))
    """When this process began, in microseconds of Unix time: no other one has the same."""

    async def publish(self, head: Heartbeat, learning: TrainingFigures = NOTHING) -> None:
        addrs = self.addrs()
        homes = self.homes.said
        record = self._signed(head, learning, addrs, homes)
        most, few = len(addrs), homes and replace(homes, trips_ms=())
        while (
            len(pack(record)) > MAX_RECORD_BYTES and most >= 0
        ):  # a long name and long addresses: others must hear of this peer
            record = self._signed(head, NOTHING, addrs[:most], few)
            most -= 1
        await self.board.publish(records.HEAD, record, records.HEAD_TTL_S)

    def _signed(
        self, head: Heartbeat, learning: TrainingFigures, addrs: tuple[str, ...], homes: SoughtHomes | None
    ) -> Record:
        # A record with any other value would be refused, and this peer not be seen.
        figures = {
            name: value for name, value in asdict(learning).items() if value is not None and 0 <= value <= MAX_MEASURE
        }
        body = PeerRecord(
            run=self.run, anchor=head.anchor, round=head.round, weight=head.weight, state=head.state,
            ready=head.ready, tokens=head.tokens, steps=head.steps,
            leaving=head.leaving, name=self.name, version=client_version(),
            addrs=addrs, homes=homes, admission=self.admission(), relays=self._relay_keys(), life=self.life,
            orders=self.guard.roster.orders.number or None if self.guard is not None else None, **figures,
        )  # fmt: skip
        return sign_record(self.identity, self.run, records.HEAD, body.pack(), time.time() + records.HEAD_TTL_S)

    def _relay_keys(self) -> tuple[bytes, ...] | None:
        keys = (public_key_of(relay) for relay in self.relays()[:MAX_RELAYS])
        return tuple(key for key in keys if key is not None) or None

    async def read_heads(self) -> dict[str, PeerRecord]:
        """What each other peer that is let in says about itself, by peer id; its anchor is empty before it takes
        part. Raises KeyInUse if another process publishes under this peer's id."""
        said = await self.board.read(records.HEAD)
        if (mine := said.pop(self.identity.peer_id, None)) is not None:
            self._require_alone(mine)
        heads = peers_in(said)
        return {peer: head for peer, head in heads.items() if self.guard is None or self.guard.takes(peer, head)}

    def _require_alone(self, said: Record) -> None:
        """Of two running copies of a folder the one that began later ends. An earlier record, or one by another
        clock, may be from an earlier life of this peer that has ended."""
        said_at = said.expires - records.HEAD_TTL_S
        head = peers_in({said.author: said}).get(said.author)
        if head is None or said_at - self.life / 1e6 < COPIES_DIFFER_S:
            return
        if (head.life or 0) < self.life:
            raise KeyInUse(
                "a copy of this folder takes part elsewhere with the same key: that one began before and goes on, this "
                "one ends; take part from here with a new folder, and delete this one"
            )

    async def read_others(self) -> dict[str, tuple[Heartbeat | None, tuple[str, ...]]]:
        """By peer id: the HEAD of each other peer, None before it takes part, and the addresses that it names."""
        return said_by(await self.read_heads())


def said_by(heads: Mapping[str, PeerRecord]) -> dict[str, tuple[Heartbeat | None, tuple[str, ...]]]:
    """The result of `Announcer.read_others` for these records, by peer id."""
    return {peer: (_said(body) if body.anchor else None, body.ways(peer)) for peer, body in heads.items()}


def _said(body: PeerRecord) -> Heartbeat:
    return Heartbeat(
        anchor=body.anchor, round=body.round, weight=body.weight, state=body.state, ready=body.ready,
        tokens=body.tokens, steps=body.steps, leaving=body.leaving, name=body.name,
    )  # fmt: skip
