"""The messages of libp2p's circuit relay v2, and how they travel: a varint of the length, then protobuf.

https://github.com/libp2p/specs/blob/master/relay/circuit-v2.md
"""

from __future__ import annotations

import asyncio
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from dht.records import Malformed

HOP = "/libp2p/circuit/relay/0.2.0/hop"
"""Spoken to a relay: a slot, please; or, the peer that holds this one, please."""
STOP = "/libp2p/circuit/relay/0.2.0/stop"
"""Spoken by a relay to the peer that holds a slot: here is somebody for you."""
RESERVE, CONNECT, HOP_STATUS = 0, 1, 2
STOP_CONNECT, STOP_STATUS = 0, 1
OK, RESOURCE_LIMIT_EXCEEDED, PERMISSION_DENIED = 100, 201, 202
CONNECTION_FAILED, NO_RESERVATION, MALFORMED_MESSAGE = 203, 204, 400
MAX_MESSAGE_BYTES = 4096
"""As in go-libp2p."""

_SCHEMA = """
name: "homefires/circuit.proto" package: "homefires.circuit" syntax: "proto2"
message_type { name: "Peer"
    field { name: "id" number: 1 label: LABEL_OPTIONAL type: TYPE_BYTES } }
message_type { name: "Reservation"
    field { name: "expire" number: 1 label: LABEL_OPTIONAL type: TYPE_UINT64 } }
message_type { name: "Limit"
    field { name: "duration" number: 1 label: LABEL_OPTIONAL type: TYPE_UINT32 }
    field { name: "data" number: 2 label: LABEL_OPTIONAL type: TYPE_UINT64 } }
message_type { name: "Hop"
    field { name: "type" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 }
    field { name: "peer" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: "Peer" }
    field { name: "reservation" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: "Reservation" }
    field { name: "limit" number: 4 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: "Limit" }
    field { name: "status" number: 5 label: LABEL_OPTIONAL type: TYPE_INT32 } }
message_type { name: "Stop"
    field { name: "type" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 }
    field { name: "peer" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: "Peer" }
    field { name: "limit" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: "Limit" }
    field { name: "status" number: 4 label: LABEL_OPTIONAL type: TYPE_INT32 } }
"""


def _message(pool: descriptor_pool.DescriptorPool, name: str) -> Any:
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"homefires.circuit.{name}"))


_pool = descriptor_pool.DescriptorPool()
_pool.Add(text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto()))
Hop: Any = _message(_pool, "Hop")
Stop: Any = _message(_pool, "Stop")


async def write_message(writer: asyncio.StreamWriter, message: Any) -> None:
    """Write a message. Raises OSError."""
    content = message.SerializeToString()
    writer.write(_varint(len(content)) + content)
    await writer.drain()


async def read_message(reader: asyncio.StreamReader, kind: Any) -> Any:
    """The next message, which should be of this class. Raises Malformed, EOFError, OSError."""
    size = await _read_varint(reader)
    if size > MAX_MESSAGE_BYTES:
        raise Malformed(f"a message of {size} bytes; at most {MAX_MESSAGE_BYTES} are allowed")
    try:
        return kind.FromString(await reader.readexactly(size))
    except DecodeError as error:
        raise Malformed("not a message of a relay") from error


def _varint(number: int) -> bytes:
    low = bytearray()
    while number >= 0x80:
        low.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*low, number])


async def _read_varint(reader: asyncio.StreamReader) -> int:
    """Of two bytes at most: more would be longer than any message."""
    first = (await reader.readexactly(1))[0]
    if first < 0x80:
        return first
    second = (await reader.readexactly(1))[0]
    if second >= 0x80:
        raise Malformed(f"a message of more than {MAX_MESSAGE_BYTES} bytes")
    return first & 0x7F | second << 7
