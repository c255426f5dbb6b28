"""Names that every peer computes alike: digests, anchors, who coordinates, what a quorum is.

All digests are BLAKE3-256 over canonical msgpack (arrays, integers, byte strings and text only,
so there is one encoding per value).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

from blake3 import blake3

from peer.protocol.encoding import pack


class Keys(Protocol):
    """One peer's signing key and everybody's verification. Ed25519 is deterministic, so this is pure."""

    def sign(self, kind: str, payload: bytes) -> bytes:
        """My signature over (run, kind, payload)."""

    def verify(self, peer: str, kind: str, payload: bytes, signature: bytes) -> bool:
        """Whether `peer` signed (run, kind, payload)."""


def digest_of(payload: bytes) -> bytes:
    """The name of some bytes. Every byte of a round is named several times, so by BLAKE3, which is fast."""
    return blake3(payload).digest()


def digest(*fields: Any) -> bytes:
    """The name of a tuple of values."""
    return digest_of(pack(fields))


def genesis_anchor(run: bytes, founders: Iterable[str], state: bytes) -> bytes:
    """anchor_0 = H(run, "0", founders, H(initial parameters))."""
    return digest(run, "0", tuple(sorted(founders)), state)


def next_anchor(anchor: bytes, update: bytes) -> bytes:
    """anchor_{r+1} = H(anchor_r, H(U)): a digest of the chain, not of tensors."""
    return digest(anchor, update)


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
