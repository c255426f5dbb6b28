"""The memory that a batch of an Arrow file needs once it is unpacked: its message claims it before each buffer.

Messages are FlatBuffers, of which a few fields are read: github.com/apache/arrow, `format/Message.fbs`. The reader of
messages has verified them.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import error as struct_error
from struct import unpack_from
from typing import Any

DICTIONARY, RECORDS = 2, 3
"""Kinds of messages that hold values."""
VERSION, KIND, HEADER, CUSTOM = 0, 1, 2, 4
"""Fields of a message."""
WITHOUT_COMPRESSION = 3
"""The version (V4) in which a custom field names a compression."""
DATA = 1
"""The field of a dictionary that is a batch."""
BUFFERS, COMPRESSION = 2, 3
"""Fields of a batch."""
PLACE_BYTES = 16
"""Of where a buffer lies."""


def unpacked_bytes(messages: Any) -> Iterator[int]:
    """For each message, what its packed buffers claim in bytes; 0 where it is read as it lies in the file.
    `messages` is a `pyarrow.MessageReader`. Raises ValueError for a buffer that lies outside of its message."""
    for message in messages:
        try:
            yield _claimed(bytes(message.metadata), message.body)
        except struct_error as error:
            raise ValueError("a buffer lies outside of its message") from error


def _claimed(said: bytes, body: Any) -> int:
    message = _target(said, 0)
    kind, header, version = (_field(said, message, number) for number in (KIND, HEADER, VERSION))
    if header is None or kind is None or said[kind] not in (DICTIONARY, RECORDS):
        return 0
    batch = _target(said, header)
    if said[kind] == DICTIONARY:
        data = _field(said, batch, DATA)
        if data is None:
            return 0
        batch = _target(said, data)
    is_old = version is not None and unpack_from("<h", said, version)[0] <= WITHOUT_COMPRESSION
    may_be_packed = _field(said, batch, COMPRESSION) is not None or (is_old and _field(said, message, CUSTOM))
    buffers = _field(said, batch, BUFFERS)
    if not may_be_packed or buffers is None:
        return 0
    start = _target(said, buffers)
    (count,) = unpack_from("<I", said, start)
    places = (unpack_from("<qq", said, start + 4 + PLACE_BYTES * number) for number in range(count))
    return sum(max(0, unpack_from("<q", body, place)[0]) for place, size in places if size >= 8)


def _target(said: bytes, at: int) -> int:
    """Where the offset at `at` leads."""
    return at + int(unpack_from("<I", said, at)[0])


def _field(said: bytes, table: int, number: int) -> int | None:
    """Where a field of a table lies; None if it has none."""
    names = table - int(unpack_from("<i", said, table)[0])
    at = 4 + 2 * number
    if at >= unpack_from("<H", said, names)[0]:
        return None
    (offset,) = unpack_from("<H", said, names + at)
    return table + offset if offset else None
