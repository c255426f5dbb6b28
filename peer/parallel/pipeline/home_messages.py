"""Messages between the trainers of a cluster outside of flights. Their frames begin with byte 1."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from peer.consensus.protocol.block import MAX_PARTS
from peer.schema.ipc import Count, Digest

KIND = 1
"""First byte of a frame. Flights have 0."""
MAX_FRAME_BYTES = 64 << 20
MAX_CHUNKS = 1 << 20
"""Of 1 MiB each."""

Range = tuple[Count, Count, Count]


class HomeMessage(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of them all."""


class SubmitAtOnce(HomeMessage, frozen=True):
    """Lead to workers: offer for this anchor what was learned; this stands behind it."""

    anchor: Digest
    tokens: Count
    steps: Count
    ranges: Annotated[tuple[Range, ...], Meta(max_length=1 << 16)]
    staleness: Count


class LeavesWritten(HomeMessage, frozen=True):
    """Worker to lead: the parts of my layers are on my disk; these are their digests."""

    anchor: Digest
    first_part: Count
    leaves: Annotated[tuple[Digest, ...], Meta(max_length=MAX_PARTS)]


class AskDigests(HomeMessage, frozen=True):
    """Lead to workers: what are the bits of your layers at this anchor?"""

    anchor: Digest
    round: Count


class LayerDigests(HomeMessage, frozen=True):
    """Worker to lead: they are these, by layer; none of them if it has gone on, and does not remember."""

    anchor: Digest
    first_layer: Count
    digests: Annotated[tuple[Digest, ...], Meta(max_length=1 << 16)]


class ChunksWritten(HomeMessage, frozen=True):
    """Worker to lead: my layers of a snapshot of this anchor are on my disk; their chunks have these digests."""

    anchor: Digest
    chunks: Annotated[tuple[Digest, ...], Meta(max_length=MAX_CHUNKS)]


class ChunksOfAll(HomeMessage, frozen=True):
    """Lead to all: these are the chunks of all layers, in model order."""

    anchor: Digest
    chunks: Annotated[tuple[Digest, ...], Meta(max_length=MAX_CHUNKS)]


AnyHomeMessage = SubmitAtOnce | LeavesWritten | AskDigests | LayerDigests | ChunksWritten | ChunksOfAll

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyHomeMessage] = msgspec.msgpack.Decoder(AnyHomeMessage)


def encode_home(message: AnyHomeMessage) -> bytes:
    return bytes((KIND,)) + _encoder.encode(message)


def decode_home(frame: bytes | memoryview) -> AnyHomeMessage:
    """Raises ValueError for anything that is no such message."""
    if len(frame) > MAX_FRAME_BYTES or not frame or frame[0] != KIND:
        raise ValueError("no message of a home")
    try:
        return _decoder.decode(memoryview(frame)[1:])
    except (ValueError, RecursionError) as error:
        raise ValueError(str(error)) from error
