"""What stands for tensors in a simulation: a part is sixteen bytes, its square norm and a number of its own.

Norms are all that judging looks at, so attacks by size are found by the product's own rules. What a part takes on the
wire is declared elsewhere (`virtual_network.py`).
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from peer.protocol import merkle
from peer.protocol.block import Block, ContributionHeader
from peer.protocol.encoding import digest_of
from peer.protocol.head import ChainHead
from peer.protocol.norms import PartNorms
from peer.rounds.interface import BufferPart, ReducePart
from peer.rounds.state import Acceptor
from peer.simulate.memory_store import MemoryDisk

_PART = struct.Struct(">dQ")
TOKEN_BYTES = _PART.size
AGREEMENT = 0.3
"""Cosine of a contribution with the last mean: honest peers agree about as much."""
SHRINKS = 0.5
"""The square norm of a mean, as a share of the mean of square norms: what differs between peers cancels."""
BLOCKS_KEPT = 2
"""Times `keep_rounds`: older ones nobody asks for, since whoever is so far behind takes a snapshot."""


def part_of(square: float, number: int) -> bytes:
    """The bytes that stand for a part with this square norm."""
    return _PART.pack(square, number & (1 << 64) - 1)


def square_of(payload: bytes) -> float:
    square: float = _PART.unpack(payload)[0]
    return square


def is_finite(payload: bytes) -> bool:
    return math.isfinite(square_of(payload))


@dataclass
class NormStore(MemoryDisk):
    """A disk without a delay that forgets what is old, so that a long run takes no more memory than a short one.

    `genesis` is the head before the oldest block that is kept.
    """

    keys_of_rounds: list[list[bytes]] = field(default_factory=list)
    saved: list[bytes] = field(default_factory=list)
    """Since the newest anchor."""
    paths: dict[bytes, list[tuple[bytes, ...]]] = field(default_factory=dict)
    """Merkle paths of what was offered for an anchor."""

    def save_object(self, digest: bytes, payload: bytes) -> None:
        if digest not in self.objects:
            self.saved.append(digest)
            self.objects[digest] = payload

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None:
        """At once: writing sixteen bytes takes no time."""
        self.save_object(digest, payload)
        done()

    def save_acceptor(self, acceptor: Acceptor) -> None:
        """What a voter must not forget of one instance."""
        self.acceptors[acceptor.instance] = (self.head.round, acceptor)

    def commit(self, block: Block, head: ChainHead, awaited: frozenset[bytes]) -> None:
        super().commit(block, head, awaited)
        self.keys_of_rounds.append(self.saved)
        self.saved = []
        if len(self.blocks) > BLOCKS_KEPT * self.keep_rounds:
            self.genesis = self.heads.pop(0)
            self.blocks.pop(0)
        if len(self.keys_of_rounds) > self.keep_rounds:
            for digest in self.keys_of_rounds.pop(0):
                if digest not in awaited:
                    self.objects.pop(digest, None)

    def save_contribution(self, pledge: ContributionHeader, payloads: list[bytes]) -> None:
        """With the paths of its parts."""
        super().save_contribution(pledge, payloads)
        leaves = [digest_of(payload) for payload in payloads]
        self.paths = {anchor: paths for anchor, paths in self.paths.items() if anchor in self.contributions}
        self.paths[pledge.anchor] = [merkle.path(leaves, part) for part in range(len(leaves))]

    def my_part(self, anchor: bytes, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        """(Merkle path, bytes) of a part of what this peer offered for `anchor`."""
        offered = self.contributions.get(anchor)
        return None if offered is None else (self.paths[anchor][part], offered[2][part])

    def start_anew(self, other: Self) -> None:
        """With what belongs to the newest rounds of the other."""
        super().start_anew(other)
        self.keys_of_rounds = [list(keys) for keys in other.keys_of_rounds]

    def blocks_after(self, anchor: bytes) -> tuple[Block, ...]:
        """At most 16 blocks that follow `anchor`; it is one of the newest more often than not."""
        for at in range(len(self.blocks) - 1, -1, -1):
            if self.blocks[at].update.parent == anchor:
                return tuple(self.blocks[at : at + 16])
        return ()


@dataclass
class NormArithmetic:
    """`peer.rounds.driver.ReductionPort` on such bytes: the same mean from the same parts and weights."""

    disk: MemoryDisk
    reduce_s: float
    parts: dict[tuple[object, str, int], tuple[tuple[bytes, ...], bytes]] = field(default_factory=dict)

    def keep(self, effect: BufferPart) -> None:
        self.parts[effect.place, effect.sender, effect.part] = (effect.path, effect.payload)

    def kept(self, place: object, giver: str, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        """(Merkle path, bytes) of a part that is kept."""
        return self.parts.get((place, giver, part))

    def measure(self, payload: bytes, direction: bytes, done: Callable[[PartNorms], None]) -> None:
        """Its norm, and how it agrees with the last mean."""
        square, mean = square_of(payload), self.disk.load(direction)
        if mean is None:
            done(PartNorms(square))
            return
        last = square_of(mean)
        done(PartNorms(square, AGREEMENT * math.sqrt(square * last) if square >= 0 else square, last))

    def reduce(self, effect: ReducePart, done: Callable[[bytes], None]) -> None:
        """The mean of the square norms, and a number that the parts give."""
        squares, total, number = 0.0, sum(effect.weights), 0
        for member, weight in zip(effect.members, effect.weights, strict=True):
            payload = self.parts[effect.place, member, effect.part][1]
            squares += weight * square_of(payload)
            number = zlib.crc32(payload, number)
        if not math.isfinite(squares):
            return
        mean = part_of(SHRINKS * squares / total, number << 32 | effect.part)
        digest = digest_of(mean)
        self.disk.owner.later(
            self.reduce_s * len(effect.members), self._stored, digest, mean, done,
        )  # fmt: skip

    def _stored(self, digest: bytes, mean: bytes, done: Callable[[bytes], None]) -> None:
        self.disk.store(digest, mean, lambda: done(digest))

    def forget(self) -> None:
        self.parts.clear()


@dataclass(frozen=True)
class ModelKeys:
    """Signatures that only their author makes in this model: a hash of author and content."""

    me: str

    def sign(self, kind: str, payload: bytes) -> bytes:
        return _signature(self.me, kind, payload)

    def verify(self, peer: str, kind: str, payload: bytes, signature: bytes) -> bool:
        return signature == _signature(peer, kind, payload)


def _signature(peer: str, kind: str, payload: bytes) -> bytes:
    return hashlib.blake2b(f"{peer} {kind} ".encode() + payload, digest_size=64).digest()
