"""The `swarm` fixture with logical peers: one process, virtual time, the same history for the same seed.

Seconds here are virtual: a round takes some eight of them and a few milliseconds of yours. The peers
run the product's own round machine and driver; only tensors, disk, network and clock are models
(`integer_sums.py`, `memory_peer.py`, `memory_swarm.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from dht.errors import BadInput
from peer.testing.faults import Corrupt, Crash, Cut, Duplicate, Fault, Loss, Odd, Partition, Reorder, Slow, Stall
from peer.testing.memory_peer import Crashed, LogicalPeer
from peer.testing.memory_swarm import World
from peer.testing.swarm_contract import Committed, Swarm

STEP_S = 0.1
"""How often `until_round` looks."""


class LogicalSwarm(Swarm):
    """Logical peers with the fault kit. `world` is open to tests that want more than this.

    With `takeover_s` peers that have lost the majority go on after so many seconds; by default they wait for it.
    With `fragments` (3 at most) a round averages only some of the model's parts.
    """

    def __init__(self, *, peers: int, seed: int, takeover_s: float = 0.0, fragments: int = 1) -> None:
        super().__init__()
        if peers < 1:
            raise BadInput(f"a swarm of {peers} peers: give at least 1")
        self.world = World(seed, peers, takeover_s=takeover_s, fragments=fragments)
        self.world.on_phase = self._enter

    @property
    def size(self) -> int:
        """How many peers have joined so far, the dead included."""
        return len(self.world.peers)

    @property
    def now_s(self) -> float:
        """Virtual seconds since the swarm began."""
        return self.world.now

    def until_round(self, round: int, *, within_s: float) -> None:
        """Run until every live peer has committed anchor `round`; see `Swarm.until_round`."""
        deadline = self.world.now + within_s
        while not self._all_at(round):
            assert self.world.now < deadline, f"not everybody is at round {round} after {within_s:g} s: {self._where()}"
            self.run_for(min(STEP_S, deadline - self.world.now))

    def run_for(self, seconds: float) -> None:
        """Let time pass."""
        self.world.scheduler.run_until(self.world.now + seconds)

    def join(self) -> int:
        """Start a newcomer, who finds the others and replays their chain; returns its index."""
        self.world.join()
        return self.size - 1

    def committed(self, peer: int) -> Sequence[Committed]:
        """What one peer has committed, in order of rounds, each once."""
        self._require_peer(peer)
        return tuple(self.world.history[peer])

    def assert_agreement(self) -> None:
        """One digest and one state per round; and every peer's books balance to the last integer."""
        super().assert_agreement()
        self.world.check()

    def close(self) -> None:
        """Nothing to end."""

    # ---- faults ----

    def _enter(self, peer: LogicalPeer, phase: str, round: int) -> None:
        for fault in self._due(self.world.index[peer.name], phase, round):
            self._strike(fault, peer)

    def _strike(self, fault: Fault, peer: LogicalPeer) -> None:
        match fault:
            case Crash(back_after_s=back_after_s):
                if back_after_s is not None:
                    self.world.scheduler.call_in(back_after_s, peer.boot)
                raise Crashed
            case Stall(seconds=seconds):
                peer.stall(seconds)
            case Slow(seconds=seconds, bytes_per_s=bytes_per_s):
                peer.streams.throttle(bytes_per_s, seconds)
            case Corrupt(frames=frames):
                peer.streams.corrupt(frames)
            case Loss(seconds=seconds, rate=rate):
                peer.streams.lose(rate, seconds)
            case Duplicate(seconds=seconds, rate=rate, late_s=late_s):
                peer.streams.duplicate(rate, late_s, seconds)
            case Reorder(seconds=seconds, late_s=late_s):
                peer.streams.reorder(late_s, seconds)
            case Odd(factor=factor, layer=layer):
                peer.distort(factor, layer)
            case Cut(other=other, seconds=seconds):
                peer.streams.cut([self.world.peers[other].name], seconds)
            case Partition(peers=inside, seconds=seconds):
                outside = [self.world.peers[index].name for index in self.outside(fault)]
                for index in inside:
                    self.world.peers[index].streams.cut(outside, seconds)

    def _all_at(self, round: int) -> bool:
        live = [peer for peer in self.world.peers if peer.alive]
        return bool(live) and all(len(self.world.history[self.world.index[peer.name]]) >= round for peer in live)

    def _where(self) -> str:
        places = (
            f"peer {index} {'is' if peer.alive else 'died'} at {len(self.world.history[index])}"
            for index, peer in enumerate(self.world.peers)
        )
        return f"{', '.join(places)}; struck: {list(self.struck)}; not struck: {list(self.waiting)}"
