"""A Merkle tree over part digests: a peer signs one root before it sends anything, so that it cannot give different
bytes to different reducers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from peer.consensus.protocol.encoding import digest_of


def root(leaves: Sequence[bytes]) -> bytes:
    """The root over the digests of all parts, in model order."""
    return _levels(tuple(leaves))[-1][0]


def path(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """The siblings from leaf `index` up to the root."""
    siblings = []
    for level in _levels(tuple(leaves))[:-1]:
        sibling = index ^ 1
        siblings.append(level[sibling] if sibling < len(level) else level[index])
        index //= 2
    return tuple(siblings)


def proves(expected_root: bytes, leaf: bytes, index: int, siblings: Sequence[bytes], leaves: int) -> bool:
    """Whether `leaf` stands at `index` below the root of a tree over this many `leaves`.

    The tree fixes the length of the path; otherwise an inner node could pass for a leaf.
    """
    if len(siblings) != (leaves - 1).bit_length():
        return False
    node = leaf
    for sibling in siblings:
        node = _join(sibling, node) if index & 1 else _join(node, sibling)
        index //= 2
    return index == 0 and node == expected_root


@lru_cache(maxsize=8)
def _levels(leaves: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], ...]:
    assert leaves, "a tree needs at least one leaf"
    levels = [leaves]
    while len(levels[-1]) > 1:
        below = levels[-1]
        pairs = [(below[i], below[i + 1] if i + 1 < len(below) else below[i]) for i in range(0, len(below), 2)]
        levels.append(tuple(_join(left, right) for left, right in pairs))
    return tuple(levels)


def _join(left: bytes, right: bytes) -> bytes:
    return digest_of(left + right)
