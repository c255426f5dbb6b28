"""The chain of a run for somebody who takes no part: every block is checked as a peer checks it, and none is applied.

The bytes of the parts are not downloaded; the votes say that a quorum holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from peer.consensus.credit.round_credit import NO_CAP, summarize
from peer.consensus.protocol.block import Block
from peer.consensus.protocol.head import ChainEntry, ChainHead, next_anchor
from peer.consensus.protocol.layout import Part
from peer.consensus.protocol.messages import GET_MOST
from peer.consensus.protocol.rules import Rules
from peer.consensus.protocol.validation import check_block
from peer.schema.events import Event


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What came of an answer."""

    steps: tuple[ChainEntry, ...] = ()
    """The new blocks, oldest first, each with the head before it."""
    parted: int = 0
    """The round from which on two chains stand that quorums have certified; 0 if they agree."""
    fault: str = ""
    """Why the rest was refused, in words; empty if nothing was."""


class WatchedChain:
    """A chain from `head` on, as far as certificates lead."""

    def __init__(self, rules: Rules, head: ChainHead) -> None:
        self.rules, self.head = rules, head
        self._trail: tuple[ChainEntry, ...] = ()
        """The newest blocks, oldest first."""

    @property
    def trail(self) -> tuple[ChainEntry, ...]:
        """The newest blocks, oldest first, each with the head before it."""
        return self._trail

    @property
    def anchors(self) -> tuple[bytes, ...]:
        """What a peer is asked with: the newest anchor first."""
        return (self.head.anchor, *(step.before.anchor for step in reversed(self._trail)))[:GET_MOST]

    def take(self, blocks: Sequence[Block]) -> Taken:
        """Go on along these blocks, from where they leave what is known; what certificates led to is never left."""
        found = self._parting(blocks)
        if found is None:
            return Taken()
        first, at = found
        tip = self.head if at == len(self._trail) else self._trail[at].before
        steps, fault = list[ChainEntry](), ""
        for block in blocks[first:]:
            fault = check_block(self.rules, tip, block)
            if fault:
                break
            steps.append(ChainEntry(tip, block))
            tip = tip.after(block.update)
        if at < len(self._trail):
            return Taken(parted=steps[0].block.update.round if steps else 0, fault=fault)
        self.head = tip
        self._trail = (*self._trail, *steps)[-self.rules.keep_rounds :]
        return Taken(steps=tuple(steps), fault=fault)

    def _parting(self, blocks: Sequence[Block]) -> tuple[int, int] | None:
        """The first block that is new here, and how many steps of the trail lead to its parent."""
        places = {step.before.anchor: place for place, step in enumerate(self._trail)}
        places[self.head.anchor] = len(self._trail)
        for index, block in enumerate(blocks):
            place = places.get(block.update.parent)
            if place is None:
                continue
            if place == len(self._trail) or block.update.digest != self._trail[place].block.update.digest:
                return index, place
        return None


def commit_events(
    step: ChainEntry, parts: Sequence[Part], state_of: Callable[[bytes], bytes], fragments: int = 1,
    tokens_cap: int = NO_CAP,
) -> Iterator[Event]:  # fmt: skip
    """What people hear of a block, see `summarize`; layers by their numbers.

    `state_of` is what peers say of the bits of an anchor, empty if none does.
    """
    update = step.block.update
    anchor = next_anchor(update.parent, update.digest)
    committed, imposed = summarize(update, anchor, state_of(anchor), parts, fragments=fragments, tokens_cap=tokens_cap)
    yield committed
    yield from imposed
