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
from peer.rounds.effects import Keep, Reduce
from peer.rounds.layout import Part, divide
from peer.rounds.names import digest_of, next_anchor
from peer.rounds.settlement import Settlement, settle
from peer.rounds.state import Acceptor, Figures, Head, Step
from peer.rounds.update import VOID, Block, Pledge, Update

PARTS = 3
STEP = 8
"""Encoding rounds to multiples of this."""
PART_BYTES = 8
MODEL = tuple(Part(layer, layer, 1) for layer in range(PARTS))
"""Each part is a layer of its own."""


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


def averaged(round: int, fragments: int) -> tuple[int, ...]:
    """The parts of the model that the round from anchor `round` averages."""
    return divide(MODEL, fragments)[round % fragments].numbers


@dataclass
class Ledger:
    """A peer's tensors and its books: balance + counted + discounted is what it produced and did not lose.

    It stands at `anchor`; `counted` is what the chain up to there says that this peer gave.
    """

    anchor: bytes
    round: int = 0
    theta: list[int] = field(default_factory=lambda: [0] * PARTS)
    balance: list[int] = field(default_factory=lambda: [0] * PARTS)
    counted: list[int] = field(default_factory=lambda: [0] * PARTS)
    discounted: list[int] = field(default_factory=lambda: [0] * PARTS)
    forgotten: frozenset[bytes] = frozenset()
    """Anchors for which the chain says that this peer gave something it no longer has; it was written off."""
    fragments: int = 1

    def copy(self) -> Ledger:
        """The same numbers, to be kept elsewhere."""
        return Ledger(
            self.anchor, self.round, list(self.theta), list(self.balance), list(self.counted), list(self.discounted),
            self.forgotten, self.fragments,
        )  # fmt: skip

    def averaged(self) -> tuple[int, ...]:
        """The parts of the model that the round from `anchor` averages, in the order of its update."""
        return averaged(self.round, self.fragments)

    def encoded_balance(self) -> list[bytes]:
        """What a contribution offers: the balance of what the round averages, rounded."""
        return [encoded(self.balance[part] // STEP * STEP) for part in self.averaged()]

    def apply(self, me: str, update: Update, mine: list[bytes] | None, objects: dict[bytes, bytes]) -> None:
        """The outer step, and what the update means for the balance of `me`, who had offered the bytes `mine`."""
        outcomes = settle(update, me, mine is not None)
        for at, (part, what) in enumerate(zip(self.averaged(), outcomes, strict=True)):
            if update.parts[at] != VOID:
                self.theta[part] += decoded(objects[update.parts[at]])
            if what is Settlement.COUNTED:
                assert mine is not None
                self.balance[part] -= decoded(mine[at])
                self.counted[part] += decoded(mine[at])
            elif what is Settlement.MISSED:
                kept = self.balance[part] * 3 // 4
                self.discounted[part] += self.balance[part] - kept
                self.balance[part] = kept
        if mine is None and any(update.contributed(me, at) for at in range(len(outcomes))):
            self.forgotten |= {update.parent}
        self.anchor, self.round = next_anchor(self.anchor, update.digest), update.round

    def undo(self, me: str, update: Update, mine: list[bytes] | None, objects: dict[bytes, bytes]) -> None:
        """The newest update is not on my chain any more: what it counted is owed again. Discounts stay."""
        self.anchor, self.round = update.parent, update.round - 1
        for at, part in enumerate(self.averaged()):
            if update.parts[at] != VOID:
                self.theta[part] -= decoded(objects[update.parts[at]])
            if update.contributed(me, at) and update.parent not in self.forgotten:
                assert mine is not None, f"{me} has forgotten what it gave for round {update.round}"
                self.balance[part] += decoded(mine[at])
                self.counted[part] -= decoded(mine[at])


@dataclass
class IntegerDisk:
    """`peer.averaging.driver.Disk` in memory. What belongs to anchors is kept for `keep_rounds` of them."""

    owner: Owner
    genesis: Head
    keep_rounds: int
    on_commit: Callable[[Block, Head], None]
    on_undo: Callable[[tuple[Block, ...], Head], None]
    ledger: Ledger
    acceptors: dict[bytes, tuple[int, Acceptor]] = field(default_factory=dict)
    """For each instance the round of its anchor, and what a voter must not forget."""
    objects: dict[bytes, bytes] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)
    undone: dict[bytes, Block] = field(default_factory=dict)
    """Blocks of branches that were left, by the anchor each of them made."""
    contributions: dict[bytes, tuple[int, Pledge, list[bytes]]] = field(default_factory=dict)
    """For each anchor its round, and what this peer offered for it."""

    @property
    def head(self) -> Head:
        """The newest anchor."""
        return self.heads[-1] if self.heads else self.genesis

    def save_acceptor(self, acceptor: Acceptor) -> None:
        """What a voter must not forget of one instance."""
        self.owner.burn()
        _, before = self.acceptors.get(acceptor.instance, (0, acceptor))
        assert before.promised <= acceptor.promised, f"{before.promised} was promised, now {acceptor.promised} is"
        self.acceptors[acceptor.instance] = (self.head.round, acceptor)

    def load_acceptors(self) -> dict[bytes, Acceptor]:
        """By instance."""
        return {instance: acceptor for instance, (_, acceptor) in self.acceptors.items()}

    def save_object(self, digest: bytes, payload: bytes) -> None:
        """Bytes under their name."""
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
        """Bytes by name."""
        return self.objects.get(digest)

    def commit(self, block: Block, head: Head, awaited: frozenset[bytes]) -> None:
        """The next block of the chain."""
        self.owner.burn()
        self.on_commit(block, head)
        self.blocks.append(block)
        self.heads.append(head)
        self.undone.pop(head.anchor, None)
        self._sweep()

    def undo(self, head: Head) -> tuple[Block, ...]:
        """Stand at an earlier anchor again; returns the blocks that are no longer on the chain, newest first."""
        self.owner.burn()
        at = [known.anchor for known in (self.genesis, *self.heads)].index(head.anchor)
        blocks = tuple(reversed(self.blocks[at:]))
        self.on_undo(blocks, head)
        self.undone |= {made.anchor: block for made, block in zip(self.heads[at:], self.blocks[at:], strict=True)}
        del self.blocks[at:], self.heads[at:]
        return blocks

    def trail(self) -> tuple[Step, ...]:
        """The newest blocks, each with the head before it."""
        steps = map(Step, (self.genesis, *self.heads), self.blocks)
        return tuple(steps)[-self.keep_rounds :]

    def start_anew(self, other: IntegerDisk) -> None:
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

    def save_contribution(self, pledge: Pledge, payloads: list[bytes]) -> None:
        """What this peer offers for the anchor that the pledge names."""
        self.owner.burn()
        assert pledge.anchor not in self.contributions, "a contribution is written once per anchor"
        self.contributions[pledge.anchor] = (self.head.round, pledge, payloads)

    def pledge(self, anchor: bytes) -> Pledge | None:
        """What this peer pledged for `anchor`; None if it had not frozen."""
        return self.contributions[anchor][1] if anchor in self.contributions else None

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
        return self.contributions[anchor][2] if anchor in self.contributions else None


@dataclass
class IntegerSums:
    """`peer.averaging.driver.Arithmetic` on integers."""

    disk: IntegerDisk
    rng: Random
    noise: int = 16
    """So many different results for the same parts; 1 where they are audited."""
    parts: dict[tuple[object, str, int], tuple[tuple[bytes, ...], bytes]] = field(default_factory=dict)

    def keep(self, effect: Keep) -> None:
        """One part of one member."""
        self.parts[effect.place, effect.sender, effect.part] = (effect.path, effect.payload)

    def kept(self, place: object, giver: str, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        """(Merkle path, bytes) of a part that is kept."""
        return self.parts.get((place, giver, part))

    def measure(self, payload: bytes, direction: bytes, done: Callable[[Figures], None]) -> None:
        """Of one integer."""
        value = decoded(payload)
        mean = self.disk.load(direction)
        last = None if mean is None else float(decoded(mean) // 16)
        done(Figures(float(value) ** 2, value * (last or 0.0), None if last is None else last**2))

    def reduce(self, effect: Reduce, done: Callable[[bytes], None]) -> None:
        """The sum, with noise in its lowest four bits."""
        total = sum(decoded(self.parts[effect.place, member, effect.part][1]) for member in effect.members)
        payload = encoded(total * 16 + self.rng.randrange(self.noise))
        digest = digest_of(payload)
        self.disk.store(digest, payload, lambda: done(digest))

    def forget(self) -> None:
        """An anchor is past."""
        self.parts.clear()
