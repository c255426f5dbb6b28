"""What survives a crash of a peer in memory: `peer.rounds.driver.ChainPort`.

Each of its writes happens whole or not at all. Whoever owns the disk hears of each before, so that a crash can fall
between any two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, Self

from peer.protocol import merkle
from peer.protocol.block import Block, ContributionHeader, Update
from peer.protocol.encoding import digest_of
from peer.protocol.head import ChainEntry, ChainHead
from peer.rounds.state import Acceptor


class DiskOwner(Protocol):
    """Whose disk it is, and its timers."""

    def burn(self) -> None:
        """Called before every effect that others could notice; may end the peer by raising."""

    def later(self, delay_s: float, call: Callable[..., None], *args: object) -> None:
        """Run `call` after `delay_s` unless the peer has died by then."""


@dataclass
class MemoryDisk:
    """What belongs to anchors is kept for `keep_rounds` of them; all blocks are."""

    owner: DiskOwner
    genesis: ChainHead
    keep_rounds: int
    on_commit: Callable[[Block, ChainHead], None]
    on_undo: Callable[[tuple[Block, ...], ChainHead], None]
    acceptors: dict[bytes, tuple[int, Acceptor]] = field(default_factory=dict)
    """For each instance the round of its anchor, and what a voter must not forget."""
    objects: dict[bytes, bytes] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    heads: list[ChainHead] = field(default_factory=list)
    undone: dict[bytes, Block] = field(default_factory=dict)
    """Blocks of branches that were left, by the anchor each of them made."""
    contributions: dict[bytes, tuple[int, ContributionHeader, list[bytes]]] = field(default_factory=dict)
    """For each anchor its round, and what this peer offered for it."""

    @property
    def head(self) -> ChainHead:
        return self.heads[-1] if self.heads else self.genesis

    def save_acceptor(self, acceptor: Acceptor) -> None:
        """What a voter must not forget of one instance."""
        self.owner.burn()
        _, before = self.acceptors.get(acceptor.instance, (0, acceptor))
        assert before.promised <= acceptor.promised, f"{before.promised} was promised, now {acceptor.promised} is"
        self.acceptors[acceptor.instance] = (self.head.round, acceptor)

    def load_acceptors(self) -> dict[bytes, Acceptor]:
        return {instance: acceptor for instance, (_, acceptor) in self.acceptors.items()}

    def save_object(self, digest: bytes, payload: bytes) -> None:
        self.owner.burn()
        self.objects[digest] = payload

    def accepted_update(self, acceptor: Acceptor | None) -> Update | None:
        """The update that an acceptor names."""
        if acceptor is None or acceptor.accepted is None:
            return None
        return Update.from_bytes(self.objects[acceptor.accepted[1]])

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None:
        """As `save_object`, and then say so."""
        self.save_object(digest, payload)
        self.owner.later(0.0, done)

    def load(self, digest: bytes) -> bytes | None:
        return self.objects.get(digest)

    def commit(self, block: Block, head: ChainHead, awaited: frozenset[bytes]) -> None:
        self.owner.burn()
        self.on_commit(block, head)
        self.blocks.append(block)
        self.heads.append(head)
        self.undone.pop(head.anchor, None)
        self._sweep()

    def undo(self, head: ChainHead) -> tuple[Block, ...]:
        """Stand at an earlier anchor again; returns the blocks that are no longer on the chain, newest first."""
        self.owner.burn()
        at = [known.anchor for known in (self.genesis, *self.heads)].index(head.anchor)
        blocks = tuple(reversed(self.blocks[at:]))
        self.on_undo(blocks, head)
        self.undone |= {made.anchor: block for made, block in zip(self.heads[at:], self.blocks[at:], strict=True)}
        del self.blocks[at:], self.heads[at:]
        return blocks

    def trail(self) -> tuple[ChainEntry, ...]:
        """The newest blocks, each with the head before it."""
        steps = map(ChainEntry, (self.genesis, *self.heads), self.blocks)
        return tuple(steps)[-self.keep_rounds :]

    def start_anew(self, other: Self) -> None:
        """Have the chain of `other` in place of mine; what was promised and offered stays."""
        self.blocks, self.heads = list(other.blocks), list(other.heads)
        self.objects |= other.objects
        self._sweep()

    def _sweep(self) -> None:
        oldest = self.head.round - self.keep_rounds
        for anchor in [anchor for anchor, (round, *_) in self.contributions.items() if round < oldest]:
            del self.contributions[anchor]
        for instance in [instance for instance, (round, _) in self.acceptors.items() if round < oldest]:
            del self.acceptors[instance]
        for anchor in [anchor for anchor, block in self.undone.items() if block.update.round < oldest]:
            del self.undone[anchor]

    def save_contribution(self, pledge: ContributionHeader, payloads: list[bytes]) -> None:
        """What this peer offers for the anchor that the pledge names."""
        self.owner.burn()
        assert pledge.anchor not in self.contributions, "a contribution is written once per anchor"
        self.contributions[pledge.anchor] = (self.head.round, pledge, payloads)

    def pledge(self, anchor: bytes) -> ContributionHeader | None:
        """What this peer pledged for `anchor`; None if it had not frozen."""
        return self.contributions[anchor][1] if anchor in self.contributions else None

    def blocks_after(self, anchor: bytes) -> tuple[Block, ...]:
        """At most 16 blocks that follow `anchor`; none for an anchor that is not of this chain."""
        first = next((i for i, block in enumerate(self.blocks) if block.update.parent == anchor), len(self.blocks))
        return tuple(self.blocks[first : first + 16])

    def my_part(self, anchor: bytes, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        """(Merkle path, bytes) of a part of what this peer offered for `anchor`."""
        payloads = self.offered(anchor)
        if payloads is None:
            return None
        leaves = [digest_of(payload) for payload in payloads]
        return merkle.path(leaves, part), payloads[part]

    def offered(self, anchor: bytes) -> list[bytes] | None:
        """Every part of what this peer offered for `anchor`; None if it had not frozen."""
        return self.contributions[anchor][2] if anchor in self.contributions else None
