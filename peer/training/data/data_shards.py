"""Which peer reads which part of the training text, as pure functions.

The text is cut into `DATA_SHARDS` shards by the hash of each document's name. Each shard belongs to the peer with the
highest score for it (rendezvous hashing): when a peer comes or goes, only its own shards move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from peer.consensus.protocol.rules import DATA_SHARDS


def shard_of(document: str) -> int:
    return _hash("shard", document) % DATA_SHARDS


def is_held_out(document: str, every: int) -> bool:
    """Whether the document is for evaluation only: one in `every`, the same ones on every machine."""
    return _hash("held-out", document) % every == 0


def data_owner(shard: int, peers: Collection[str]) -> str:
    """The peer that reads `shard`, in whatever order `peers` are given. `peers` must not be empty."""
    return max(peers, key=lambda peer: (_hash("owner", f"{shard}/{peer}"), peer))


def shards_of(peer: str, peers: Collection[str]) -> tuple[int, ...]:
    """The shards that `peer` reads while `peers` (with it) are at work. May be empty in a large group."""
    return tuple(shard for shard in range(DATA_SHARDS) if data_owner(shard, peers) == peer)


def _hash(purpose: str, text: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{purpose}/{text}".encode(), digest_size=8).digest(), "big")
