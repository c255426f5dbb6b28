"""A light client of the chain: it believes certificates from the genesis on, and never a count of peers.

A vote names its instance, H(anchor, electorate). So while the electorate stays the same, the newest certificate proves
all rounds before it. The way from the genesis is therefore: the blocks that changed the electorate, or the organiser's
list by which restarts are judged, and the newest block.
"""

from __future__ import annotations

from collections.abc import Sequence

from peer.consensus.protocol.block import Block
from peer.consensus.protocol.encoding import COUNT, Keys, integer, octets, pack, require_few, row, rows, unpack
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.validation import after_restarts, fault_of_votes

QUESTION = "way"
"""Under this name a peer gives the way between two rounds that the request names, `packed_question`; or nothing, if it
has not all of that."""
MAX_WAY_BYTES = 1 << 21
MAX_WAY = 1 << 12
"""Blocks."""


def follow(keys: Keys, organiser: str, start: ChainHead, way: Sequence[Block]) -> ChainHead:
    """The head after the last of these blocks, as far as they tell it. Raises ValueError if one is not decided by
    the electorate before it."""
    head = start
    for block in way:
        update = block.update
        if update.round <= head.round:
            raise ValueError("its blocks are not in order")
        if update.round == head.round + 1 and update.parent != head.anchor:
            raise ValueError(f"round {update.round} follows another model")
        before = ChainHead(
            anchor=update.parent, round=update.round - 1, weight=0, electorate=head.electorate, members=(),
            roster=head.roster,
        )  # fmt: skip
        after, phase, fault = after_restarts(keys, organiser, before, block)
        fault = fault or fault_of_votes(keys, after, block.votes, update.digest, phase, led=False)
        if fault:
            raise ValueError(f"round {update.round}: {fault}")
        head = before.after(update)
    return head


def way_of(blocks: Sequence[Block], start: ChainHead) -> tuple[Block, ...]:
    """Those of the blocks after `start` that are needed to follow them."""
    return (*changes_in(blocks[:-1], start), *blocks[-1:])


def changes_in(blocks: Sequence[Block], start: ChainHead) -> tuple[Block, ...]:
    """Those of the blocks after `start` that change the electorate, or the list by which restarts are judged; and
    those that were decided after a Restart."""
    needed, electorate, roster = [], start.electorate, start.roster
    for block in blocks:
        update = block.update
        if (update.elect, update.roster) != (electorate, roster) or block.restarts:
            needed.append(block)
        electorate, roster = update.elect, update.roster
    return tuple(needed)


def packed_question(start: int, end: int = 0) -> bytes:
    """Asks for the way from round `start` to round `end`, or to the head of the peer that is asked."""
    return pack((start, end))


def read_question(request: bytes) -> tuple[int, int]:
    """Raises ValueError."""
    start, end = row(unpack(request), 2)
    return COUNT(start), integer(end, 0)


def packed_way(way: Sequence[Block]) -> bytes:
    """As many of the first blocks as fit into one answer: a peer that has followed them asks for the rest."""
    chosen: list[bytes] = []
    room = MAX_WAY_BYTES - 64
    for block in way[:MAX_WAY]:
        packed = block.to_bytes()
        room -= len(packed) + 8
        if chosen and room < 0:
            break
        chosen.append(packed)
    return pack(tuple(chosen))


def read_way(packed: bytes) -> tuple[Block, ...]:
    """Raises ValueError."""
    require_few(packed, MAX_WAY + 1)
    return tuple(Block.from_bytes(octets(item)) for item in rows(unpack(packed), MAX_WAY))
