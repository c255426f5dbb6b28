"""One logical peer: the product's own lifecycle, driver and round machine over memory, with a trainer of integers.

It trains (makes random movements), submits, takes part, and applies; it can crash, stall and come back. What it shares
with the peers of the simulator is in `peer.planning.simulate.swarm_peer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Protocol

from dht.errors import BadInput
from dht.streams.base import MakeFrame, OnFrame, Streams
from peer.consensus.protocol import merkle
from peer.consensus.protocol.block import (
    VOID,
    Block,
    ContributionHeader,
    PartOutcome,
    Restart,
    Stuck,
    Update,
    part_outcomes,
)
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.head import ChainHead, next_anchor
from peer.consensus.protocol.layout import Part, divide
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.rounds.driver import Driver, HomesPort
from peer.consensus.rounds.interface import NORM, ROW, SUM, BufferPart, CheckMean, CheckRow, ReducePart
from peer.node.lifecycle.inputs_effects import (
    Apply,
    Moved,
    Result,
    Resume,
    RoundDecided,
    Stepped,
    Submit,
    TrainerStatus,
    Work,
)
from peer.planning.simulate.memory_network import MemoryNetwork
from peer.planning.simulate.memory_store import MemoryDisk
from peer.planning.simulate.memory_store import ModelKeys as ModelKeys
from peer.planning.simulate.swarm_peer import IN_ONE_PROCESS, PeerWorld, SwarmPeer
from peer.planning.simulate.swarm_peer import Crashed as Crashed
from peer.schema.events import Event as Reported
from peer.schema.events import PhaseEntered, RoundStarted
from peer.testing.faulty_streams import FaultyStreams

TRAIN_S = (2.0, 6.0)
"""Shortest and longest time of the inner steps of a round."""
NOISE = 16  # different means of the same parts
APPLY_S = 0.05
STEPS, STEP_TOKENS = 10, 10
"""Inner steps of a round, and tokens in each."""


class LogicalWorld(PeerWorld, Protocol):
    """What all peers of a world share."""

    rng: Random
    fragments: int
    parts: int
    """Of the model."""

    @property
    def network(self) -> MemoryNetwork:
        """What carries frames."""

    def homes_of(self, member: str) -> list[LogicalPeer]:
        """A member alone, or a lead and its workers."""

    def ask_organiser(self, peer: LogicalPeer, stuck: Stuck | None, answered: Callable[[Restart | None], None]) -> None:
        """Show its node that a peer is stuck."""

    def committing(self, peer: LogicalPeer, block: Block, head: ChainHead) -> None:
        """The peer is about to append a block to its chain."""

    def donor(self, peer: LogicalPeer) -> IntegerDisk | None:
        """The heaviest chain of those whom the peer reaches, if it is heavier than its own."""

    def resyncing(self, peer: LogicalPeer, donor: IntegerDisk) -> None:
        """The peer is about to give its chain up for that of another."""

    def resynced(self, peer: LogicalPeer) -> None:
        """The peer has another chain on its disk than it had."""

    def offered(self, peer: LogicalPeer, anchor: bytes, payloads: list[bytes]) -> None:
        """The peer has written what it gives for an anchor."""

    def applied(self, peer: LogicalPeer, update: Update) -> None:
        """The peer has taken the outer step of an update, perhaps again after a crash."""

    def entered(self, peer: LogicalPeer, phase: str, round: int) -> None:
        """The peer enters a phase of the round from anchor `round`; may raise `Crashed`."""


@dataclass
class Ledger:
    """A peer's tensors and its books: residual + counted + discounted is what it produced and did not lose.

    It stands at `anchor`; `counted` is what the chain up to there says that this peer gave.
    """

    anchor: bytes
    round: int = 0
    theta: list[int] = field(default_factory=lambda: [0] * PARTS)
    residual: list[int] = field(default_factory=lambda: [0] * PARTS)
    counted: list[int] = field(default_factory=lambda: [0] * PARTS)
    discounted: list[int] = field(default_factory=lambda: [0] * PARTS)
    forgotten: frozenset[bytes] = frozenset()
    """Anchors for which the chain says that this peer gave something it no longer has; it was written off."""
    fragments: int = 1
    layers: range | None = None
    """Which parts of the model are kept here; None: all."""

    @classmethod
    def empty(cls, anchor: bytes, parts: int, fragments: int, layers: range | None = None) -> Ledger:
        """Of a model of so many parts."""
        theta, residual, counted, discounted = ([0] * parts for _ in range(4))
        return cls(anchor, 0, theta, residual, counted, discounted, fragments=fragments, layers=layers)

    def copy(self) -> Ledger:
        """The same numbers, to be kept elsewhere."""
        return Ledger(
            self.anchor, self.round, list(self.theta), list(self.residual), list(self.counted), list(self.discounted),
            self.forgotten, self.fragments, self.layers,
        )  # fmt: skip

    def averaged(self) -> tuple[int, ...]:
        """The parts that the round from `anchor` averages, in the order of its update."""
        return averaged(self.round, self.fragments, len(self.theta))

    def keeps(self, part: int) -> bool:
        return self.layers is None or part in self.layers

    def encoded_balance(self) -> list[bytes]:
        """What a contribution offers: the residual of what the round averages, rounded."""
        return [encoded(self.residual[p] // STEP * STEP) if self.keeps(p) else NOT_HERE for p in self.averaged()]

    def apply(self, me: str, update: Update, mine: list[bytes] | None, objects: dict[bytes, bytes]) -> None:
        """The outer step, and what the update means for the residual of `me`, who had offered the bytes `mine`."""
        outcomes = part_outcomes(update, me, mine is not None)
        for at, (part, what) in enumerate(zip(self.averaged(), outcomes, strict=True)):
            if not self.keeps(part):
                continue
            if update.parts[at] != VOID:
                self.theta[part] += decoded(objects[update.parts[at]])
            if what is PartOutcome.COUNTED:
                assert mine is not None
                self.residual[part] -= decoded(mine[at])
                self.counted[part] += decoded(mine[at])
            elif what is PartOutcome.MISSED:
                kept = self.residual[part] * 3 // 4
                self.discounted[part] += self.residual[part] - kept
                self.residual[part] = kept
        if mine is None and any(update.contributed(me, at) for at in range(len(outcomes))):
            self.forgotten |= {update.parent}
        self.anchor, self.round = next_anchor(self.anchor, update.digest), update.round


@dataclass(kw_only=True)
class IntegerDisk(MemoryDisk):
    """A disk with the books on it."""

    ledger: Ledger

    def _sweep(self) -> None:
        """Once the books have followed the chain: until then they need what was offered."""
        if any(self.ledger.anchor == head.anchor for head in (self.genesis, *self.heads)[-2:]):
            super()._sweep()


class LogicalPeer(SwarmPeer):
    """One peer of a world of logical peers. Public fields are there for tests to look at and break."""

    world: LogicalWorld
    disk: IntegerDisk

    disk_type = IntegerDisk

    def __init__(self, world: LogicalWorld, name: str, member: str = "", layers: range | None = None) -> None:
        self.member = member or name
        """Who gives what is learned here."""
        self.layers = range(world.parts) if layers is None else layers
        """Parts of the model that are kept here."""
        disk = self.disk_type(
            self, world.genesis, world.rules(name).keep_rounds,
            on_commit=lambda block, head: world.committing(self, block, head),
            ledger=Ledger.empty(world.genesis.anchor, world.parts, world.fragments, layers),
        )  # fmt: skip
        super().__init__(world, name, disk)
        self.produced = [0] * world.parts
        self.lost = [0] * world.parts
        """Movement that was only in memory when the peer crashed."""
        self.reports: list[Reported] = []
        """What it told the people, in all its lives."""
        self.fuse: int | None = None
        """After this many more effects the peer crashes."""
        self.streams = FaultyStreams(
            world.network.connect(name), lambda: world.now, self.later, Random(f"{name} {world.rng.random()}")
        )
        self._unsaved = [0] * world.parts
        self._unoffered = 0
        """Inner steps since the newest contribution; those that were only in memory are lost in a crash."""
        self.boot()

    # ---- life and death ----

    def recover(self) -> None:
        """The books as they were written."""
        self.fuse = None
        self.ledger = self.disk.ledger.copy()
        self._step, self._step_s, self._offered = 0, 1.0, False
        self._follow_the_chain()

    def connect(self) -> Streams:
        """The switches stay as they are."""
        self.streams.reconnect(self.world.network.connect(self.name))
        return FusedStreams(self, self.streams)

    def make_driver(self, streams: Streams) -> Driver:
        world, disk = self.world, self.disk
        return Driver(
            self.state_on_disk(), clock=lambda: world.now, streams=streams, disk=disk, arithmetic=self.make_sums(),
            trainer=self, report=self.report, publish=self.publish, homes=self.make_homes(streams),
            framing=IN_ONE_PROCESS, organiser=self,
        )  # fmt: skip

    def make_sums(self) -> IntegerSums:
        return IntegerSums(self.disk, self.world.rng)

    def make_homes(self, streams: Streams) -> HomesPort | None:
        """What other homes do for this one."""
        return None

    def ask(self, stuck: Stuck | None, answered: Callable[[Restart | None], None]) -> None:
        """`peer.consensus.rounds.driver.OrganiserPort`."""
        self.world.ask_organiser(self, stuck, answered)

    def chance(self) -> float:
        return self.world.rng.random()

    def _follow_the_chain(self) -> None:
        """Bring the ledger to the newest anchor on disk; a crash may have left it behind."""
        for block in self.disk.blocks[self.ledger.round :]:
            self._apply(block.update)

    def crash(self) -> None:
        """Everything in memory is gone."""
        super().crash()
        for part in self.layers:
            self.lost[part] += self._unsaved[part]
        self._unsaved, self._unoffered = [0] * self.world.parts, 0

    def distort(self, factor: float, layer: str) -> None:
        """What it owes is `factor` times as much from now on, in the part called `layer` or, if that is empty, in all.

        Raises BadInput for a part that does not exist.
        """
        names = [str(part) for part in self.layers]
        if layer and layer not in names:
            raise BadInput(f"there is no layer {layer!r}; a logical peer has {', '.join(names)}")
        for part in self.layers:
            if layer in ("", str(part)):
                more = round((factor - 1) * self.ledger.residual[part])
                self.produced[part] += more
                self._unsaved[part] += more
                self.ledger.residual[part] += more

    def burn(self) -> None:
        """One more effect; the fuse may have burnt out."""
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse <= 0:
                raise Crashed

    # ---- what goes on all the time ----

    def is_cut_off(self, other: str) -> bool:
        """Also by the switches of its own streams."""
        return super().is_cut_off(other) or self.streams.is_cut(other)

    def report(self, event: Reported) -> None:
        self.reports.append(event)
        self.tell(event)

    def tell(self, event: Reported) -> None:
        match event:
            case PhaseEntered(phase=phase, round=round):
                self.world.entered(self, phase, round)
            case RoundStarted(round=round):
                self.world.entered(self, "train", round)

    # ---- the trainer ----

    @property
    def status(self) -> TrainerStatus:
        return TrainerStatus(
            round=self.ledger.round, step=self._step, fresh=self._unoffered > 0, offered=self._offered, can_leave=False
        )  # fmt: skip

    def step_s(self) -> float:
        life = self.life
        waits = life.held() or life.owner.holds or not life.in_step
        assert not waits, "no step begins while it waits"
        if not life.trainer.step:
            self._step_s = self.world.rng.uniform(*TRAIN_S) / STEPS
        return self._step_s

    def train(self, steps: int, whole: float) -> Stepped:
        for part in self.layers:
            movement = self.world.rng.randrange(-1000, 1000)
            self.produced[part] += movement
            self._unsaved[part] += movement
            self.ledger.residual[part] += movement
        self._step, self._unoffered = self._step + steps, self._unoffered + steps
        return Stepped(steps=steps, tokens=STEP_TOKENS * steps, loss=None)

    def seconds(self, work: Work) -> float:
        match work, self.life.moving:
            case Apply(), RoundDecided(agreed_at=agreed_at):
                return agreed_at + APPLY_S - self.now
        return 0.0

    def do(self, work: Work) -> Result:
        match work:
            case Submit(anchor=anchor):
                self._submit(anchor)
                return None
            case Apply(update=update):
                self._apply(update)
            case Resume(anchor=anchor):
                self._offered = self.disk.header(anchor) is not None
        self.burn()
        self._save()
        return Moved(state=self.state_digest())

    def _submit(self, anchor: bytes) -> None:
        """Written once per anchor: a peer that stands here again after a crash offers the same bytes."""
        self._offered = True
        if self.disk.header(anchor) is not None:
            return
        payloads = self.ledger.encoded_balance()
        root = merkle.root([digest_of(payload) for payload in payloads])
        steps, self._unoffered = self._unoffered, 0
        header = ContributionHeader(
            self.name, anchor, root, tokens=STEP_TOKENS * steps, steps=steps, bandwidth_bps=0, leaving=False
        ).signed(self.driver.state.rules.keys)  # fmt: skip
        self.disk.save_contribution(header, payloads)
        self.world.offered(self, anchor, payloads)
        self._save()

    def resync(self, why: str) -> None:
        """Told by the driver: begin anew from what another has, if one is in reach, and keep the residual.

        What the chain that is left had counted and this peer cannot give again is lost.
        """
        donor = self.world.donor(self)
        if donor is None:
            return
        self.world.resyncing(self, donor)
        for part in self.layers:
            self.lost[part] += self.ledger.counted[part]
        before, genesis = self.ledger, self.disk.genesis.anchor
        self.ledger = Ledger.empty(genesis, self.world.parts, self.world.fragments, before.layers)
        self.ledger.residual, self.ledger.discounted = before.residual, before.discounted
        self.disk.start_anew(donor)
        self.world.resynced(self)
        self._save()
        self.world.scheduler.call_in(0.0, self.boot)
        raise Crashed

    def state_digest(self) -> bytes:
        """H(θ) of the newest anchor that was applied."""
        return digest_of(repr(self.ledger.theta).encode())

    def _save(self) -> None:
        self.disk.ledger = self.ledger.copy()
        self._unsaved = [0] * self.world.parts

    def _apply(self, update: Update) -> None:
        self._step, self._offered = 0, False
        self.ledger.apply(self.member, update, self.disk.offered(update.parent), self.disk.objects)
        self.world.applied(self, update)


class FusedStreams:
    """Streams whose sends burn the fuse of their peer, and wait while it is stalled."""

    def __init__(self, peer: LogicalPeer, streams: Streams) -> None:
        self._peer, self._streams = peer, streams

    def send(self, to: str, frame: bytes) -> None:
        self._peer.burn()
        self._unless_stalled(self._streams.send, to, frame)

    def send_bulk(self, to: str, make_frame: MakeFrame) -> None:
        """Queue a frame that is made later."""
        self._peer.burn()
        self._unless_stalled(self._streams.send_bulk, to, make_frame)

    def listen(self, on_frame: OnFrame) -> None:
        self._streams.listen(on_frame)

    @property
    def unreachable(self) -> frozenset[str]:
        return self._streams.unreachable

    def _unless_stalled(self, send: Callable[..., None], *args: object) -> None:
        if self._peer.stalled_until > self._peer.world.now:
            self._peer.later(0.0, send, *args)
        else:
            send(*args)


PARTS = 3
STEP = 8
"""Encoding rounds to multiples of this."""
PART_BYTES = 8
NOT_HERE = b""
"""In place of a part that another home has."""


@cache
def model_of(parts: int) -> tuple[Part, ...]:
    """Each part is a layer of its own."""
    return tuple(Part(layer, layer, 1) for layer in range(parts))


def encoded(value: int) -> bytes:
    return value.to_bytes(PART_BYTES, "big", signed=True)


def decoded(payload: bytes) -> int:
    return int.from_bytes(payload[:PART_BYTES], "big", signed=True)


def averaged(round: int, fragments: int, parts: int = PARTS) -> tuple[int, ...]:
    """The parts of the model that the round from anchor `round` averages."""
    return divide(model_of(parts), fragments)[round % fragments].numbers


@dataclass
class IntegerSums:
    """`peer.consensus.rounds.driver.ReductionPort` on integers."""

    disk: IntegerDisk
    rng: Random
    parts: dict[tuple[object, str, int], tuple[tuple[bytes, ...], bytes]] = field(default_factory=dict)

    def keep(self, effect: BufferPart) -> None:
        self.parts[effect.place, effect.sender, effect.part] = (effect.path, effect.payload)

    def kept(self, place: object, giver: str, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        """(Merkle path, bytes) of a part that is kept."""
        return self.parts.get((place, giver, part))

    def measure(self, payload: bytes, direction: bytes, done: Callable[[PartNorms], None]) -> None:
        """Of one integer."""
        value = decoded(payload)
        mean = self.disk.load(direction)
        last = None if mean is None else float(decoded(mean) // NOISE)
        done(PartNorms(float(value) ** 2, value * (last or 0.0), None if last is None else last**2))

    def reduce(self, effect: ReducePart, done: Callable[[bytes], None]) -> None:
        """The sum, with noise in its lowest bits."""
        total = sum(decoded(self.parts[effect.place, member, effect.part][1]) for member in effect.members)
        payload = encoded(total * NOISE + self.rng.randrange(NOISE)) + b"".join(
            self.parts[effect.place, member, effect.part][1] for member in effect.rows
        )
        digest = digest_of(payload)
        self.disk.store(digest, payload, lambda: done(digest))

    def check(self, effect: CheckMean, me: str, whole: bytes, mine: bytes | None, done: Callable[[str], None]) -> None:
        """An integer is its own sketch; noise stands for the error of a codec."""
        done(self._fault(effect, me, whole, mine))

    def _fault(self, effect: CheckMean, me: str, whole: bytes, mine: bytes | None) -> str:
        rows = [whole[at : at + PART_BYTES] for at in range(PART_BYTES, len(whole), PART_BYTES)]
        total = sum(decoded(row) for row, weight in zip(rows, effect.weights, strict=True) if weight)
        if not 0 <= decoded(whole) - NOISE * total < NOISE:
            return SUM
        if mine is not None and rows[effect.names.index(me)] != mine:
            return ROW
        for row, norm, weight in zip(rows, effect.declared, effect.weights, strict=True):
            if weight and not abs(float(decoded(row))) <= (1.0 + 1e-3) * norm:
                return NORM
        return ""

    def check_row(self, effect: CheckRow, whole: bytes, done: Callable[[bool], None]) -> None:
        done(whole[(effect.rank + 1) * PART_BYTES : (effect.rank + 2) * PART_BYTES] == effect.payload)

    def forget(self) -> None:
        self.parts.clear()
