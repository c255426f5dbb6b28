"""The memory that the pages of a parquet file need: it follows from the header of each page, whatever the footer
claims.

Footer and headers are structs of Thrift's compact protocol: github.com/apache/parquet-format, `FileMetaData` and
`PageHeader`. Pyarrow's view of a column chunk is not asked: for some damaged ones it ends the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

HEAD_BYTES = (1 << 12, 1 << 16, 16 << 20)
"""A page's head has so many at most, or more and then more: some writers put a whole cell into it."""
FOOTER_BYTES = 16 << 20
"""A footer has so many at most."""
MAGIC = b"PAR1"
STOP, BOOLEANS, BYTE, INTEGERS, DOUBLE, BINARY, LISTS, STRUCT = 0, (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
UNCOMPRESSED, COMPRESSED = 2, 3
OF_DATA = (5, 8)
"""Fields of a head: structs of which one says how many values its page has."""
VALUES = 1
"""The field of those."""
GROUPS = 4
"""The field of a footer."""
COLUMNS, ROWS = 1, 3
"""Fields of a group."""
ABOUT = 3
"""The field of a column chunk that says everything else of it."""
PATH, PACKED, DATA_PAGE, DICTIONARY_PAGE = 3, 7, 9, 11
"""Fields of that."""
MOST_DEPTH = 8


@dataclass(frozen=True)
class ColumnChunk:
    """The values of a column in a group."""

    path: str
    """The names of the column and of what is nested in it, with dots."""
    start: int
    """Bytes of the file before its first page."""
    packed_bytes: int


@dataclass(frozen=True)
class RowGroup:
    rows: int
    chunks: tuple[ColumnChunk, ...]


def row_groups(file: BinaryIO) -> list[RowGroup]:
    """All of a file. Raises ValueError if its footer is none."""
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, size_bytes - 8))
    end = file.read()
    length = int.from_bytes(end[:4], "little")
    if end[4:] != MAGIC or length > min(size_bytes - 8, FOOTER_BYTES):
        raise ValueError("its footer is none, or too long")
    file.seek(size_bytes - 8 - length)
    try:
        footer, _ = _struct(file.read(length), 0, 0)
        return [_group(group) for group in footer[GROUPS]]
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError("its footer is none") from error


def _group(said: Any) -> RowGroup:
    return RowGroup(_number(said, ROWS), tuple(_chunk(chunk[ABOUT]) for chunk in said[COLUMNS]))


def _chunk(said: Any) -> ColumnChunk:
    # 0 is no place of a page: writers mean none by it.
    places = _number(said, DATA_PAGE), said.get(DICTIONARY_PAGE) and _number(said, DICTIONARY_PAGE)
    start = min(filter(None, places), default=0)
    return ColumnChunk(".".join(name.decode() for name in said[PATH]), start, _number(said, PACKED))


def _number(said: Mapping[int, Any], field: int) -> int:
    if not isinstance(value := said.get(field), int):
        raise ValueError("a size or a place in it is no number")
    return value


@dataclass(frozen=True)
class DataPage:
    unpacked_bytes: int
    values: int
    """Of a dictionary, which is no data, 0."""


def pages_of(file: BinaryIO, chunk: ColumnChunk) -> Iterator[DataPage]:
    """What each page of a column chunk comes to. Raises ValueError for bytes that are no column chunk."""
    at, end = chunk.start, chunk.start + chunk.packed_bytes
    if at < 0:
        raise ValueError("a page has no place")
    while at < end:
        fields, size = _head(file, at)
        unpacked, packed = _number(fields, UNCOMPRESSED), _number(fields, COMPRESSED)
        if packed < 0:
            raise ValueError("a page has a negative size")
        data = next((said for said in map(fields.get, OF_DATA) if isinstance(said, dict)), {VALUES: 0})
        yield DataPage(unpacked, _number(data, VALUES))
        at += size + packed


def _head(file: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    """The struct at `at`, and its size in bytes."""
    for most in HEAD_BYTES:
        file.seek(at)
        with suppress(IndexError):
            fields, size = _struct(file.read(most), 0, 0)
            break
    else:
        raise ValueError("the head of a page is cut off")
    return fields, size


def _struct(payload: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """The values of the struct at `at` by field, and where it ends. Raises IndexError for one that is cut off."""
    if depth > MOST_DEPTH:
        raise ValueError("a struct of it has no end")
    fields, field = dict[int, Any](), 0
    while (first := payload[at]) != STOP:
        at, kind = at + 1, first & 15
        if first >> 4:
            field += first >> 4
        else:
            field, at = _integer(payload, at)
        fields[field], at = (kind, at) if kind in BOOLEANS else _value(payload, at, kind, depth)
    return fields, at + 1


def _value(payload: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    """The value at `at`, and where it ends."""
    if kind in (BYTE, DOUBLE):
        return None, at + (1 if kind == BYTE else 8)
    if kind in INTEGERS:
        return _integer(payload, at)
    if kind == BINARY:
        length, at = _varint(payload, at)
        return payload[at : at + length], at + length
    if kind in LISTS:
        return _list(payload, at, depth)
    if kind == STRUCT:
        return _struct(payload, at, depth + 1)
    raise ValueError("a struct of it is none")


def _list(payload: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    count, of = payload[at] >> 4, payload[at] & 15
    count, at = (count, at + 1) if count < 15 else _varint(payload, at + 1)
    values = list[Any]()
    for _ in range(count):
        if at >= len(payload):
            raise IndexError("it is cut off")
        value, at = _value(payload, at, BYTE if of in BOOLEANS else of, depth + 1)
        values.append(value)
    return values, at


def _integer(payload: bytes, at: int) -> tuple[int, int]:
    """Zigzag, as signed ones are written."""
    value, at = _varint(payload, at)
    return value >> 1 ^ -(value & 1), at


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while payload[at] & 128:
        if shift > 63:
            raise ValueError("a number of it has no end")
        value |= (payload[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | payload[at] << shift, at + 1
