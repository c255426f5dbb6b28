"""Schedules of faults at random and with an aim, for the logical peers of `peer.testing`.

`run_schedule(17, "targeted", restart_s=12.0)` is one of them, the same each time: a number of peers, a
network that loses, repeats and delays frames, perhaps latecomers, then faults, then calm.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from peer.consensus.aggregation.evidence import MEAN_ONLY, AggregationRules
from peer.consensus.protocol.block import Block
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.messages import Message, Prepare, Promise, Propose, VoteCast, decode
from peer.consensus.rounds.timeouts import SILENT_S
from peer.planning.simulate.memory_network import LinkModel
from peer.testing.memory_peer import PARTS, IntegerDisk, LogicalPeer
from peer.testing.memory_swarm import World

FAULT_S = 40.0
CALM_S = 50.0
RESTART_S = 12.0
"""The usual wait of the schedules with restarts."""
MORE_HOMES_S = 15.0
"""A peer that finds no way to the chain of the others asks them in turn, one in a second; with clusters there are
more of them, and each must have said for 20 s that there is no way."""
LATECOMERS = 0.2
"""Share of the schedules in which others join after the founders."""

Faults = Callable[["FaultyWorld"], None]


class Overcome(Exception):
    """More of the voters lie than a quorum bears, and two updates of one anchor were decided: nothing is promised."""


class FaultyWorld(World):
    """`run` applies faults, then calm, and checks what must hold."""

    on_commit: Callable[[LogicalPeer], None] | None = None
    """Called when a peer is about to commit."""
    may_stand: Callable[[], bool] = staticmethod(lambda: False)
    """Whether nobody can promise that it moves on: more of its voters lie than a quorum bears."""

    def committing(self, peer: LogicalPeer, block: Block, head: ChainHead) -> None:
        if self.updates[block.update.parent] - {block.update.digest} and self.may_stand():
            raise Overcome
        super().committing(peer, block, head)
        if self.on_commit is not None:
            self.on_commit(peer)

    def run(self, faults: Faults, *, fault_s: float, calm_s: float) -> None:
        """Faults, then calm; at the end one chain that moved on."""
        faults(self)
        self.scheduler.run_until(fault_s)
        self.check()
        self.counts["came back"] = sum(peer.lives - 1 for peer in self.peers)  # amid the faults
        self.on_commit = None
        self.network.heal()
        self.network.link = LinkModel()
        for peer in self.peers:
            peer.fuse = None
            peer.stalled_until = min(peer.stalled_until, fault_s)
            if not peer.alive:
                peer.boot()
        before = {head.anchor for peer in self.peers for head in peer.disk.heads}
        self.scheduler.run_until(fault_s + calm_s)
        self.check()
        newest = max(self.peers, key=lambda peer: peer.disk.head.round).disk
        made = [head for head in newest.heads if head.anchor not in before]
        stands = len(made) < 2
        assert not stands or self.may_stand(), f"only {len(made)} rounds in {calm_s:.0f} s of calm"
        self.counts["stands"] = stands
        assert not self.apart(), self.apart()


def run_schedule(
    seed: int, kind: str, *, restart_s: float = 0.0, peers: int | None = None, watched: bool = False,
    aggregation: AggregationRules = MEAN_ONLY, fragments: int = 1, clusters: bool = False, bend: Faults | None = None,
) -> FaultyWorld:  # fmt: skip
    """One schedule with 1 to 5 founders, or as many as asked. `kind` is "random", "targeted" or "splits".

    With restarts both faults and calm last longer, by the time that it takes to restart and to find together.
    `watched` checks for every frame that its sender has on disk what it says; else only what comes of it is seen.
    With `clusters` one founder at least leads 1 to 3 workers, of a model of four parts. `bend` makes liars of some.
    """
    dice = Random(seed)
    link = LinkModel(
        delay_s=(0.01, 0.3), loss=dice.choice((0.0, 0.05, 0.2)), duplication=0.05, old=0.03, old_s=20.0
    )  # fmt: skip
    longer_s = 2 * (restart_s + SILENT_S) if restart_s else 0.0
    founders = peers or dice.randrange(1, 6)
    led = _clusters(Random(f"clusters {seed}"), founders) if clusters else {}
    world = FaultyWorld(
        seed, founders, link, restart_s=restart_s, aggregation=aggregation, fragments=fragments,
        parts=4 if clusters else PARTS, clusters=led,
    )  # fmt: skip
    if bend is not None:
        bend(world)
    if dice.random() < LATECOMERS:
        for _ in range(dice.randrange(1, 3)):
            world.scheduler.call_at(dice.uniform(0.0, FAULT_S), world.join)
    faults = _faults(kind, dice, FAULT_S + longer_s)
    calm_s = CALM_S + longer_s + (MORE_HOMES_S if clusters else 0.0)
    world.run(_watched(faults) if watched else faults, fault_s=FAULT_S + longer_s, calm_s=calm_s)
    return world


def _clusters(dice: Random, founders: int) -> dict[int, int]:
    """Which founders lead how many workers: one at least, about half of them."""
    leads = {dice.randrange(founders), *(index for index in range(founders) if dice.random() < 0.4)}
    return {index: dice.randrange(1, 4) for index in sorted(leads)}


def _faults(kind: str, dice: Random, horizon_s: float) -> Faults:
    match kind:
        case "random":
            return random_faults(horizon_s)
        case "targeted":
            return targeted_faults(dice.uniform(0.2, 0.8))
        case "splits":
            return splitting_faults(horizon_s)
    raise AssertionError(f"no such kind: {kind}")


def _watched(faults: Faults) -> Faults:
    def arm(world: FaultyWorld) -> None:
        faults(world)
        drops = world.network.drops
        disks = {peer.name: peer.disk for peer in world.peers}

        def watch(sender: str, receiver: str, frame: bytes) -> bool:
            if frame[1] in (Prepare.code, Promise.code, VoteCast.code) and sender in disks:
                _check_written(disks[sender], decode(frame))
            return drops is not None and drops(sender, receiver, frame)

        world.network.drops = watch

    return arm


def _check_written(disk: IntegerDisk, message: Message) -> None:
    """First on disk, then said. A peer that has promised more since may still repeat itself."""
    assert isinstance(message, Prepare | Promise | VoteCast)
    written = disk.load_acceptors().get(message.place.instance)
    promised = written.promised if written else -1
    assert promised >= message.place.ballot, f"ballot {message.place.ballot} is said, {promised} is on disk"
    if isinstance(message, Promise) and message.header.root:
        written_down = disk.header(message.place.anchor)
        assert written_down is not None, "a contribution is pledged that is not on disk"
        assert written_down.root == message.header.root, "another contribution is pledged than is on disk"
    if isinstance(message, VoteCast) and promised == message.place.ballot:
        said = (message.place.ballot, message.vote.update)
        assert written is not None
        assert written.checked == said, f"a vote for {said} is said, {written.checked} is on disk"
        assert message.vote.phase < 2 or written.accepted == said, f"{said} is accepted aloud, not on disk"


# ---- faults ----


def splitting_faults(horizon_s: float) -> Faults:
    """The network falls into two or three sides for a long while, again and again; some peers crash meanwhile."""

    def part(world: FaultyWorld) -> None:
        sides = world.rng.randrange(2, 4)
        placed = {peer.name: world.rng.randrange(sides) for peer in world.peers}
        world.network.partition(*({name for name in placed if placed[name] == side} for side in range(sides)))
        if world.rng.random() < 0.5:
            _crash_soon(world, world.rng.choice(world.peers), world.rng.uniform(0.5, 20.0))

    def arm(world: FaultyWorld) -> None:
        at = world.rng.uniform(0.0, 15.0)
        while at < horizon_s:
            world.scheduler.call_at(at, part, world)
            at += world.rng.uniform(5.0, 60.0 + SILENT_S)
            world.scheduler.call_at(at, world.network.partition)
            at += world.rng.uniform(0.0, 15.0)

    return arm


def random_faults(horizon_s: float) -> Faults:
    """Crashes with recovery, stalls, partitions and cut pairs at random times, over a lossy network."""

    def arm(world: FaultyWorld) -> None:
        at = 0.0
        while (at := at + world.rng.expovariate(1 / 5.0)) < horizon_s:
            world.scheduler.call_at(at, strike, world)

    def strike(world: FaultyWorld) -> None:
        peer, other = world.rng.choice(world.peers), world.rng.choice(world.peers)
        seconds = world.rng.uniform(0.5, 15.0)
        match world.rng.choice(("crash", "crash", "stall", "partition", "cut")):
            case "crash":
                _crash_soon(world, peer, seconds)
            case "stall":
                peer.stall(seconds)
            case "partition":
                side = [peer.name for peer in world.peers if world.rng.random() < 0.5]
                world.network.partition(side)
                world.scheduler.call_in(seconds, world.network.partition)
            case "cut" if peer is not other:
                both_ways = world.rng.random() < 0.5
                world.network.cut(peer.name, other.name, both_ways=both_ways)
                world.scheduler.call_in(seconds, world.network.mend, peer.name, other.name)

    return arm


def targeted_faults(loss: float) -> Faults:
    """Aims at agreement: loses promises, proposals and votes or delivers them in a later ballot, strikes right after
    a promise or a vote or amid a proposal, isolates the first committer, freezes a coordinator and cuts it off from
    its successor."""
    aims = {Promise.code, Propose.code, VoteCast.code}

    def arm(world: FaultyWorld) -> None:
        def drops(sender: str, receiver: str, frame: bytes) -> bool:
            code = frame[1]
            peer = next(peer for peer in world.peers if peer.name == sender)
            if code in (Promise.code, VoteCast.code) and world.rng.random() < 0.04 and peer.alive:
                _crash_soon(world, peer, world.rng.uniform(0.5, 8.0), fuse=2)
            if code == Propose.code and world.rng.random() < 0.04 and peer.alive:
                _crash_soon(world, peer, world.rng.uniform(0.1, 1.0), fuse=1)
            if code in (Prepare.code, Propose.code) and world.rng.random() < 0.04 and peer.alive:
                seconds = world.rng.uniform(2.0, 8.0)
                peer.stall(seconds)
                world.network.cut(sender, receiver)
                world.scheduler.call_in(2 * seconds, world.network.mend, sender, receiver)
            return code in aims and world.rng.random() < loss

        def isolate(peer: LogicalPeer) -> None:
            if world.rng.random() < 0.5 and len(world.peers) > 1:
                world.network.partition([peer.name])
                for other in world.peers:
                    if other is not peer and world.rng.random() < 0.5:
                        _crash_soon(world, other, world.rng.uniform(0.5, 2.0), fuse=1)
                world.scheduler.call_in(world.rng.uniform(4.0, 16.0), world.network.partition)

        def delays(sender: str, receiver: str, frame: bytes) -> float:
            late = frame[1] in aims and world.rng.random() < 0.15
            return world.rng.uniform(1.0, 12.0) if late else 0.0

        world.network.drops, world.network.delays = drops, delays
        world.on_commit = isolate

    return arm


def _crash_soon(world: FaultyWorld, peer: LogicalPeer, down_s: float, fuse: int | None = None) -> None:
    if not peer.alive or peer.fuse is not None:
        return
    peer.fuse = fuse or world.rng.randrange(1, 30)
    life = peer.lives

    def revive() -> None:
        if peer.lives == life and peer.alive:
            peer.fuse = None
        elif not peer.alive and peer.lives == life:
            peer.boot()

    world.scheduler.call_in(down_s, revive)
