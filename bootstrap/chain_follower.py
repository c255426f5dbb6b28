"""The organiser's node follows the run's chain by certificates and serves it to newcomers when no peer is left.

Records on the board prove nothing: a peer can claim any round there. So the node asks peers for their blocks and
believes only those that a quorum of voters has certified.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from dht.atomic_files import write_atomic
from dht.identity import RunKeys
from dht.node import Node
from dht.records import Genesis, PeerRecord
from dht.streams.answer_budget import AnswerBudget
from peer.consensus.organiser.light_chain import MAX_WAY_BYTES, packed_way, read_question
from peer.consensus.protocol.block import Block
from peer.consensus.protocol.head import ChainHead
from peer.network.sync.certified_way import Follower
from peer.network.sync.chain_status import ChainStatus
from peer.node.store.kept_way import KeptWay, read_kept_way, write_kept_way
from peer.node.store.run_directory import genesis_head, head_after

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

    def __init__(self, directory: Path, keys: RunKeys, rounds: int) -> None:
        self._directory, self._keys, self._rounds = directory, keys, rounds
        self.head: ChainHead | None = None
        """The head of the chain, as far as it was followed; None before the first look."""
        self._newest: Block | None = None
        self._way = KeptWay(0)
        self._look_at = 0.0
        self._budget = AnswerBudget(
            time.monotonic, lambda: WAYS_A_MINUTE * MAX_WAY_BYTES, self._is_free, lambda: LINE_BPS
        )

    def has_elected(self, peer: str) -> bool:
        return self.head is not None and peer in self.head.electorate

    def _is_free(self, peer: str) -> bool:
        return self.has_elected(peer) or (self.head is not None and peer in self.head.roster.known)

    async def look(self, node: Node, genesis: Genesis, read_heads: ReadHeads) -> tuple[Block, ...]:
        """The new blocks that some peer shows: those that change the electorate, and the newest. Looks each LOOK_S,
        and at once when a peer says that it has made the last round. Raises DiskFull."""
        if self.head is None:
            self._load(genesis)
        assert self.head is not None
        heads = await read_heads()
        further = [peer for peer, said in heads.items() if said.round > self.head.round]
        is_ending = self._rounds > 0 and any(said.round == self._rounds for said in heads.values())
        if not further or (time.monotonic() < self._look_at and not is_ending):
            return ()
        self._look_at = time.monotonic() + LOOK_S
        follower = Follower(asker=node, keys=self._keys, organiser=self._keys.identity.peer_id, within_s=ASK_S)
        way = await follower.follow(random.choice(further), self.head)
        if way is None:
            return ()
        self._way = self._way.and_then(way.blocks, self.head)
        self.head, self._newest = way.head, way.blocks[-1]
        write_kept_way(self._directory, self._way)
        write_atomic(self._directory / FOLLOWED_FILE, self._newest.to_bytes())
        return way.blocks

    def _load(self, genesis: Genesis) -> None:
        """The node's last position: it has checked what it wrote itself."""
        self.head = genesis_head(genesis)
        path = self._directory / FOLLOWED_FILE
        if not path.exists():
            return
        try:
            newest = Block.from_bytes(path.read_bytes())
            self._way = read_kept_way(self._directory, newest.update.round)
        except ValueError as error:
            log.warning("%s, or the way to it, is damaged (%s): the chain is followed from its beginning", path, error)
            return
        self.head, self._newest = head_after(newest.update), newest

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
