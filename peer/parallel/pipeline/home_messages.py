"""Messages between the trainers of a cluster outside of flights. Their frames begin with byte 1."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from peer.consensus.protocol.block import MAX_PARTS
from peer.schema.ipc import Count, Digest

KIND = 1
"""The first byte of a frame. That of a flight is 0."""
MAX_FRAME_BYTES = 64 << 20
MAX_CHUNKS = 1 << 20
"""The maximal number of chunks, of 1 MiB each."""
MOST_ASKED = 16
"""The bytes that are asked for at a time."""

Range = tuple[Count, Count, Count]


class HomeMessage(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The base of all home messages."""


class SubmitAtOnce(HomeMessage, frozen=True):
    """From the lead to workers: submit for this anchor what was learned, with this effort."""

    anchor: Digest
    tokens: Count
    steps: Count
    ranges: Annotated[tuple[Range, ...], Meta(max_length=1 << 16)]
    staleness: Count


class LeavesWritten(HomeMessage, frozen=True):
    """From a worker to the lead: the parts of the worker's layers are on its disk, with these digests."""

    anchor: Digest
    first_part: Count
    leaves: Annotated[tuple[Digest, ...], Meta(max_length=MAX_PARTS)]


class AskDigests(HomeMessage, frozen=True):
    """From the lead to workers: which digests do your layers have at this anchor?"""

    anchor: Digest
    round: Count


class LayerDigests(HomeMessage, frozen=True):
    """From a worker to the lead: the digests by layer; none if the worker has gone on and no longer remembers them."""

    anchor: Digest
    first_layer: Count
    digests: Annotated[tuple[Digest, ...], Meta(max_length=1 << 16)]


class ChunksWritten(HomeMessage, frozen=True):
    """From a worker to the lead: the worker's layers of a snapshot of this anchor are on its disk, in chunks with
    these digests."""

    anchor: Digest
    chunks: Annotated[tuple[Digest, ...], Meta(max_length=MAX_CHUNKS)]


class ChunksOfAll(HomeMessage, frozen=True):
    """From the lead to all: the chunks of all layers, in model order."""

    anchor: Digest
    chunks: Annotated[tuple[Digest, ...], Meta(max_length=MAX_CHUNKS)]


class AskBytes(HomeMessage, frozen=True):
    """To any home: the bytes with these digests."""

    digests: Annotated[tuple[Digest, ...], Meta(max_length=MOST_ASKED)]


class BytesHere(HomeMessage, frozen=True):
    """The answer, for each digest; empty bytes if they are not on this home's disk."""

    digest: Digest
    payload: Annotated[bytes, Meta(max_length=MAX_FRAME_BYTES)]


AnyHomeMessage = (
    SubmitAtOnce | LeavesWritten | AskDigests | LayerDigests | ChunksWritten | ChunksOfAll | AskBytes | BytesHere
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyHomeMessage] = msgspec.msgpack.Decoder(AnyHomeMessage)


def encode_home(message: AnyHomeMessage) -> bytes:
    return bytes((KIND,)) + _encoder.encode(message)


def decode_home(frame: bytes | memoryview) -> AnyHomeMessage:
    """Raises ValueError for anything that is not such a message."""
    if len(frame) > MAX_FRAME_BYTES or not frame or frame[0] != KIND:
        raise ValueError("no message of a home")
    try:
        return _decoder.decode(memoryview(frame)[1:])
    except (ValueError, RecursionError) as error:
        raise ValueError(str(error)) from error
