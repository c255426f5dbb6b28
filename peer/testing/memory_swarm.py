"""Logical peers in one process, on a virtual clock, and the invariants that must hold among them whatever happens."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random

from dht.errors import BadInput
from peer.consensus.aggregation.evidence import MEAN_ONLY, AggregationRules
from peer.consensus.organiser.restart_desk import RestartDesk
from peer.consensus.protocol.block import VOID, Block, Restart, Stuck, Update
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.head import ChainHead, genesis_anchor, next_anchor
from peer.consensus.protocol.messages import Heartbeat
from peer.consensus.protocol.rules import Rules
from peer.planning.simulate.memory_network import LinkModel, MemoryNetwork, Scheduler
from peer.schema.events import AlertRaised
from peer.schema.spec import RunSpec, from_mapping
from peer.testing.faults import Crash, Cut, Fault, Odd, Partition, Stall
from peer.testing.memory_cluster import LogicalLead, LogicalWorker
from peer.testing.memory_peer import (
    PART_BYTES,
    PARTS,
    STEPS,
    Crashed,
    IntegerDisk,
    Ledger,
    LogicalPeer,
    ModelKeys,
    averaged,
    decoded,
    model_of,
)
from peer.testing.swarm_contract import ENDS_AT_ITS_USER, Committed, Swarm

__tracebackhide__ = ENDS_AT_ITS_USER
RUN = b"r" * 32
ORGANISER = "organiser"
"""Its node stands beside the first founder: whoever the network parts from that founder is parted from it."""
DESK_WAIT_S = 5.0
ANSWER_S = 0.1
"""From a question to its node until its answer."""
ACCUSED = ("EQUIVOCATION", "MISDECLARED")
"""What only liars do."""


_RUN_SPEC = from_mapping(
    {
        "run": {"name": "integers"},
        "model": {"architecture": "llama", "context": 8},
        "round": {"steps": STEPS, "gather_s": 3.0, "ack_s": 1.0, "exchange_s": 2.0},
    }
)


class World:
    """N founders, a network, a clock and a seed; the same seed gives the same history.

    Invariants: never two updates for one anchor; equal anchors, equal bits; for each peer and part, exactly,
    what its chain counted + residual + discounted + lost = produced. The first is checked at every commit, the
    rest by `check`. With `restart_s` = 0 the organiser lets nobody go on without a quorum.
    """

    def __init__(
        self, seed: int, peers: int, link: LinkModel | None = None, *, restart_s: float = 0.0,
        aggregation: AggregationRules = MEAN_ONLY, fragments: int = 1, parts: int = PARTS,
        clusters: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        """Founders in `clusters` lead so many workers; `parts` are those of the model, one for each home at least."""
        self.restart_s, self.aggregation = restart_s, aggregation
        self.fragments, self.parts, self.clusters = fragments, parts, dict(clusters or {})
        self.holds: dict[str, range] = {}
        """The layers of each worker."""
        self.rng = Random(seed)
        self.scheduler = Scheduler()
        self.network = MemoryNetwork(self.scheduler, Random(seed + 1), link)
        self.board: dict[str, Heartbeat] = {}
        """What newcomers read. It has no faults."""
        self.restarts: list[Restart] = []
        """What the organiser has signed."""
        self.desk = RestartDesk(ModelKeys(ORGANISER), self.restarts.append, wait_s=DESK_WAIT_S)
        self.organiser_runs = True
        """Whether its node does."""
        names = tuple(f"p{index}" for index in range(peers))
        anchor = genesis_anchor(RUN, names, b"")
        self.genesis = ChainHead(anchor=anchor, round=0, weight=0, electorate=tuple(sorted(names)), members=names)
        self.updates: dict[bytes, set[bytes]] = defaultdict(set)
        """The update that followed each anchor."""
        self.contributions: dict[tuple[str, bytes], list[bytes]] = {}
        """What each peer offered for each anchor."""
        self.written_off: set[tuple[str, bytes]] = set()
        """Which of them their peers have forgotten, with a chain that they gave up."""
        self.liars: set[str] = set()
        """Peers that do not keep to the protocol, in tests that make some."""
        self.counts: Counter[str] = Counter()
        """What happened so far, over all peers."""
        self.committed_at: dict[str, list[float]] = defaultdict(list)
        """When each peer committed something."""
        self.thetas: dict[tuple[bytes, int], int] = {}
        """By anchor and part."""
        self.on_phase: Callable[[LogicalPeer, str, int], None] | None = None
        """Called when a peer enters a phase of a round."""
        self.index: dict[str, int] = {}
        self.history: list[list[Committed]] = []
        """What each peer has committed."""
        self.peers: list[LogicalPeer] = []
        for _ in names:
            self.join()
        for index in self.clusters:
            lead = self.peers[index]
            assert isinstance(lead, LogicalLead)
            for first, last, name in lead.delegates:
                self.holds[name] = range(first, last + 1)
                self._add(name, partial(LogicalWorker, self, lead=lead, layers=self.holds[name]))

    @property
    def now(self) -> float:
        """Virtual seconds since the world began."""
        return self.scheduler.now

    @property
    def commits(self) -> int:
        """Commits so far, over all peers."""
        return self.counts["commits"]

    def join(self) -> LogicalPeer:
        """One more peer. Those that come after the founders find the others on the board."""
        index = len(self.peers)
        workers = self.clusters.get(index, 0)
        lead = partial(LogicalLead, self, workers=workers)
        return self._add(f"p{index}", lead if workers else partial(LogicalPeer, self))

    def _add(self, name: str, make: Callable[[str], LogicalPeer]) -> LogicalPeer:
        self.index[name] = len(self.peers)
        self.history.append([])
        self.peers.append(make(name))
        return self.peers[-1]

    def homes_of(self, member: str) -> list[LogicalPeer]:
        """A member alone, or a lead and its workers."""
        return [peer for peer in self.peers if peer.member == member]

    @property
    def run_spec(self) -> RunSpec:
        """What their lifecycles go by."""
        return _RUN_SPEC

    def rules(self, name: str) -> Rules:
        """The rules of a peer: a round takes some 8 s."""
        return Rules(
            me=name, keys=ModelKeys(name), parts=model_of(self.parts), part_bytes=(PART_BYTES,) * self.parts,
            fragments=self.fragments, holds=self.holds.get(name),
            gather_s=3.0, ack_s=1.0, exchange_s=2.0, stagger_s=1.0,
            restart_s=self.restart_s, organiser=ORGANISER, row_bytes=PART_BYTES, tokens_cap=10**9,
            aggregation=self.aggregation,
        )  # fmt: skip

    def ask_organiser(self, peer: LogicalPeer, stuck: Stuck | None, answered: Callable[[Restart | None], None]) -> None:
        """Show its node that a peer is stuck; nothing comes back where the network lets nothing pass."""
        beside = self.peers[0]
        if self.organiser_runs and (peer is beside or not peer.is_cut_off(beside.name)):
            found = None if stuck is None else self.desk.show(stuck, self.now)
            peer.later(ANSWER_S, answered, found)

    # ---- told by the peers ----

    def entered(self, peer: LogicalPeer, phase: str, round: int) -> None:
        if self.on_phase is not None:
            self.on_phase(peer, phase, round)

    def committing(self, peer: LogicalPeer, block: Block, head: ChainHead) -> None:
        """Never two updates for one anchor; everybody who commits one computes the same next anchor."""
        update, digest = block.update, block.update.digest
        self.updates[update.parent].add(digest)
        self.counts["restarted"] += not block.firm
        one = len(self.updates[update.parent]) == 1
        assert one, f"two updates for round {update.round} at {self.now:.2f} s"
        assert head.anchor == next_anchor(update.parent, digest)
        assert update.parent == peer.disk.head.anchor, f"{peer.name} commits what does not follow its head"
        self._count(peer, block)

    def _count(self, peer: LogicalPeer, block: Block) -> None:
        decided = block.votes[0].ballot
        self.committed_at[peer.name].append(self.now)
        self.counts["commits"] += 1
        self.counts["later ballot"] += decided > 0
        self.counts["proposed again"] += decided > block.update.ballot
        self.counts["void parts"] += block.update.parts.count(VOID)
        self.counts["rolled back"] += sum(map(block.update.rolled_back, range(len(block.update.parts))))
        self.counts["refused"] += sum(row.count(0) for row in block.update.weights)

    def donor(self, peer: LogicalPeer) -> IntegerDisk | None:
        """The heaviest chain of those whom the peer reaches, if it is heavier than its own."""
        others = [other for other in self.peers if other.alive and not peer.is_cut_off(other.name)]
        heaviest = max(others, key=lambda other: other.disk.head.weight)
        return heaviest.disk if heaviest.disk.head.weight > peer.disk.head.weight else None

    def resyncing(self, peer: LogicalPeer, donor: IntegerDisk) -> None:
        """Nobody honest gives up a round that was decided."""
        theirs = {head.anchor for head in donor.heads}
        apart = [head for head in peer.disk.heads if head.anchor not in theirs]
        assert not apart or self.liars, f"{peer.name} gives up {len(apart)} rounds"
        for other in self.peers:
            if other.disk is donor:
                for home in self.homes_of(other.member):
                    peer.disk.objects |= home.disk.objects

    def resynced(self, peer: LogicalPeer) -> None:
        """The peer's chain is given up: what its updates counted of it is written off."""
        self.counts["resynced"] += 1
        self.history[self.index[peer.name]].clear()
        kept = peer.disk.contributions
        self.written_off |= {key for key in self.contributions if key[0] == peer.name and key[1] not in kept}

    def offered(self, peer: LogicalPeer, anchor: bytes, payloads: list[bytes]) -> None:
        """One contribution per anchor, in all the lives of a peer."""
        first = self.contributions.setdefault((peer.name, anchor), payloads)
        assert first == payloads, f"{peer.name} offers two contributions for one anchor"

    def applied(self, peer: LogicalPeer, update: Update) -> None:
        """A peer stands at a new anchor; standing there again after a crash, it has the same bits."""
        history = self.history[self.index[peer.name]]
        state = digest_of(repr(peer.ledger.theta).encode()).hex()
        if update.round <= len(history):
            assert history[update.round - 1].state == state, f"{peer.name} replays round {update.round} to other bits"
            return
        history.append(
            Committed(
                round=update.round, digest=next_anchor(update.parent, update.digest).hex(), state=state,
                group=frozenset(self.index[header.peer] for header in update.members), at_s=self.now,
            )
        )  # fmt: skip

    # ---- what must hold ----

    def check(self) -> None:
        """Equal head, equal state; for each peer and part the books residual; and nobody accuses the honest."""
        for peer in self.peers:
            ledger = peer.ledger if peer.alive else peer.disk.ledger
            if ledger.anchor == peer.disk.head.anchor:
                for part in peer.layers:
                    theta = self.thetas.setdefault((ledger.anchor, part), ledger.theta[part])
                    assert theta == ledger.theta[part], f"{peer.name} has other bits at round {ledger.round}"
            for part in peer.layers:
                books = ledger.counted[part] + ledger.residual[part] + ledger.discounted[part] + peer.lost[part]
                assert books == peer.produced[part], f"{peer.name} part {part}: {books} of {peer.produced[part]}"
            self._check_counted(peer, ledger)
            accused = [event.text for event in peer.reports if isinstance(event, AlertRaised) and event.code in ACCUSED]
            assert not accused or self.liars, f"{peer.name} accuses the honest: {accused[0]}"

    def apart(self) -> str:
        """Which live peers are more than one round behind, or not on the chain of the newest; empty if none is."""
        live = [peer for peer in self.peers if peer.alive]
        newest = max(live, key=lambda peer: peer.disk.head.round).disk
        chain = {head.anchor for head in (newest.genesis, *newest.heads)}
        behind = [peer.name for peer in live if peer.disk.head.round < newest.head.round - 1]
        forked = [peer.name for peer in live if peer.disk.head.anchor not in chain]
        rounds = [peer.disk.head.round for peer in live]
        return f"left behind: {behind}, forked off: {forked}, of {rounds}" if behind or forked else ""

    def _check_counted(self, peer: LogicalPeer, ledger: Ledger) -> None:
        """What a peer booked as counted is what the chain up to where its ledger stands says it gave."""
        for part in peer.layers:
            on_chain = sum(
                decoded(self.contributions[peer.name, block.update.parent][at])
                for block in self._chain_to(peer.disk, ledger.anchor)
                for at, averages in enumerate(averaged(block.update.round - 1, self.fragments, self.parts))
                if averages == part
                and (peer.name, block.update.parent) not in self.written_off
                and block.update.contributed(peer.member, at)
            )
            assert on_chain == ledger.counted[part], f"{peer.name} part {part}: counted twice or not at all"

    def _chain_to(self, disk: IntegerDisk, anchor: bytes) -> Iterator[Block]:
        """The blocks up to an anchor, newest first."""
        rounds = {head.anchor: head.round for head in (disk.genesis, *disk.heads)}
        yield from reversed(disk.blocks[: rounds[anchor]])


