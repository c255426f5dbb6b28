"""A swarm of round machines on the memory streams, with integers for tensors, and faults to try them.

Every logical peer runs the product's own `Driver` and machine. A part is one integer; encoding
rounds it, so residues exist; a mean is a sum to which its reducer adds noise, so two reducers never
make the same bytes. A crash strikes between any two effects, and only `Disk` survives it.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from dht.memory import LinkModel, MemoryNetwork, MemoryStreams, Scheduler
from dht.streams import MakeFrame
from peer.averaging.driver import Driver
from peer.rounds import merkle
from peer.rounds.layout import Part
from peer.rounds.machine import TICK_S, begin
from peer.rounds.messages import Prepare, Promise, Propose, Voted
from peer.rounds.names import digest_of, genesis_anchor, next_anchor
from peer.rounds.settlement import Settlement, settle
from peer.rounds.state import Acceptor, Applied, Frozen, Head, Keep, Progressed, Reduce, Rules, Tick
from peer.rounds.update import VOID, Block, Pledge, Update

PARTS = 3
STEP = 8
"""Encoding rounds to multiples of this."""
RUN = b"r" * 32


class Crashed(Exception):
    """The fuse of a peer burnt out: nothing after this effect happens."""


@dataclass(frozen=True)
class ModelKeys:
    """Signatures that only their author makes in this model: a hash of author and content."""

    me: str

    def sign(self, kind: str, payload: bytes) -> bytes:
        return _signature(self.me, kind, payload)

    def verify(self, peer: str, kind: str, payload: bytes, signature: bytes) -> bool:
        return signature == _signature(peer, kind, payload)


def _signature(peer: str, kind: str, payload: bytes) -> bytes:
    return hashlib.blake2b(f"{peer} {kind} ".encode() + payload, digest_size=64).digest()


@dataclass
class Ledger:
    """A peer's tensors and its books. `produced` is never forgotten; the rest must add up to it."""

    round: int = 0
    theta: list[int] = field(default_factory=lambda: [0] * PARTS)
    balance: list[int] = field(default_factory=lambda: [0] * PARTS)
    counted: list[int] = field(default_factory=lambda: [0] * PARTS)
    discounted: list[int] = field(default_factory=lambda: [0] * PARTS)


