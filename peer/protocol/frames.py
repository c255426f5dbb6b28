"""A message as bytes on a stream: the version of the protocol, the kind of message, and msgpack."""

from __future__ import annotations

from dht.protocol_version import PROTOCOL_VERSION, other_version
from peer.protocol.accusations import EquivocationProof, MeanConflict, NormDispute
from peer.protocol.encoding import (
    pack,
    unpack,
)
from peer.protocol.messages import (
    Blocks,
    GetBlocks,
    GetMeans,
    GetObjects,
    Heartbeat,
    MeanData,
    Message,
    Nack,
    Norms,
    NormTable,
    ObjectData,
    PartData,
    Prepare,
    Promise,
    Propose,
    Reassign,
    ShowInputs,
    Start,
    VoteCast,
)

_TYPES: dict[int, type[Message]] = {
    kind.code: kind
    for kind in (
        Prepare, Promise, Nack, Start, PartData, Norms, NormTable, MeanData, GetMeans, Reassign, ShowInputs, Propose,
        VoteCast, GetObjects, ObjectData, GetBlocks, Blocks, Heartbeat, EquivocationProof, MeanConflict, NormDispute,
    )
}  # fmt: skip


def encode(message: Message) -> bytes:
    """A frame: version byte, type byte and msgpack."""
    return bytes((PROTOCOL_VERSION, message.code)) + pack(message.packed())


def decode(frame: bytes) -> Message:
    """The message in a frame. Raises ValueError for anything that is not one, before it allocates for it."""
    if frame and frame[0] != PROTOCOL_VERSION:
        raise ValueError(other_version("a frame", frame[0]))
    if len(frame) < 2 or frame[1] not in _TYPES:
        raise ValueError("unknown frame type")
    kind = _TYPES[frame[1]]
    if len(frame) > kind.cap_bytes:
        raise ValueError(f"{kind.__name__} of {len(frame)} bytes; at most {kind.cap_bytes}")
    return kind.unpacked(unpack(memoryview(frame)[2:]))
