"""Messages as frames: one byte of type and a msgpack array. Its length travels in the stream."""

from __future__ import annotations

from peer.protocol.accusations import Conflict, Objection, Proof
from peer.protocol.encoding import pack, unpack
from peer.protocol.messages import (
    BytesSent,
    ChainSent,
    Fetch,
    Get,
    HeadSent,
    MeanSent,
    Message,
    Nack,
    Norms,
    PartSent,
    Prepare,
    Promise,
    Propose,
    Redo,
    Show,
    Start,
    Table,
    Voted,
    Want,
)

_TYPES: dict[int, type[Message]] = {
    kind.code: kind
    for kind in (
        Prepare, Promise, Nack, Start, PartSent, Norms, Table, MeanSent, Want, Redo, Show, Propose, Voted, Fetch,
        BytesSent, Get, ChainSent, HeadSent, Proof, Conflict, Objection,
    )
}  # fmt: skip


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
