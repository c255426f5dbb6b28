"""Logical peers in one process, on a virtual clock, and what must hold among them whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dht.memory import LinkModel, MemoryNetwork, Scheduler
from peer.rounds.layout import Part
from peer.rounds.messages import HeadSent
from peer.rounds.names import genesis_anchor, next_anchor
from peer.rounds.state import Head, Rules
from peer.rounds.update import Block
from peer.testing.integers import PART_BYTES, PARTS, Ledger, ModelKeys, decoded
from peer.testing.logical_peer import LogicalPeer
from peer.testing.swarm import Committed

RUN = b"r" * 32


class World:
    """N founders, a network, a clock and a seed; the same seed gives the same history.

    Invariants: never two updates for one anchor; equal anchors, equal bits; for each peer and part,
    exactly, counted + balance + discounted + lost = produced. The first is checked at every commit,
    the rest by `check`.
    """

    def __init__(self, seed: int, peers: int, link: LinkModel | None = None) -> None:
        self.rng = Random(seed)
        self.scheduler = Scheduler()
        self.network = MemoryNetwork(self.scheduler, Random(seed + 1), link)
        self.board: dict[str, HeadSent] = {}
        """What newcomers read. It has no faults."""
        names = tuple(f"p{index}" for index in range(peers))
        anchor = genesis_anchor(RUN, names, b"")
        self.genesis = Head(anchor=anchor, round=0, weight=0, electorate=tuple(sorted(names)), members=names)
        self.updates: dict[bytes, bytes] = {}
        """The one update of each anchor."""
        self.thetas: dict[bytes, list[int]] = {}
        self.on_phase: Callable[[LogicalPeer, str, int], None] | None = None
        """Called when a peer enters a phase of a round."""
        self.index: dict[str, int] = {}
        self.history: list[list[Committed]] = []
        """What each peer has committed."""
        self.peers: list[LogicalPeer] = []
        for _ in names:
            self.join()

    @property
    def now(self) -> float:
        """Virtual seconds since the world began."""
        return self.scheduler.now

    @property
    def commits(self) -> int:
        """Commits so far, over all peers."""
        return sum(len(history) for history in self.history)

    def join(self) -> LogicalPeer:
        """One more peer. Those that come after the founders find the others on the board."""
        index = len(self.peers)
        name = f"p{index}"
        self.index[name] = index
        self.history.append([])
        self.peers.append(LogicalPeer(self, name))
        return self.peers[-1]

    def rules(self, name: str) -> Rules:
        """The rules of a peer: a round takes some 8 s."""
        return Rules(
            me=name, keys=ModelKeys(name), parts=tuple(Part(i, i, 1) for i in range(PARTS)),
            part_bytes=(PART_BYTES,) * PARTS, gather_s=3.0, ack_s=1.0, exchange_s=2.0, patience_s=4.0, stagger_s=1.0,
            tokens_cap=10**9,
        )  # fmt: skip

    # ---- told by the peers ----

    def entered(self, peer: LogicalPeer, phase: str, round: int) -> None:
        """A peer enters a phase."""
        if self.on_phase is not None:
            self.on_phase(peer, phase, round)

    def committing(self, peer: LogicalPeer, block: Block, head: Head) -> None:
        """Never two updates for one anchor; everybody who commits one computes the same next anchor."""
        update = block.update
        first = self.updates.setdefault(update.parent, update.digest)
        assert first == update.digest, f"two updates for round {update.round} at {self.now:.2f} s"
        assert head.anchor == next_anchor(update.parent, update.digest)

    def applied(self, peer: LogicalPeer, block: Block) -> None:
        """A peer stands at a new anchor; standing there again after a crash, it has the same bits."""
        update, history = block.update, self.history[self.index[peer.name]]
        state = peer.state_digest().hex()
        if update.round <= len(history):
            assert history[update.round - 1].state == state, f"{peer.name} replays round {update.round} to other bits"
            return
        history.append(
            Committed(
                round=update.round, digest=next_anchor(update.parent, update.digest).hex(), state=state,
                group=frozenset(self.index[pledge.peer] for pledge in update.members), at_s=self.now,
            )
        )  # fmt: skip

    # ---- what must hold ----

    def check(self) -> None:
        """Equal head, equal state; and for each peer and part the books balance."""
        for peer in self.peers:
            ledger = peer.ledger if peer.alive else peer.disk.ledger
            if ledger.round == peer.disk.head.round:
                theta = self.thetas.setdefault(peer.disk.head.anchor, list(ledger.theta))
                assert theta == ledger.theta, f"{peer.name} has other bits at round {ledger.round}"
            for part in range(PARTS):
                books = ledger.counted[part] + ledger.balance[part] + ledger.discounted[part] + peer.lost[part]
                assert books == peer.produced[part], f"{peer.name} part {part}: {books} of {peer.produced[part]}"
            self._check_counted(peer, ledger)

    def _check_counted(self, peer: LogicalPeer, ledger: Ledger) -> None:
        """What a peer booked as counted is what the chain says it gave."""
        for part in range(PARTS):
            on_chain = sum(
                decoded(peer.disk.contributions[block.update.parent][1][part])
                for block in peer.disk.blocks[: ledger.round]
                if block.update.contributed(peer.name, part)
            )
            assert on_chain == ledger.counted[part], f"{peer.name} part {part}: counted twice or not at all"
