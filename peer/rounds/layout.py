"""How a model is cut: layers into parts, and parts onto reducers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peer.rounds.names import digest


@dataclass(frozen=True, slots=True)
class Part:
    """A run of elements of one layer: what one message carries and one reducer averages."""

    layer: int
    start: int
    """First element in the flat parameter vector."""
    size: int
    """Elements."""


def cut(layer_sizes: Sequence[int], part_elements: int) -> tuple[Part, ...]:
    """Parts in model order, at most `part_elements` each, never across a layer."""
    parts = []
    start = 0
    for layer, size in enumerate(layer_sizes):
        pieces = -(-size // part_elements)
        for piece in range(pieces):
            first, last = size * piece // pieces, size * (piece + 1) // pieces
            parts.append(Part(layer, start + first, last - first))
        start += size
    return tuple(parts)


def assign(
    parts: Sequence[Part], members: Sequence[str], shares: Sequence[int], anchor: bytes, ballot: int
) -> tuple[str, ...]:
    """The reducer of each part: contiguous runs in proportion to the members' `shares`; equal ones if all are 0.

    The rotation by H(anchor, ballot) moves the runs over the members, so nobody always reduces the
    same layers. All peers compute this alike: only integers, members in their given order.
    """
    shares = shares if any(shares) else [1] * len(members)
    turn = int.from_bytes(digest(anchor, ballot)[:8], "big") % len(members)
    ranked = [*range(turn, len(members)), *range(turn)]
    total_share, total_size = sum(shares), sum(part.size for part in parts)
    owners: list[str] = []
    place, upto, before = 0, shares[ranked[0]], 0
    for part in parts:
        middle = 2 * before + part.size
        while place + 1 < len(ranked) and middle * total_share >= 2 * total_size * upto:
            place += 1
            upto += shares[ranked[place]]
        owners.append(members[ranked[place]])
        before += part.size
    return tuple(owners)