STEP_S = 0.1
"""How often `until_round` looks."""


class LogicalSwarm(Swarm):
    """Logical peers with the fault kit. `world` is open to tests that want more than this.

    With `restart_s` peers that have lost their quorum ask the organiser after so many seconds; by default they wait.
    With `fragments` (3 at most) a round averages only some of the model's parts.
    """

    def __init__(self, *, peers: int, seed: int, restart_s: float = 0.0, fragments: int = 1) -> None:
        super().__init__()
        if peers < 1:
            raise BadInput(f"a swarm of {peers} peers: give at least 1")
        self.world = World(seed, peers, restart_s=restart_s, fragments=fragments)
        self.world.on_phase = self._enter

    @property
    def size(self) -> int:
        """How many peers have joined so far, the dead included."""
        return len(self.world.peers)

    @property
    def now_s(self) -> float:
        return self.world.now

    def until_round(self, round: int, *, within_s: float) -> None:
        """Run until every live peer has committed anchor `round`; see `Swarm.until_round`."""
        self._run_until(lambda: self._all_at(round), within_s, f"not everybody is at round {round}")

    def _run_until(self, reached: Callable[[], bool], within_s: float, failure: str) -> None:
        deadline = self.world.now + within_s
        while not reached():
            assert self.world.now < deadline, f"{failure} after {within_s:g} s: {self._where()}"
            self.run_for(min(STEP_S, deadline - self.world.now))

    def run_for(self, seconds: float) -> None:
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
        """One digest and one state per round; and every peer's books residual to the last integer."""
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
            case Odd(factor=factor, layer=layer):
                peer.distort(factor, layer)
            case Partition(peers=inside):
                outside = [self.world.peers[index].name for index in self.outside(fault)]
                for index in inside:
                    self.world.peers[index].streams.throw(fault, outside)
            case Cut(other=other):
                peer.streams.throw(fault, [self.world.peers[other].name])
            case _:
                peer.streams.throw(fault)

    def _all_at(self, round: int) -> bool:
        live = [peer for peer in self.world.peers if peer.alive]
        return bool(live) and all(len(self.world.history[self.world.index[peer.name]]) >= round for peer in live)

    def _where(self) -> str:
        places = (
            f"peer {index} {'is' if peer.alive else 'died'} at {len(self.world.history[index])}"
            for index, peer in enumerate(self.world.peers)
        )
        return f"{', '.join(places)}; struck: {list(self.struck)}; not struck: {list(self.waiting)}"
