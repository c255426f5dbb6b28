"""Names that every peer computes alike: digests, anchors, who coordinates, what a quorum is.

All digests are BLAKE3-256 over canonical msgpack (arrays, integers, byte strings and text only,
so there is one encoding per value).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from peer.consensus.protocol.encoding import digest


def instance_of(anchor: bytes, electorate: Sequence[str]) -> bytes:
    """The name of one agreement: an anchor and who votes on its successor."""
    return digest(anchor, tuple(electorate))


@lru_cache(maxsize=1024)
def order(anchor: bytes, electorate: tuple[str, ...]) -> tuple[str, ...]:
    """Who coordinates ballots 0, 1, 2, … of this anchor: pseudo-random, the same for all."""
    return tuple(sorted(electorate, key=lambda peer: digest(anchor, peer)))


def coordinator(anchor: bytes, electorate: tuple[str, ...], ballot: int) -> str:
    """The only peer that may use `ballot`."""
    ranked = order(anchor, electorate)
    return ranked[ballot % len(ranked)]


def quorum(electorate: Sequence[str]) -> int:
    """A majority of the electorate, never of those present."""
    return len(electorate) // 2 + 1
