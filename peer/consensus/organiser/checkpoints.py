"""Checkpoints: a round and its anchor, signed by the organiser. Newcomers trust them instead of the whole way from
genesis.

Certificates alone prove that the keys of an electorate voted. Years later an attacker may own the keys of an old
electorate and certify other rounds from there on. So a newcomer follows certificates from the newest checkpoint only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from peer.consensus.protocol.block import Roster, peers
from peer.consensus.protocol.encoding import DIGEST, Keys, Packed, integer, octets, pack, unpack
from peer.consensus.protocol.head import ChainHead

QUESTION = "checkpoint"
"""Under this name everybody gives the newest checkpoint that it has, if that is newer than the round in the request."""
NUMBER_BYTES = 8
MAX_CHECKPOINT_BYTES = 1 << 15


@dataclass(frozen=True, slots=True)
class ChainCheckpoint(Packed):
    """An anchor of the run, and the electorate that decides the next one."""

    readers = (partial(integer, low=1), DIGEST, peers, Roster.unpacked, partial(octets, most=64))
    round: int
    anchor: bytes
    electorate: tuple[str, ...]
    roster: Roster
    signature: bytes = b""

    @classmethod
    def of(cls, head: ChainHead) -> ChainCheckpoint:
        return cls(head.round, head.anchor, head.electorate, head.roster)

    @property
    def head(self) -> ChainHead:
        """The head at that anchor, as far as certificates need it."""
        return ChainHead(
            anchor=self.anchor, round=self.round, weight=0, electorate=self.electorate, members=(), roster=self.roster
        )

    def payload(self) -> bytes:
        return pack((self.round, self.anchor, self.electorate, self.roster.packed()))

    def signed(self, keys: Keys) -> ChainCheckpoint:
        return replace(self, signature=keys.sign("checkpoint", self.payload()))

    def genuine(self, keys: Keys, organiser: str) -> bool:
        return keys.verify(organiser, "checkpoint", self.payload(), self.signature)

    def to_bytes(self) -> bytes:
        return pack(self.packed())

    @classmethod
    def from_bytes(cls, packed: bytes) -> ChainCheckpoint:
        """Raises ValueError."""
        return cls.unpacked(unpack(packed))


def packed_question(round: int) -> bytes:
    """Asks for one that is newer than this round."""
    return round.to_bytes(NUMBER_BYTES, "big")


def answer_to(request: bytes, newest: ChainCheckpoint | None) -> bytes | None:
    is_newer = newest is not None and newest.round > int.from_bytes(request[:NUMBER_BYTES], "big")
    return newest.to_bytes() if newest is not None and is_newer else None