@dataclass
class Disk:
    """What survives a crash. Each method is one write that happens whole or not at all."""

    peer: ModelPeer
    head: Head
    acceptor: Acceptor | None = None
    objects: dict[bytes, bytes] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)
    contributions: dict[bytes, tuple[Pledge, list[bytes]]] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)

    def save_acceptor(self, acceptor: Acceptor) -> None:
        self.peer.burn()
        self.acceptor = acceptor

    def save_object(self, digest: bytes, payload: bytes) -> None:
        self.peer.burn()
        self.objects[digest] = payload

    def accepted_update(self) -> Update | None:
        if self.acceptor is None or self.acceptor.accepted is None:
            return None
        return Update.from_bytes(self.objects[self.acceptor.accepted[1]])

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None:
        self.save_object(digest, payload)
        self.peer.later(0.0, done)

    def load(self, digest: bytes) -> bytes | None:
        return self.objects.get(digest)

    def commit(self, block: Block, head: Head, awaited: frozenset[bytes]) -> None:
        self.peer.burn()
        self.peer.world.check_commit(self.peer, block, head)
        self.blocks.append(block)
        self.heads.append(head)
        self.head = head

    def blocks_after(self, anchor: bytes) -> tuple[Block, ...]:
        parents = [block.update.parent for block in self.blocks]
        return tuple(self.blocks[parents.index(anchor) :])[:16]

    def my_part(self, anchor: bytes, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        if anchor not in self.contributions:
            return None
        _, payloads = self.contributions[anchor]
        leaves = [digest_of(payload) for payload in payloads]
        return merkle.path(leaves, part), payloads[part]


@dataclass
class Sums:
    """Arithmetic on integers."""

    peer: ModelPeer
    kept: dict[tuple[object, str, int], bytes] = field(default_factory=dict)

    def keep(self, effect: Keep) -> None:
        self.kept[effect.place, effect.sender, effect.part] = effect.payload

    def reduce(self, effect: Reduce, done: Callable[[bytes], None]) -> None:
        total = sum(_decoded(self.kept[effect.place, member, effect.part]) for member in effect.members)
        payload = _encoded(total * 16 + self.peer.world.rng.randrange(16))
        digest = digest_of(payload)
        self.peer.disk.store(digest, payload, lambda: done(digest))

    def forget(self) -> None:
        self.kept.clear()


class ModelPeer:
    """One logical peer: trains (makes random movements), freezes, applies; can crash, stall and come back."""

    def __init__(self, world: World, name: str, head: Head) -> None:
        self.world, self.name = world, name
        self.disk = Disk(self, head)
        self.produced = [0] * PARTS
        self.lost = [0] * PARTS
        self.unsaved = [0] * PARTS
        self.life = 0
        self.alive = False
        self.fuse: int | None = None
        self.stalled_until = 0.0
        self.boot()

    # ---- life and death ----

    def boot(self) -> None:
        """Start from what is on disk."""
        disk, world = self.disk, self.world
        self.alive, self.fuse, self.life = True, None, self.life + 1
        self.ledger = copy.deepcopy(disk.ledger)
        for block in disk.blocks[self.ledger.round :]:
            self._apply(block)
        pledge, _ = disk.contributions.get(disk.head.anchor, (None, []))
        heads = [world.genesis, *disk.heads]
        held = {name: len(payload) for name, payload in disk.objects.items()}
        state = begin(
            world.rules(self.name), disk.head, world.now, ancestors={head.anchor: head.round for head in heads},
            acceptor=disk.acceptor, accepted=disk.accepted_update(), pledge=pledge, held=held,
        )  # fmt: skip
        streams = world.network.connect(self.name)
        self.driver = Driver(
            state, clock=lambda: world.now, streams=Fused(self, streams), disk=disk, arithmetic=Sums(self),
            trainer=self, report=lambda event: None,
        )  # fmt: skip
        streams.listen(self.guarded(self.driver.on_frame))
        self.later(TICK_S * world.rng.random(), self._tick)
        if pledge is None:
            self._train()

    def crash(self) -> None:
        """Everything in memory is gone."""
        self.alive = False
        self.world.network.disconnect(self.name)
        for part in range(PARTS):
            self.lost[part] += self.unsaved[part]
        self.unsaved = [0] * PARTS

    def burn(self) -> None:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse <= 0:
                raise Crashed

    def guarded(self, call: Callable[..., None]) -> Callable[..., None]:
        """`call` for this life only; a burnt fuse ends the life."""
        life = self.life

        def guard(*args: object) -> None:
            if not self.alive or life != self.life:
                return
            if self.stalled_until > self.world.now:
                self.world.scheduler.call_at(self.stalled_until, guard, *args)
                return
            try:
                call(*args)
            except Crashed:
                self.crash()

        return guard

    def later(self, delay_s: float, call: Callable[..., None], *args: object) -> None:
        self.world.scheduler.call_in(delay_s, self.guarded(call), *args)

    def _tick(self) -> None:
        self.later(TICK_S, self._tick)
        self.driver.deliver(Tick(self.world.now))

    # ---- the trainer ----

    def _train(self) -> None:
        anchor, seconds = self.driver.state.head.anchor, self.world.rng.uniform(2.0, 6.0)
        self.later(seconds / 2, self._half, anchor)
        self.later(seconds, self._freeze, anchor)

    def _half(self, anchor: bytes) -> None:
        if self.driver.state.head.anchor == anchor and self.driver.state.pledge is None:
            self._move()
            self.driver.deliver(Progressed(self.world.now, 0.6))

    def _move(self) -> None:
        for part in range(PARTS):
            movement = self.world.rng.randrange(-1000, 1000)
            self.produced[part] += movement
            self.unsaved[part] += movement
            self.ledger.balance[part] += movement

    def freeze(self) -> None:
        self.later(0.0, self._freeze, self.driver.state.head.anchor)

    def _freeze(self, anchor: bytes) -> None:
        state = self.driver.state
        if state.head.anchor != anchor or state.pledge is not None:
            return
        self._move()
        payloads = [_encoded(balance // STEP * STEP) for balance in self.ledger.balance]
        leaves = [digest_of(payload) for payload in payloads]
        pledge = Pledge(self.name, anchor, merkle.root(leaves), 100, 10, 0, False)
        pledge = pledge.signed(state.rules.keys)
        self.burn()
        self.disk.contributions[anchor] = (pledge, payloads)
        self._save()
        self.driver.deliver(Frozen(self.world.now, pledge))

    def committed(self, block: Block, head: Head) -> None:
        self._apply(block)
        self.burn()
        self._save()
        self.later(0.05, self._applied, head.anchor)

    def _applied(self, anchor: bytes) -> None:
        state = digest_of(repr(self.ledger.theta).encode())
        self.driver.deliver(Applied(self.world.now, anchor, state))
        if self.driver.state.head.anchor == anchor:
            self._train()

    def _save(self) -> None:
        self.disk.ledger = copy.deepcopy(self.ledger)
        self.unsaved = [0] * PARTS

    def _apply(self, block: Block) -> None:
        """The outer step, and the four rules of the balance."""
        ledger, update = self.ledger, block.update
        _, payloads = self.disk.contributions.get(update.parent, (None, None))
        for part, what in enumerate(settle(update, self.name, payloads is not None)):
            if update.parts[part] != VOID:
                ledger.theta[part] += _decoded(self.disk.objects[update.parts[part]])
            if what is Settlement.COUNTED:
                assert payloads is not None
                ledger.balance[part] -= _decoded(payloads[part])
                ledger.counted[part] += _decoded(payloads[part])
            elif what is Settlement.MISSED:
                kept = ledger.balance[part] * 3 // 4
                ledger.discounted[part] += ledger.balance[part] - kept
                ledger.balance[part] = kept
        ledger.round += 1


@dataclass
class Fused:
    """Streams whose sends burn the fuse."""

    peer: ModelPeer
    streams: MemoryStreams

    def send(self, to: str, frame: bytes) -> None:
        self.peer.burn()
        self.streams.send(to, frame)

    def send_when_free(self, to: str, make_frame: MakeFrame) -> None:
        self.peer.burn()
        self.streams.send_when_free(to, make_frame)

    def listen(self, on_frame: Callable[[str, bytes], None]) -> None:
        self.streams.listen(on_frame)


class World:
    """N peers, a network, a clock and a seed. `run` applies faults, then calm, and checks what must hold."""

    def __init__(self, seed: int, peers: int, link: LinkModel | None = None) -> None:
        self.rng = Random(seed)
        self.scheduler = Scheduler()
        self.network = MemoryNetwork(self.scheduler, Random(seed + 1), link)
        names = tuple(f"p{index}" for index in range(peers))
        anchor = genesis_anchor(RUN, names, b"")
        self.genesis = Head(anchor=anchor, round=0, weight=0, electorate=names, members=names)
        self.updates: dict[bytes, bytes] = {}
        """The one update of each anchor."""
        self.thetas: dict[bytes, list[int]] = {}
        self.commits = 0
        self.first_committer: Callable[[ModelPeer], None] | None = None
        self.peers = [ModelPeer(self, name, self.genesis) for name in names]

    @property
    def now(self) -> float:
        return self.scheduler.now

    def rules(self, name: str) -> Rules:
        return Rules(
            me=name, keys=ModelKeys(name), parts=tuple(Part(i, i, 1) for i in range(PARTS)), part_bytes=(8,) * PARTS,
            gather_s=3.0, ack_s=1.0, exchange_s=2.0, patience_s=4.0, stagger_s=1.0, tokens_cap=10**9,
        )  # fmt: skip

    def check_commit(self, peer: ModelPeer, block: Block, head: Head) -> None:
        """Invariant 1: never two updates for one anchor. Everybody who commits computes the same next anchor."""
        update = block.update
        first = self.updates.setdefault(update.parent, update.digest)
        assert first == update.digest, f"two updates for round {update.round} at {self.now:.2f} s"
        assert head.anchor == next_anchor(update.parent, update.digest)
        if first == update.digest and head.anchor not in self.thetas:
            self.commits += 1
            if self.first_committer is not None:
                self.first_committer(peer)

    def check(self) -> None:
        """Invariants 2 and 3: equal head, equal state; and for each peer and part the books balance."""
        for peer in self.peers:
            ledger = peer.ledger if peer.alive else peer.disk.ledger
            applied = ledger.round == peer.disk.head.round
            if applied:
                theta = self.thetas.setdefault(peer.disk.head.anchor, list(ledger.theta))
                assert theta == ledger.theta, f"{peer.name} has other bits at round {ledger.round}"
            for part in range(PARTS):
                books = ledger.counted[part] + ledger.balance[part] + ledger.discounted[part] + peer.lost[part]
                assert books == peer.produced[part], f"{peer.name} part {part}: {books} of {peer.produced[part]}"
            self._check_counted(peer, ledger)

    def _check_counted(self, peer: ModelPeer, ledger: Ledger) -> None:
        """What a peer booked as counted is what the chain says it gave."""
        for part in range(PARTS):
            on_chain = sum(
                _decoded(peer.disk.contributions[block.update.parent][1][part])
                for block in peer.disk.blocks[: ledger.round]
                if block.update.contributed(peer.name, part)
            )
            assert on_chain == ledger.counted[part], f"{peer.name} part {part}: counted twice or not at all"

    def run(self, faults: Callable[[World], None], *, fault_s: float, calm_s: float) -> None:
        """Faults, then calm; at the end one chain that moved on (invariants 4 and 5)."""
        faults(self)
        self.scheduler.run_until(fault_s)
        self.check()
        self.first_committer = None
        self.network.heal()
        self.network.link = LinkModel()
        for peer in self.peers:
            peer.fuse = None
            peer.stalled_until = min(peer.stalled_until, fault_s)
            if not peer.alive:
                peer.boot()
        before = max(peer.disk.head.round for peer in self.peers)
        self.scheduler.run_until(fault_s + calm_s)
        self.check()
        rounds = [peer.disk.head.round for peer in self.peers]
        assert max(rounds) >= before + 2, f"only {max(rounds) - before} rounds in {calm_s:.0f} s of calm"
        assert min(rounds) >= max(rounds) - 1, f"left behind: {rounds}"


# ---- faults ----


def random_faults(horizon_s: float) -> Callable[[World], None]:
    """Crashes with recovery, stalls, partitions and cut pairs at random times, over a lossy network."""

    def arm(world: World) -> None:
        at = 0.0
        while (at := at + world.rng.expovariate(1 / 5.0)) < horizon_s:
            world.scheduler.call_at(at, strike, world)

    def strike(world: World) -> None:
        peer, other = world.rng.choice(world.peers), world.rng.choice(world.peers)
        seconds = world.rng.uniform(0.5, 15.0)
        match world.rng.choice(("crash", "crash", "stall", "partition", "cut")):
            case "crash":
                _crash_soon(world, peer, seconds)
            case "stall":
                peer.stalled_until = world.now + seconds
                world.network.stall(peer.name, world.now + seconds)
            case "partition":
                side = [peer.name for peer in world.peers if world.rng.random() < 0.5]
                world.network.partition(side)
                world.scheduler.call_in(seconds, world.network.partition)
            case "cut" if peer is not other:
                both_ways = world.rng.random() < 0.5
                world.network.cut(peer.name, other.name, both_ways=both_ways)
                world.scheduler.call_in(seconds, world.network.mend, peer.name, other.name)

    return arm


def targeted_faults(loss: float) -> Callable[[World], None]:
    """Aims at agreement: loses promises, proposals and votes, strikes right after a promise or a vote,
    isolates the first committer, freezes a coordinator and cuts it off from its successor."""
    aims = {Promise.code, Propose.code, Voted.code}

    def arm(world: World) -> None:
        def drops(sender: str, receiver: str, frame: bytes) -> bool:
            code = frame[0]
            peer = next(peer for peer in world.peers if peer.name == sender)
            if code in (Promise.code, Voted.code) and world.rng.random() < 0.04 and peer.alive:
                _crash_soon(world, peer, world.rng.uniform(0.5, 8.0), fuse=2)
            if code in (Prepare.code, Propose.code) and world.rng.random() < 0.04 and peer.alive:
                seconds = world.rng.uniform(2.0, 8.0)
                peer.stalled_until = world.now + seconds
                world.network.stall(peer.name, world.now + seconds)
                world.network.cut(sender, receiver)
                world.scheduler.call_in(2 * seconds, world.network.mend, sender, receiver)
            return code in aims and world.rng.random() < loss

        def isolate(peer: ModelPeer) -> None:
            if world.rng.random() < 0.5 and len(world.peers) > 1:
                world.network.partition([peer.name])
                for other in world.peers:
                    if other is not peer and world.rng.random() < 0.5:
                        _crash_soon(world, other, world.rng.uniform(0.5, 2.0), fuse=1)
                world.scheduler.call_in(world.rng.uniform(4.0, 16.0), world.network.partition)

        world.network.drops = drops
        world.first_committer = isolate

    return arm


def _crash_soon(world: World, peer: ModelPeer, down_s: float, fuse: int | None = None) -> None:
    if not peer.alive or peer.fuse is not None:
        return
    peer.fuse = fuse or world.rng.randrange(1, 30)
    life = peer.life

    def revive() -> None:
        if peer.life == life and peer.alive:
            peer.fuse = None
        elif not peer.alive and peer.life == life:
            peer.boot()

    world.scheduler.call_in(down_s, revive)


def _encoded(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def _decoded(payload: bytes) -> int:
    return int.from_bytes(payload, "big", signed=True)
