"""Follows another peer's chain by the votes that certify it; the peer's own word counts for nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dht.errors import BadInput, Unreachable
from dht.streams.base import Asking
from peer.consensus.organiser import light_chain
from peer.consensus.protocol.block import Block
from peer.consensus.protocol.encoding import Keys
from peer.consensus.protocol.head import ChainHead
from peer.network.sync.chain_status import ChainStatus

log = logging.getLogger(__name__)

ASK_S = 10.0
WAY_S = 60.0
"""For all of a way: who shows it block by block keeps nobody waiting for longer."""
ANSWERS_MOST = 64
"""Of one way: each holds thousands of blocks."""
YIELDS_TO = 8
"""A Restart outranks what was decided at its anchor without it, and as many rounds after that as this."""


TWO_CHAINS = "TWO_CHAINS"


class TwoWays(BadInput):
    """Two chains that are both certified, and part."""


@dataclass(frozen=True, kw_only=True)
class CertifiedWay:
    """A chain, as far as a peer has shown it."""

    start: ChainHead
    blocks: tuple[Block, ...]
    """The blocks that change the electorate, and the newest; at least one."""
    head: ChainHead


@dataclass(frozen=True, kw_only=True)
class Follower:
    """Asks for ways of one run, whose organiser signs Restarts."""

    asker: Asking
    keys: Keys
    organiser: str
    within_s: float = WAY_S
    tell: Callable[[str], None] = lambda text: None
    """Is told of chains that are certified, and part from mine."""

    async def follow(self, peer: str, start: ChainHead, end: int = 0) -> CertifiedWay | None:
        """The chain of a peer from `start` to round `end`, or to its newest; None if it does not show that."""
        try:
            async with asyncio.timeout(self.within_s):
                return await self._follow(peer, start, end)
        except (Unreachable, ValueError, TimeoutError) as error:
            log.info("%s does not show the way from round %d: %s", peer, start.round, error or "it is too slow")
            return None

    async def _follow(self, peer: str, start: ChainHead, end: int) -> CertifiedWay | None:
        """Raises Unreachable, ValueError."""
        head, blocks = start, list[Block]()
        for _ in range(ANSWERS_MOST):
            question = light_chain.packed_question(head.round, end)
            given = await self.asker.ask(peer, light_chain.QUESTION, ASK_S, light_chain.MAX_WAY_BYTES, question)
            if given is None:
                break
            way, head = await asyncio.to_thread(self._read, given, head)  # up to thousands of signatures
            blocks += way
            if not way or not end or head.round >= end:
                break
        if not blocks or (end and head.round != end):
            return None
        return CertifiedWay(start=start, blocks=tuple(blocks), head=head)

    def _read(self, packed: bytes, head: ChainHead) -> tuple[tuple[Block, ...], ChainHead]:
        """Raises ValueError."""
        way = light_chain.read_way(packed)
        return way, light_chain.follow(self.keys, self.organiser, head, way)

    async def follow_all(
        self, standings: Mapping[str, ChainStatus], heads: tuple[ChainHead, ...]
    ) -> dict[str, CertifiedWay]:
        """The chains of peers that are further than my own `heads`, oldest first. Raises TwoWays."""
        ahead = [peer for peer, standing in standings.items() if standing.round > heads[-1].round]
        found = await asyncio.gather(*(self.follow(peer, start_for(standings[peer].shared, heads)) for peer in ahead))
        further = {
            peer: way
            for peer, way in zip(ahead, found, strict=True)
            if way is not None and way.head.round > heads[-1].round
        }
        found_apart = await asyncio.gather(
            *(self._apart(peer, way, standings[peer].shared, heads) for peer, way in further.items())
        )
        apart = dict(zip(further, found_apart, strict=True))
        for words in filter(None, apart.values()):
            self.tell(f"{words}; this peer keeps to its own")
        ways = {peer: way for peer, way in further.items() if not apart[peer] and may_leave(heads[-1], way)}
        await self._require_one_chain(ways)
        return ways

    async def _apart(self, peer: str, way: CertifiedWay, shared: int, heads: tuple[ChainHead, ...]) -> str:
        """As `parts`. Who has none of my anchors may have dropped them; and one certificate proves all before it."""
        mine = heads[-1]
        by_restart = way.start.round < mine.round and may_leave(mine, way)
        return "" if by_restart or shared >= mine.round else await self.parts(peer, heads[0], mine)

    async def parts(self, peer: str, start: ChainHead, mine: ChainHead) -> str:
        """In words that a peer's certified chain parts from mine after a head on both; empty if it does not, or if the
        peer does not show that."""
        if start.round >= mine.round:
            return ""
        shown = await self.follow(peer, start, mine.round)
        if shown is None or shown.head.anchor == mine.anchor:
            return ""
        return (
            f"another chain is certified, too: {peer} shows one that parts from this one between rounds {start.round} "
            f"and {mine.round}, and by no Restart that counts"
        )

    async def _require_one_chain(self, ways: Mapping[str, CertifiedWay]) -> None:
        """Raises TwoWays if two of them part; a peer that cannot show what another one has is not asked further."""
        if not ways:
            return
        furthest = max(ways, key=lambda peer: ways[peer].head.round)
        first = ways[furthest]
        heads = {way.head.anchor: way.head for way in ways.values() if way.start == first.start}
        rounds = {head.round for head in heads.values()} - {first.head.round}
        # At once: who is furthest may take all of its time for each.
        shown = await asyncio.gather(*(self.follow(furthest, first.start, round) for round in sorted(rounds)))
        same = {way.head.round: way.head.anchor for way in (first, *shown) if way is not None}
        for head in heads.values():
            if same.get(head.round, head.anchor) != head.anchor:
                raise TwoWays(f"two chains are certified, and part before round {head.round}")


def start_for(shared: int, heads: tuple[ChainHead, ...]) -> ChainHead:
    """The head from which to follow a peer whose newest anchor in common with mine is that of this round."""
    known = (head for head in heads if head.round == shared)
    return next(known, heads[-1])


def may_leave(mine: ChainHead, way: CertifiedWay) -> bool:
    """Whether I may leave my head for this way: it goes on from there, or from shortly before by a Restart."""
    if way.start.round >= mine.round:
        return True
    first = way.blocks[0]
    is_restarted = bool(first.restarts) and first.update.round == way.start.round + 1
    return is_restarted and mine.round - way.start.round <= YIELDS_TO


def newest(ways: Iterable[CertifiedWay]) -> int:
    return max((way.head.round for way in ways), default=0)
