"""The organiser's node follows the run's chain by certificates and serves it to newcomers when no peer is left.

Records on the board prove nothing: a peer can claim any round there. So the node asks peers for their blocks and
believes only those that a quorum of voters has certified. It leaves what it has followed as every peer does: for a
Restart that outranks it.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from dht.atomic_files import write_atomic
from dht.identity import RunKeys
from dht.node import Node
from dht.records import Genesis, PeerRecord
from dht.streams.answer_budget import AnswerBudget
from peer.consensus.organiser.light_chain import MAX_WAY_BYTES, packed_way, read_question
from peer.consensus.protocol.block import Block, Restart
from peer.consensus.protocol.head import ChainHead
from peer.network.sync.certified_way import TWO_CHAINS, YIELDS_TO, CertifiedWay, Follower
from peer.network.sync.chain_status import ChainStatus
from peer.node.store.kept_way import KeptWay, read_kept_way, write_kept_way
from peer.node.store.run_directory import genesis_head, head_after
from peer.schema.events import AlertRaised, Event

FOLLOWED_FILE = "followed.block"
LOOK_S = 60.0
ASK_S = 5.0
"""One peer at a look, any of those who say that they are further: the node does nothing else meanwhile."""
WAYS_A_MINUTE = 4
"""Of the largest, for whoever neither votes nor is known to the organiser."""
LINE_BPS = 20_000_000
"""Of a home, at least; strangers together have a share of it."""

ReadHeads = Callable[[], Awaitable[Mapping[str, PeerRecord]]]
"""What those say of themselves on the board whose word is listened to."""

log = logging.getLogger(__name__)


class ChainFollower:
    """Follows the chain of a run of so many `rounds`, or of one without end (0)."""

    def __init__(
        self, directory: Path, keys: RunKeys, rounds: int, report: Callable[[Event], None], line_bps: float = LINE_BPS
    ) -> None:
        self._directory, self._keys, self._rounds, self._report = directory, keys, rounds, report
        self._heads: tuple[ChainHead, ...] = ()
        """The heads of the last rounds that were followed, the newest last; no Restart outranks the first of them.
        Empty before the first look."""
        self._newest: Block | None = None
        self._way = KeptWay(0)
        self._look_at, self._told_apart = 0.0, ""
        self._said: Mapping[str, PeerRecord] = {}
        self._in_vain: set[str] = set()
        """Those who said that they were further and did not show it, since somebody was last asked at random."""
        self._budget = AnswerBudget(
            time.monotonic, lambda: WAYS_A_MINUTE * MAX_WAY_BYTES, self._is_known, lambda: line_bps
        )

    @property
    def head(self) -> ChainHead | None:
        """Where the chain is, as far as it was followed; None before the first look."""
        return self._heads[-1] if self._heads else None

    @property
    def settled(self) -> ChainHead | None:
        """The newest that is known of those which no Restart outranks any more."""
        return self._heads[0] if self._heads else None

    def has_elected(self, peer: str) -> bool:
        return self.head is not None and peer in self.head.electorate

    def _is_known(self, peer: str) -> bool:
        return self.has_elected(peer) or (self.head is not None and peer in self.head.roster.known)

    def holders(self, restart: Restart) -> list[str]:
        """Who is here and further than a Restart would begin, on the chain that was followed and went on otherwise.

        Their certificate means that a voter of the Restart hides what it accepted: a quorum and those who may restart
        share one. Where none of them is here, those who are left must be able to go on: two friends, of whom one has
        the round and is away, and the other an older disk. Only those count who vote or are known, not those who ask
        for the Restart: anybody can claim a round, and who is believed here can hold the others up.
        """
        round = self._round_of(restart)
        if round is None or self._newest is None or round >= self._heads[-1].round:
            return []
        is_last = self._newest.update.parent == restart.anchor
        if restart.value is not None and (not is_last or restart.value[1] == self._newest.update.digest):
            return []
        asking = restart.electorate
        return sorted(
            peer
            for peer, said in self._said.items()
            if said.round > round and self._is_known(peer) and peer not in asking
        )

    def _round_of(self, restart: Restart) -> int | None:
        """Where it would begin. Of anchors that were not followed, or long ago, those who ask say that themselves: one
        that says too much changes nothing where another is honest."""
        known = (head.round for head in self._heads if head.anchor == restart.anchor)
        said = (self._said[peer].round for peer in restart.electorate if peer in self._said)
        return next(known, min(said, default=None))

    def restarts(self) -> Iterator[Restart]:
        """Those by which the chain went on."""
        return (restart for block in self._way.blocks for restart in block.restarts)

    async def look(self, node: Node, genesis: Genesis, read_heads: ReadHeads) -> tuple[Block, ...]:
        """The new blocks that some peer shows: those that change the electorate, and the newest. Looks each LOOK_S,
        and at once when a known peer says that it has made the last round. Raises DiskFull."""
        self.load(genesis)
        self._said = await read_heads()
        peer = self._whom_to_ask()
        if peer is None:
            return ()
        self._look_at = time.monotonic() + LOOK_S
        way = await self._way_of(node, peer)
        if way is None:
            self._in_vain.add(peer)
            return ()
        self._follow(way)
        return way.blocks

    def _whom_to_ask(self) -> str | None:
        """One of those who say that they are further: of the voters and those who are known each once, then any."""
        head, last = self._heads[-1], self._rounds or inf
        further = [peer for peer, said in self._said.items() if head.round < said.round <= last]
        fresh = [peer for peer in further if self._is_known(peer) and peer not in self._in_vain]
        # Names cost nothing, and each that is asked in vain takes all of ASK_S: strangers are not asked at once.
        ending = [peer for peer in fresh if self._said[peer].round == last]
        if time.monotonic() < self._look_at:
            return random.choice(ending) if ending else None
        if fresh:
            return random.choice(ending or fresh)
        self._in_vain.clear()
        return random.choice(further) if further else None

    async def _way_of(self, node: Node, peer: str) -> CertifiedWay | None:
        """What a peer shows after the newest head, or else from earlier on by a Restart that outranks it."""
        follower = Follower(asker=node, keys=self._keys, organiser=self._keys.identity.peer_id, within_s=ASK_S)
        way = await follower.follow(peer, self._heads[-1])
        if len(self._heads) < 2:
            return way
        # One certificate proves all before it, so it does not show that my own newest round is among them.
        apart = "" if way is None else await follower.parts(peer, self._heads[0], self._heads[-1])
        if way is not None and not apart:
            return way
        other = await follower.follow(peer, self._heads[0])
        if other is None:
            return None
        if not self._is_outranked_by(other):
            self._tell_once(apart or await follower.parts(peer, self._heads[0], self._heads[-1]))
            return None
        round, left = self._heads[-1].round, ", ".join(other.head.electorate)
        text = f"the chain that this node followed to round {round} does not count: by a Restart {left} went on before"
        self._report(AlertRaised(level="warning", code="OUTRANKED", text=text))
        return other

    def _tell_once(self, apart: str) -> None:
        """Where votes are given twice, a third of the voters lie or have older disks."""
        if any(block.restarts for block in self._way.since(self._heads[0].round) or ()):
            return  # perhaps that peer is on the chain which a Restart has left
        if apart and apart != self._told_apart:
            self._told_apart = apart
            self._report(AlertRaised(level="error", code=TWO_CHAINS, text=f"{apart}; this node keeps to its own"))

    def _is_outranked_by(self, way: CertifiedWay) -> bool:
        """Whether a Restart parts this way from mine, so few rounds ago that peers yield to it, too (`may_leave`)."""
        start, newest = way.start.round, self._newest
        assert newest is not None
        mine = (*(self._way.since(start) or ()), newest)
        first = _first_restart(way.blocks, mine)
        return self._heads[-1].round - YIELDS_TO < first < _first_restart(mine, way.blocks)

    def _follow(self, way: CertifiedWay) -> None:
        """Raises DiskFull."""
        start, newest = way.start, way.blocks[-1]
        kept = tuple(block for block in self._way.blocks if block.update.round <= start.round)
        self._way = replace(self._way, blocks=kept).and_then(way.blocks, start)
        earlier = [head for head in self._heads if head.round <= start.round]
        self._newest, self._heads = newest, _last_of([*earlier, *_heads_of(start, way.blocks)])
        write_kept_way(self._directory, self._way)
        write_atomic(self._directory / FOLLOWED_FILE, newest.to_bytes())

    def load(self, genesis: Genesis) -> ChainHead:
        """Where the chain was when this node last followed it, read once: it has checked what it wrote itself."""
        if not self._heads:
            self._read(genesis)
        return self._heads[-1]

    def _read(self, genesis: Genesis) -> None:
        start = genesis_head(genesis)
        self._heads = (start,)
        path = self._directory / FOLLOWED_FILE
        if not path.exists():
            return
        try:
            newest = Block.from_bytes(path.read_bytes())
            self._way = read_kept_way(self._directory, newest.update.round)
        except ValueError as error:
            log.warning("%s, or the way to it, is damaged (%s): the chain is followed from its beginning", path, error)
            return
        kept = [block for block in self._way.blocks if block.update.round < newest.update.round]
        self._newest = newest
        self._heads = _last_of([start, *map(_head_after, kept), *_heads_of(start, [*kept, newest])])

    # ---- what others ask ----

    async def answer_way(self, peer: str, request: bytes) -> bytes | None:
        """Answered as a peer does (`light_chain.QUESTION`), but only up to the newest round, since the node keeps no
        other."""
        if self._newest is None or self.head is None or not self._budget.has_room_for(peer):
            return None
        try:
            start, end = read_question(request)
        except ValueError:
            return None
        kept = self._way.since(start)
        if kept is None or end not in (0, self.head.round) or start >= self.head.round:
            return None
        packed = packed_way((*(block for block in kept if block.update.round < self.head.round), self._newest))
        self._budget.give(peer, len(packed))
        return packed

    async def answer_status(self, peer: str, request: bytes) -> bytes | None:
        """Answered as by a peer without snapshots and without blocks."""
        if self.head is None:
            return None
        return ChainStatus(round=self.head.round, shared=-1, offers=()).to_bytes()


def _head_after(block: Block) -> ChainHead:
    return head_after(block.update)


def _heads_of(start: ChainHead, blocks: Sequence[Block]) -> tuple[ChainHead, ...]:
    """The heads before and after the newest of these blocks, which lead there from `start`."""
    newest = blocks[-1].update
    known = head_after(blocks[-2].update) if len(blocks) > 1 else start
    before = ChainHead(
        anchor=newest.parent, round=newest.round - 1, weight=0, electorate=known.electorate, members=(),
        roster=known.roster,
    )  # fmt: skip
    return (before, head_after(newest)) if before.round > known.round else (known, head_after(newest))


def _last_of(heads: Sequence[ChainHead]) -> tuple[ChainHead, ...]:
    """Of these, oldest first, the newest that no Restart outranks any more, and those after it."""
    each = list({head.round: head for head in heads}.values())
    settled = [head for head in each if head.round <= max(0, each[-1].round - YIELDS_TO)]
    return tuple(each[len(settled) - 1 :])


def _first_restart(blocks: Collection[Block], others: Collection[Block]) -> float:
    """The round of the first that was decided after a Restart and is none of the others; infinity if there is none."""
    known = {block.update.digest for block in others}
    rounds = (block.update.round for block in blocks if block.restarts and block.update.digest not in known)
    return min(rounds, default=inf)
