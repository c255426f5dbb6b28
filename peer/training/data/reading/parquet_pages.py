"""The memory that the pages of a parquet file need: it follows from the header of each page, whatever the footer
claims.

Headers are structs of Thrift's compact protocol. Three integers are read and everything else is skipped:
github.com/apache/parquet-format, `PageHeader`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO

HEAD_BYTES = (1 << 12, 1 << 16, 16 << 20)
"""A page's head has so many at most, or more and then more: some writers put a whole cell into it."""
STOP, BOOLEANS, BYTE, INTEGERS, DOUBLE, BINARY, LISTS, STRUCT = 0, (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
UNCOMPRESSED, COMPRESSED = 2, 3
"""Fields of a head."""
MOST_DEPTH = 8


def page_bytes(file: BinaryIO, chunk: Any) -> Iterator[int]:
    """The unpacked size of each page of a column chunk, in bytes. Raises ValueError for bytes that are no column
    chunk."""
    starts = [chunk.data_page_offset]
    starts += [chunk.dictionary_page_offset] if chunk.has_dictionary_page else []
    at = min(starts)
    end = at + chunk.total_compressed_size
    while at < end:
        fields, size = _head(file, at)
        if fields[COMPRESSED] < 0:
            raise ValueError("a page has a negative size")
        yield fields[UNCOMPRESSED]
        at += size + fields[COMPRESSED]


def _head(file: BinaryIO, at: int) -> tuple[dict[int, int], int]:
    """Integers of the struct at `at` by field, and its size in bytes."""
    for most in HEAD_BYTES:
        file.seek(at)
        with suppress(IndexError):
            fields, size = _struct(file.read(most), 0, 0)
            break
    else:
        raise ValueError("the head of a page is cut off")
    if not {UNCOMPRESSED, COMPRESSED} <= fields.keys():
        raise ValueError("a page does not say how large it is")
    return fields, size


def _struct(payload: bytes, at: int, depth: int) -> tuple[dict[int, int], int]:
    if depth > MOST_DEPTH:
        raise ValueError("the head of a page has no end")
    fields, field = dict[int, int](), 0
    while (first := payload[at]) != STOP:
        at, kind = at + 1, first & 15
        if first >> 4:
            field += first >> 4
        else:
            field, at = _integer(payload, at)
        if kind in INTEGERS:
            fields[field], at = _integer(payload, at)
        else:
            at = _behind(payload, at, kind, depth)
    return fields, at + 1


def _behind(payload: bytes, at: int, kind: int, depth: int) -> int:
    """Where a value that begins at `at` ends."""
    if kind in BOOLEANS:
        return at
    if kind in (BYTE, DOUBLE):
        return at + (1 if kind == BYTE else 8)
    if kind in INTEGERS:
        return _integer(payload, at)[1]
    if kind == BINARY:
        length, at = _varint(payload, at)
        return at + length
    if kind in LISTS:
        count, of = payload[at] >> 4, payload[at] & 15
        count, at = (count, at + 1) if count < 15 else _varint(payload, at + 1)
        for _ in range(min(count, len(payload))):
            at = _behind(payload, at, BYTE if of in BOOLEANS else of, depth + 1)
        return at
    if kind == STRUCT:
        return _struct(payload, at, depth + 1)[1]
    raise ValueError("the head of a page is none")


def _integer(payload: bytes, at: int) -> tuple[int, int]:
    """Zigzag, as signed ones are written."""
    value, at = _varint(payload, at)
    return value >> 1 ^ -(value & 1), at


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while payload[at] & 128:
        if shift > 63:
            raise ValueError("the head of a page has a number without an end")
        value |= (payload[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | payload[at] << shift, at + 1
