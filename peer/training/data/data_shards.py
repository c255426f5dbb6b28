"""A document, and which peer reads which part of the training text, as pure functions.

The text is cut into `DATA_SHARDS` shards by the hash of each document's name. Each shard belongs to the peer with the
highest score for it (rendezvous hashing): when a peer comes or goes, only its own shards move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

from peer.consensus.protocol.rules import DATA_SHARDS
from peer.schema.spec_fields import DataTable
from peer.training.data.reading.plain_text import content_of


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


@dataclass(frozen=True)
class Document:
    """One text and the name whose hash decides where it goes."""

    name: str
    text: str
    whole: str = ""
    """Hash of the document of which this is a piece; empty if it is a whole document."""
    piece: int = 0
    """Its number among those of its document."""
    stands_alone: bool = False
    """Whether it is held out or not does not depend on the other pieces of its document."""

    def is_held_out(self, table: DataTable) -> bool:
        """Held out by its content, so that all copies of a text are on one side, whatever their names."""
        if table.held_out_by == "name":
            return is_held_out(self.name, table.held_out_every)
        content = self.whole if self.whole and not self.stands_alone else content_of(self.text)
        return is_held_out(content, table.held_out_every)
