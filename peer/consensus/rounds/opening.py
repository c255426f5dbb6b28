"""What comes sealed is unpacked once those have signed it who may: until then it costs a hash and their signatures.

An update has up to 8 MB, a chain of them 16: who has signed nothing must not have others read that. All of it is pure,
so it may be done beside the machine, which checks again what it acts on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from peer.consensus.protocol import validation
from peer.consensus.protocol.block import Block
from peer.consensus.protocol.encoding import digest_of, pack
from peer.consensus.protocol.head import ChainHead, next_anchor
from peer.consensus.protocol.messages import (
    Blocks,
    Message,
    Propose,
    Restarted,
    SealedBlock,
    SealedBlocks,
    SealedPropose,
    SealedRestart,
)
from peer.consensus.rounds.state import State

Sealed = SealedPropose | SealedBlocks | SealedRestart
Open = Callable[[Any], Any]


def open_one(sealed: SealedPropose | SealedBlock | SealedRestart) -> Propose | Block | Restarted:
    """Raises ValueError."""
    return sealed.opened()


def opened(state: State, message: Sealed, open_one: Open = open_one) -> tuple[Message, ...]:
    """What a sealed message says to a peer in this state, as far as it is signed; what is not stays sealed."""
    try:
        match message:
            case SealedPropose():
                return (open_one(message) if _is_proposed(state, message) else message,)
            case SealedRestart():
                return (open_one(message) if _is_ordered(state, message.payload, message.signature) else message,)
        return _opened_blocks(state, message, open_one)
    except Exception:  # a quorum, the leader or the organiser has signed what cannot be read: refused with its sender
        return (message,)


def _is_proposed(state: State, message: SealedPropose) -> bool:
    """Whether the leader of that ballot after my head signed it."""
    place, digest = message.place, digest_of(message.update)
    leader, proposed = state.head.leader(place.ballot), pack((place.packed(), digest))
    return place.anchor == state.head.anchor and state.rules.keys.verify(
        leader, "propose", proposed, message.signature
    )  # fmt: skip


def _is_ordered(state: State, payload: bytes, signature: bytes) -> bool:
    rules = state.rules
    return bool(rules.organiser) and rules.keys.verify(rules.organiser, "restart", payload, signature)


def _opened_blocks(state: State, message: SealedBlocks, open_one: Open) -> tuple[Message, ...]:
    """Those that follow a head of mine, and what is left at the first that none of those who decide stands behind.

    Of blocks that part from my chain before the oldest head that I keep nothing can be said: as if there were no way.
    """
    if not message.blocks:
        return (Blocks(()),)
    heads = {entry.before.anchor: entry.before for entry in state.trail}
    heads |= {head.anchor: head for head in (state.head, state.tip)}
    links = tuple(_links(message))
    if parts_too_early(state, links):
        return (Blocks(()),)
    found = list[Block]()
    head: ChainHead | None = None
    for index, ((anchor, digest), sealed) in enumerate(zip(links, message.blocks, strict=True)):
        head = heads.get(anchor) if head is None else head
        if head is None:
            continue
        block = _opened_block(state, head, digest, sealed, open_one)
        if block is None:
            rest = SealedBlocks(anchor, message.blocks[index:])
            return (Blocks(tuple(found)), rest) if found else (rest,)
        found.append(block)
        head = head.after(block.update)
    return (Blocks(tuple(found)),) if found else ()


def _links(message: SealedBlocks) -> Iterator[tuple[bytes, bytes]]:
    """The anchor before each block, as its sender says, and the name of its update."""
    anchor = message.after
    for sealed in message.blocks:
        digest = digest_of(sealed.update)
        yield anchor, digest
        anchor = next_anchor(anchor, digest)


def _opened_block(state: State, head: ChainHead, digest: bytes, sealed: SealedBlock, open_one: Open) -> Block | None:
    if not all(_is_ordered(state, payload, signature) for payload, signature in sealed.restarts):
        return None
    restarts = sealed.opened_restarts()
    if validation.fault_of_certificate(state.rules, head, digest, sealed.votes, restarts):
        return None
    block: Block = open_one(sealed)
    return block if block.update.parent == head.anchor else None


def parts_too_early(state: State, links: tuple[tuple[bytes, bytes], ...]) -> bool:
    """Whether blocks, each as the anchor before it and its digest, leave my chain before the oldest round that I keep:
    what they are I cannot judge."""
    oldest = state.trail[0].before.round if state.trail else state.head.round
    return any(
        state.ancestors.get(anchor, oldest) < oldest and next_anchor(anchor, digest) not in state.ancestors
        for anchor, digest in links
    )
