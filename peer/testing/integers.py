"""The smallest model that can go wrong: a part is one integer, and its books must balance to the last one.

Encoding rounds, so residues exist. A mean is a sum to which its reducer adds noise, so two reducers
never make the same bytes. `IntegerDisk` is what survives a crash; each of its writes happens whole or
not at all, and costs a burn of the peer's fuse, so that a crash can fall between any two of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from peer.rounds import merkle
from peer.rounds.names import digest_of
from peer.rounds.settlement import Settlement, settle
from peer.rounds.state import Acceptor, Head, Keep, Reduce
from peer.rounds.update import VOID, Block, Pledge, Update

PARTS = 3
STEP = 8
"""Encoding rounds to multiples of this."""
PART_BYTES = 8


class Owner(Protocol):
    """Whose disk it is, and its timers."""

    def burn(self) -> None:
        """Called before every effect that others could notice; may end the peer by raising."""

    def later(self, delay_s: float, call: Callable[..., None], *args: object) -> None:
        """Run `call` after `delay_s` unless the peer has died by then."""


@dataclass(frozen=True)
class ModelKeys:
    """Signatures that only their author makes in this model: a hash of author and content."""

    me: str

    def sign(self, kind: str, payload: bytes) -> bytes:
        """My signature."""
        return _signature(self.me, kind, payload)

    def verify(self, peer: str, kind: str, payload: bytes, signature: bytes) -> bool:
        """Whether `peer` made it."""
        return signature == _signature(peer, kind, payload)


def _signature(peer: str, kind: str, payload: bytes) -> bytes:
    return hashlib.blake2b(f"{peer} {kind} ".encode() + payload, digest_size=64).digest()


def encoded(value: int) -> bytes:
    """One part on the wire."""
    return value.to_bytes(PART_BYTES, "big", signed=True)


def decoded(payload: bytes) -> int:
    """The integer in a part."""
    return int.from_bytes(payload, "big", signed=True)


@dataclass
class Ledger:
    """A peer's tensors and its books: balance + counted + discounted is what it produced and did not lose."""

    round: int = 0
    theta: list[int] = field(default_factory=lambda: [0] * PARTS)
    balance: list[int] = field(default_factory=lambda: [0] * PARTS)
    counted: list[int] = field(default_factory=lambda: [0] * PARTS)
    discounted: list[int] = field(default_factory=lambda: [0] * PARTS)

    def copy(self) -> Ledger:
        """The same numbers, to be kept elsewhere."""
        return Ledger(
            self.round, list(self.theta), list(self.balance), list(self.counted), list(self.discounted)
        )  # fmt: skip

    def encoded_balance(self) -> list[bytes]:
        """What a contribution offers: the balance, rounded."""
        return [encoded(balance // STEP * STEP) for balance in self.balance]

    def apply(self, me: str, update: Update, mine: list[bytes] | None, objects: dict[bytes, bytes]) -> None:
        """The outer step, and what the update means for the balance of `me`, who had offered the bytes `mine`."""
        for part, what in enumerate(settle(update, me, mine is not None)):
            if update.parts[part] != VOID:
                self.theta[part] += decoded(objects[update.parts[part]])
            if what is Settlement.COUNTED:
                assert mine is not None
                self.balance[part] -= decoded(mine[part])
                self.counted[part] += decoded(mine[part])
            elif what is Settlement.MISSED:
                kept = self.balance[part] * 3 // 4
                self.discounted[part] += self.balance[part] - kept
                self.balance[part] = kept
        self.round += 1


@dataclass
class IntegerDisk:
    """`peer.averaging.driver.Disk` in memory."""

    owner: Owner
    head: Head
    on_commit: Callable[[Block, Head], None]
    acceptor: Acceptor | None = None
    objects: dict[bytes, bytes] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)
    contributions: dict[bytes, tuple[Pledge, list[bytes]]] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)

    def save_acceptor(self, acceptor: Acceptor) -> None:
        """What a voter must not forget."""
        self.owner.burn()
        self.acceptor = acceptor

    def save_object(self, digest: bytes, payload: bytes) -> None:
        """Bytes under their name."""
        self.owner.burn()
        self.objects[digest] = payload

    def accepted_update(self) -> Update | None:
        """The update that `acceptor` names."""
        if self.acceptor is None or self.acceptor.accepted is None:
            return None
        return Update.from_bytes(self.objects[self.acceptor.accepted[1]])

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None:
        """As `save_object`, and then say so."""
        self.save_object(digest, payload)
        self.owner.later(0.0, done)

    def load(self, digest: bytes) -> bytes | None:
        """Bytes by name."""
        return self.objects.get(digest)

    def commit(self, block: Block, head: Head, awaited: frozenset[bytes]) -> None:
        """The next block of the chain."""
        self.owner.burn()
        self.on_commit(block, head)
        self.blocks.append(block)
        self.heads.append(head)
        self.head = head

    def blocks_after(self, anchor: bytes) -> tuple[Block, ...]:
        """At most 16 blocks that follow `anchor`."""
        parents = [block.update.parent for block in self.blocks]
        return tuple(self.blocks[parents.index(anchor) :])[:16]

    def my_part(self, anchor: bytes, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        """(Merkle path, bytes) of a part of what this peer offered for `anchor`."""
        payloads = self.offered(anchor)
        if payloads is None:
            return None
        leaves = [digest_of(payload) for payload in payloads]
        return merkle.path(leaves, part), payloads[part]

    def offered(self, anchor: bytes) -> list[bytes] | None:
        """Every part of what this peer offered for `anchor`; None if it had not frozen."""
        return self.contributions[anchor][1] if anchor in self.contributions else None


@dataclass
class IntegerSums:
    """`peer.averaging.driver.Arithmetic` on integers."""

    disk: IntegerDisk
    rng: Random
    kept: dict[tuple[object, str, int], bytes] = field(default_factory=dict)

    def keep(self, effect: Keep) -> None:
        """One part of one member."""
        self.kept[effect.place, effect.sender, effect.part] = effect.payload

    def reduce(self, effect: Reduce, done: Callable[[bytes], None]) -> None:
        """The sum, with noise in its lowest four bits."""
        total = sum(decoded(self.kept[effect.place, member, effect.part]) for member in effect.members)
        payload = encoded(total * 16 + self.rng.randrange(16))
        digest = digest_of(payload)
        self.disk.store(digest, payload, lambda: done(digest))

    def forget(self) -> None:
        """An anchor is past."""
        self.kept.clear()
