"""The smallest model that can go wrong: a part is one integer, and its books must balance to the last one.

Encoding rounds, so residues exist. A mean is a sum to which its reducer adds noise, so two reducers
never make the same bytes. `IntegerDisk` is what survives a crash, the books included; each of its writes happens whole
or not at all, and costs a burn of the peer's fuse, so that a crash can fall between any two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from peer.protocol.block import VOID, Update
from peer.protocol.electorate import digest_of, next_anchor
from peer.protocol.layout import Part, divide
from peer.protocol.settlement import PartOutcome, part_outcomes
from peer.rounds.interface import BufferPart, ReducePart
from peer.rounds.state import PartNorms
from peer.simulate.memory_store import MemoryDisk
from peer.simulate.model_keys import ModelKeys as ModelKeys  # tests sign with what this model signs with

PARTS = 3
STEP = 8
"""Encoding rounds to multiples of this."""
PART_BYTES = 8
MODEL = tuple(Part(layer, layer, 1) for layer in range(PARTS))
"""Each part is a layer of its own."""


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
        outcomes = part_outcomes(update, me, mine is not None)
        for at, (part, what) in enumerate(zip(self.averaged(), outcomes, strict=True)):
            if update.parts[at] != VOID:
                self.theta[part] += decoded(objects[update.parts[at]])
            if what is PartOutcome.COUNTED:
                assert mine is not None
                self.balance[part] -= decoded(mine[at])
                self.counted[part] += decoded(mine[at])
            elif what is PartOutcome.MISSED:
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


@dataclass(kw_only=True)
class IntegerDisk(MemoryDisk):
    """A disk with the books on it."""

    ledger: Ledger


@dataclass
class IntegerSums:
    """`peer.rounds.driver.ReductionPort` on integers."""

    disk: IntegerDisk
    rng: Random
    noise: int = 16
    """So many different results for the same parts; 1 where they are audited."""
    parts: dict[tuple[object, str, int], tuple[tuple[bytes, ...], bytes]] = field(default_factory=dict)

    def keep(self, effect: BufferPart) -> None:
        """One part of one member."""
        self.parts[effect.place, effect.sender, effect.part] = (effect.path, effect.payload)

    def kept(self, place: object, giver: str, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        """(Merkle path, bytes) of a part that is kept."""
        return self.parts.get((place, giver, part))

    def measure(self, payload: bytes, direction: bytes, done: Callable[[PartNorms], None]) -> None:
        """Of one integer."""
        value = decoded(payload)
        mean = self.disk.load(direction)
        last = None if mean is None else float(decoded(mean) // 16)
        done(PartNorms(float(value) ** 2, value * (last or 0.0), None if last is None else last**2))

    def reduce(self, effect: ReducePart, done: Callable[[bytes], None]) -> None:
        """The sum, with noise in its lowest four bits."""
        total = sum(decoded(self.parts[effect.place, member, effect.part][1]) for member in effect.members)
        payload = encoded(total * 16 + self.rng.randrange(self.noise))
        digest = digest_of(payload)
        self.disk.store(digest, payload, lambda: done(digest))

    def forget(self) -> None:
        """An anchor is past."""
        self.parts.clear()
