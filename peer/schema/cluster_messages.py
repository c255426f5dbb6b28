"""Messages between a worker's link and its lead's link: packed structs with a bound on every field."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from peer.schema.ipc import Assignment, Count, Figure, PeerId, Text

ASK = "cluster"
"""The name of the question."""
GATHER = "gather"
"""The question for the line of a cluster that anybody may join."""
PING = "home"
"""The question by which homes that look for each other measure round trips."""
ANSWER_BYTES = 1 << 16


class OfferWork(Struct, frozen=True, forbid_unknown_fields=True):
    """I offer to train some layers; this is the secret I was given. Sent again and again, so it is also a sign of
    life."""

    secret: Annotated[bytes, Meta(max_length=64)]
    name: Annotated[str, Meta(max_length=64)]
    memory_gb: Figure
    tokens_per_s: Figure
    upload_mbps: Figure
    epoch: Count
    """The epoch of the assignment that I know; 0 before there is one."""


class ClusterWord(Struct, frozen=True, forbid_unknown_fields=True):
    """The lead's answer: the assignment, if it is decided, or the reason why there is none."""

    assignment: Assignment | None = None
    refused: Text = ""


class GatherWord(Struct, frozen=True, forbid_unknown_fields=True):
    """A lead's answer to a home that asks to work in the cluster that it gathers, or leads: the line, or empty while
    others are awaited."""

    line: Annotated[str, Meta(max_length=512)]
    order: Annotated[tuple[PeerId, ...], Meta(max_length=32)]


_encoder = msgspec.msgpack.Encoder()
_offers: msgspec.msgpack.Decoder[OfferWork] = msgspec.msgpack.Decoder(OfferWork)
_gathers: msgspec.msgpack.Decoder[GatherWord] = msgspec.msgpack.Decoder(GatherWord)
_words: msgspec.msgpack.Decoder[ClusterWord] = msgspec.msgpack.Decoder(ClusterWord)


def pack_offer(offer: OfferWork) -> bytes:
    return _encoder.encode(offer)


def pack_word(word: ClusterWord) -> bytes:
    return _encoder.encode(word)


def pack_gather(word: GatherWord) -> bytes:
    return _encoder.encode(word)


def unpack_gather(packed: bytes) -> GatherWord:
    """Raises ValueError."""
    return _gathers.decode(packed)


def unpack_offer(packed: bytes) -> OfferWork:
    """Raises ValueError."""
    return _offers.decode(packed)


def unpack_word(packed: bytes) -> ClusterWord:
    """Raises ValueError."""
    return _words.decode(packed)
