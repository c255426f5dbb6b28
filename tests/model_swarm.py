"""Schedules of faults at random and with an aim, for the logical peers of `peer.testing`."""

from __future__ import annotations

from collections.abc import Callable

from dht.memory import LinkModel
from peer.rounds.messages import Prepare, Promise, Propose, Voted
from peer.rounds.state import Head
from peer.rounds.update import Block
from peer.testing.logical_peer import LogicalPeer
from peer.testing.world import World


class FaultyWorld(World):
    """`run` applies faults, then calm, and checks what must hold."""

    on_commit: Callable[[LogicalPeer], None] | None = None
    """Called when a peer is about to commit."""

    def committing(self, peer: LogicalPeer, block: Block, head: Head) -> None:
        super().committing(peer, block, head)
        if self.on_commit is not None:
            self.on_commit(peer)

    def run(self, faults: Callable[[FaultyWorld], None], *, fault_s: float, calm_s: float) -> None:
        """Faults, then calm; at the end one chain that moved on."""
        faults(self)
        self.scheduler.run_until(fault_s)
        self.check()
        self.on_commit = None
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


def random_faults(horizon_s: float) -> Callable[[FaultyWorld], None]:
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


def targeted_faults(loss: float) -> Callable[[FaultyWorld], None]:
    """Aims at agreement: loses promises, proposals and votes, strikes right after a promise or a vote,
    isolates the first committer, freezes a coordinator and cuts it off from its successor."""
    aims = {Promise.code, Propose.code, Voted.code}

    def arm(world: FaultyWorld) -> None:
        def drops(sender: str, receiver: str, frame: bytes) -> bool:
            code = frame[0]
            peer = next(peer for peer in world.peers if peer.name == sender)
            if code in (Promise.code, Voted.code) and world.rng.random() < 0.04 and peer.alive:
                _crash_soon(world, peer, world.rng.uniform(0.5, 8.0), fuse=2)
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

        world.network.drops = drops
        world.on_commit = isolate

    return arm


def _crash_soon(world: FaultyWorld, peer: LogicalPeer, down_s: float, fuse: int | None = None) -> None:
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
