"""The disk of a peer in memory, which survives its crash: `peer.consensus.rounds.driver.ChainPort`.

Each write happens completely or not at all. The disk's owner is told of each write before it happens, so that a crash
can fall between any two of them.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, Self

from peer.consensus.protocol import merkle
from peer.consensus.protocol.block import Block, ContributionHeader, Update
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.head import ChainEntry, ChainHead
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.rounds.interface import BufferPart, CheckMean, CheckRow, ReducePart
from peer.consensus.rounds.state import Acceptor


class DiskOwner(Protocol):
    """The owner of a disk, with its timers."""

    def burn(self) -> None:
        """Called before every effect that others could notice; may end the peer by raising."""

    def later(self, delay_s: float, call: Callable[..., None], *args: object) -> None:
        """Run `call` after `delay_s` unless the peer has died by then."""


@dataclass
class MemoryDisk:
    """A peer's disk in memory. It keeps all blocks, and for the newest `keep_rounds` anchors the contributions and
    votes."""

    owner: DiskOwner
    genesis: ChainHead
    keep_rounds: int
    on_commit: Callable[[Block, ChainHead], None]
    acceptors: dict[bytes, tuple[int, Acceptor]] = field(default_factory=dict)
    """For each instance, the round of its anchor, and what a voter must not forget."""
    objects: dict[bytes, bytes] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    heads: list[ChainHead] = field(default_factory=list)
    """The head after each block."""
    contributions: dict[bytes, tuple[int, ContributionHeader, list[bytes]]] = field(default_factory=dict)
    """For each anchor, its round, and this peer's contribution to it."""

    @property
    def head(self) -> ChainHead:
        return self.heads[-1] if self.heads else self.genesis

    def save_acceptor(self, acceptor: Acceptor) -> None:
        """Save what a voter must not forget about one instance."""
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
        """The update that an acceptor has accepted."""
        if acceptor is None or acceptor.accepted is None:
            return None
        return Update.from_bytes(self.objects[acceptor.accepted[1]])

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None:
        """Save an object as `save_object` does, then call `done`."""
        self.save_object(digest, payload)
        self.owner.later(0.0, done)

    def load(self, digest: bytes) -> bytes | None:
        return self.objects.get(digest)

    def commit(self, block: Block, head: ChainHead, awaited: frozenset[bytes]) -> None:
        self.owner.burn()
        self.on_commit(block, head)
        self.blocks.append(block)
        self.heads.append(head)
        self._sweep()

    def trail(self) -> tuple[ChainEntry, ...]:
        """The newest blocks, each with the head before it."""
        steps = map(ChainEntry, (self.genesis, *self.heads), self.blocks)
        return tuple(steps)[-self.keep_rounds :]

    def start_anew(self, other: Self) -> None:
        """Replace this chain by that of `other`; promises and contributions stay."""
        self.blocks, self.heads = list(other.blocks), list(other.heads)
        self.objects |= other.objects
        self._sweep()

    def _sweep(self) -> None:
        oldest = self.head.round - self.keep_rounds
        for anchor in [anchor for anchor, (round, *_) in self.contributions.items() if round < oldest]:
            del self.contributions[anchor]
        for instance in [instance for instance, (round, _) in self.acceptors.items() if round < oldest]:
            del self.acceptors[instance]

    def save_contribution(self, header: ContributionHeader, payloads: list[bytes]) -> None:
        """Save this peer's contribution for the anchor in the header."""
        self.owner.burn()
        assert header.anchor not in self.contributions, "a contribution is written once per anchor"
        self.contributions[header.anchor] = (self.head.round, header, payloads)

    def header(self, anchor: bytes) -> ContributionHeader | None:
        """This peer's contribution for `anchor`; None if it did not submit one."""
        return self.contributions[anchor][1] if anchor in self.contributions else None

    def blocks_after(self, anchor: bytes) -> tuple[Block, ...]:
        """At most 16 blocks that follow `anchor`; none if the anchor is not in this chain."""
        first = next((i for i, block in enumerate(self.blocks) if block.update.parent == anchor), len(self.blocks))
        return tuple(self.blocks[first : first + 16])

    def my_part(self, anchor: bytes, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        """(Merkle path, bytes) of one part of this peer's contribution for `anchor`."""
        payloads = self.offered(anchor)
        if payloads is None:
            return None
        leaves = [digest_of(payload) for payload in payloads]
        return merkle.path(leaves, part), payloads[part]

    def offered(self, anchor: bytes) -> list[bytes] | None:
        """All parts of this peer's contribution for `anchor`; None if it did not submit one."""
        return self.contributions[anchor][2] if anchor in self.contributions else None


# ---- and where a part is a norm and a number, for the simulator ----

_PART = struct.Struct(">dQ")
TOKEN_BYTES = _PART.size
AGREEMENT = 0.3
"""The cosine of a contribution with the last mean: honest peers agree about this much."""
SHRINKS = 0.5
"""The square norm of a mean, as a share of the mean of the square norms: differences between peers cancel."""
BLOCKS_KEPT = 2
"""Blocks are kept for this many times `keep_rounds`. Nobody asks for older ones: a peer that is so far behind
downloads a snapshot."""


def part_of(square: float, number: int) -> bytes:
    """The bytes that represent a part with this square norm."""
    return _PART.pack(square, number & (1 << 64) - 1)


def square_of(payload: bytes) -> float:
    square: float = _PART.unpack(payload)[0]
    return square


def is_finite(payload: bytes) -> bool:
    return math.isfinite(square_of(payload))


@dataclass
class NormStore(MemoryDisk):
    """A disk without delay that forgets old data, so that a long run needs no more memory than a short one.

    `genesis` is the head before the oldest block that is kept.
    """

    keys_of_rounds: list[list[bytes]] = field(default_factory=list)
    saved: list[bytes] = field(default_factory=list)
    """The digests saved since the newest anchor."""
    paths: dict[bytes, list[tuple[bytes, ...]]] = field(default_factory=dict)
    """The Merkle paths of the contribution, by anchor."""

    def save_object(self, digest: bytes, payload: bytes) -> None:
        if digest not in self.objects:
            self.saved.append(digest)
            self.objects[digest] = payload

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None:
        """Save the object and call `done` at once: writing sixteen bytes needs no time."""
        self.save_object(digest, payload)
        done()

    def save_acceptor(self, acceptor: Acceptor) -> None:
        """Save what a voter must not forget about one instance."""
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

    def save_contribution(self, header: ContributionHeader, payloads: list[bytes]) -> None:
        """Save a contribution with the Merkle paths of its parts."""
        super().save_contribution(header, payloads)
        leaves = [digest_of(payload) for payload in payloads]
        self.paths = {anchor: paths for anchor, paths in self.paths.items() if anchor in self.contributions}
        self.paths[header.anchor] = [merkle.path(leaves, part) for part in range(len(leaves))]

    def my_part(self, anchor: bytes, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        """(Merkle path, bytes) of one part of this peer's contribution for `anchor`."""
        offered = self.contributions.get(anchor)
        return None if offered is None else (self.paths[anchor][part], offered[2][part])

    def start_anew(self, other: Self) -> None:
        """Replace this chain by that of `other`, with the keys of its newest rounds."""
        super().start_anew(other)
        self.keys_of_rounds = [list(keys) for keys in other.keys_of_rounds]

    def blocks_after(self, anchor: bytes) -> tuple[Block, ...]:
        """At most 16 blocks that follow `anchor`. The search starts at the newest, since most anchors are recent."""
        for at in range(len(self.blocks) - 1, -1, -1):
            if self.blocks[at].update.parent == anchor:
                return tuple(self.blocks[at : at + 16])
        return ()


@dataclass
class NormArithmetic:
    """Implements `peer.consensus.rounds.driver.ReductionPort` for such bytes: the same parts and weights give the
    same mean."""

    disk: MemoryDisk
    reduce_s: float
    parts: dict[tuple[object, str, int], tuple[tuple[bytes, ...], bytes]] = field(default_factory=dict)

    def keep(self, effect: BufferPart) -> None:
        self.parts[effect.place, effect.sender, effect.part] = (effect.path, effect.payload)

    def kept(self, place: object, giver: str, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        """(Merkle path, bytes) of a part that was kept."""
        return self.parts.get((place, giver, part))

    def measure(self, payload: bytes, direction: bytes, done: Callable[[PartNorms], None]) -> None:
        """Report the norm of a part, and its agreement with the last mean."""
        square, mean = square_of(payload), self.disk.load(direction)
        if mean is None:
            done(PartNorms(square))
            return
        last = square_of(mean)
        done(PartNorms(square, AGREEMENT * math.sqrt(square * last) if square >= 0 else square, last))

    def reduce(self, effect: ReducePart, done: Callable[[bytes], None]) -> None:
        """Make the mean of the square norms, with a number that depends on all parts."""
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
            self.reduce_s * len(effect.members), self.disk.store, digest, mean, lambda: done(digest)
        )  # fmt: skip

    def check(self, effect: CheckMean, me: str, whole: bytes, mine: bytes | None, done: Callable[[str], None]) -> None:
        """Accept every mean: no simulated peer lies about one, and these means have no rows."""
        done("")

    def check_row(self, effect: CheckRow, whole: bytes, done: Callable[[bool], None]) -> None:
        done(True)

    def forget(self) -> None:
        self.parts.clear()


@dataclass(frozen=True)
class ModelKeys:
    """Signatures of the model that only their author can make: a hash of author and content."""

    me: str

    def sign(self, kind: str, payload: bytes) -> bytes:
        return _signature(self.me, kind, payload)

    def verify(self, peer: str, kind: str, payload: bytes, signature: bytes) -> bool:
        return signature == _signature(peer, kind, payload)


def _signature(peer: str, kind: str, payload: bytes) -> bytes:
    return hashlib.blake2b(f"{peer} {kind} ".encode() + payload, digest_size=64).digest()
