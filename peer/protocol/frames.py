"""Messages as frames: one byte of type and a msgpack array. Its length travels in the stream."""

from __future__ import annotations

from peer.protocol.accusations import EquivocationProof, MeanConflict, NormDispute
from peer.protocol.encoding import pack, unpack
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
        Prepare,
        Promise,
        Nack,
        Start,
        PartData,
        Norms,
        NormTable,
        MeanData,
        GetMeans,
        Reassign,
        ShowInputs,
        Propose,
        VoteCast,
        GetObjects,
        ObjectData,
        GetBlocks,
        Blocks,
        Heartbeat,
        EquivocationProof,
        MeanConflict,
        NormDispute,
    )
}


def encode(message: Message) -> bytes:
    """A frame: type byte and msgpack."""
    return bytes((message.code,)) + pack(message.packed())


def decode(frame: bytes) -> Message:
    """The message in a frame. Raises ValueError for anything that is not one, before it allocates for it."""
    if not frame or frame[0] not in _TYPES:
        raise ValueError("unknown frame type")
    kind = _TYPES[frame[0]]
    if len(frame) > kind.cap_bytes:
        raise ValueError(f"{kind.__name__} of {len(frame)} bytes; at most {kind.cap_bytes}")
    return kind.unpacked(unpack(memoryview(frame)[1:]))
