"""Canonical msgpack, and strict readers of it: they return a value of the right type and size, or raise ValueError."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Protocol, Self

import msgpack
from blake3 import blake3

DIGEST_BYTES = 32
MAX_ENTRIES = 65_536
"""Of any list."""


def pack(value: Any) -> bytes:
    """Canonical msgpack of nested tuples, integers, bytes and text."""
    packed: bytes = msgpack.packb(value)
    return packed


def unpack(packed: bytes | memoryview) -> Any:
    """Nested tuples of plain values; raises ValueError for anything else."""
    try:
        return msgpack.unpackb(packed, use_list=False, max_array_len=MAX_ENTRIES, max_map_len=0, max_ext_len=0)
    except msgpack.UnpackException as error:
        raise ValueError(f"not msgpack: {error}") from error


def require_few(packed: bytes | memoryview, most: int) -> None:
    """Raises ValueError if these are more than so many values, however deep, before any of them is made. A value can
    be one byte, and making it takes a hundred times as long as skipping its bytes."""
    at, count, size_bytes = 0, 0, len(packed)
    while at < size_bytes:
        count += 1
        if count > most:
            raise ValueError(f"expected at most {most} values")
        follow, length_bytes = _FOLLOW[packed[at]]
        if follow == _NEVER:
            raise ValueError("expected no extension of msgpack")
        at += 1
        if length_bytes:
            at += int.from_bytes(packed[at : at + length_bytes], "big")
        at += follow


_NEVER = -1


def _what_follows() -> tuple[tuple[int, int], ...]:
    """By the first byte of a value: how many further bytes it has, and how many of them hold the number of values
    that follow."""
    found = [(0, 0)] * 256
    for first in (0xC1, 0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9)):
        found[first] = _NEVER, 0
    for length in range(32):
        found[0xA0 | length] = length, 0
    for first, sizes in ((0xCA, (4, 8)), (0xCC, (1, 2, 4, 8)), (0xD0, (1, 2, 4, 8)), (0xDC, (2, 4, 2, 4))):
        for index, size in enumerate(sizes):
            found[first + index] = size, 0
    for first in (0xC4, 0xD9):  # bytes and text
        for index, size in enumerate((1, 2, 4)):
            found[first + index] = size, size
    return tuple(found)


_FOLLOW = _what_follows()


def row(value: Any, length: int) -> tuple[Any, ...]:
    if not isinstance(value, tuple) or len(value) != length:
        raise ValueError(f"expected a row of {length} fields")
    return value


def rows(value: Any, most: int) -> tuple[Any, ...]:
    if not isinstance(value, tuple) or len(value) > most:
        raise ValueError(f"expected at most {most} entries")
    return value


def integer(value: Any, low: int, high: int = (1 << 63) - 1) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"expected an integer from {low} to {high}")
    return value


def boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("expected true or false")
    return value


def octets(value: Any, exactly: int | None = None, most: int | None = None) -> bytes:
    if type(value) is not bytes or (exactly is not None and len(value) != exactly):
        raise ValueError(f"expected {exactly} bytes" if exactly is not None else "expected bytes")
    if most is not None and len(value) > most:
        raise ValueError(f"expected at most {most} bytes")
    return value


def text(value: Any, most: int = 64) -> str:
    if type(value) is not str or len(value) > most:
        raise ValueError(f"expected a text of at most {most} characters")
    return value


def printable(value: Any, most: int = 32) -> str:
    if not text(value, most).isprintable():
        raise ValueError("expected printable text")
    return str(value)


DIGEST = partial(octets, exactly=DIGEST_BYTES)
SIGNATURE = partial(octets, exactly=64)
COUNT = partial(integer, low=0)
ANY_INTEGER = partial(integer, low=-(1 << 63), high=(1 << 64) - 1)
"""Whatever msgpack can say. A rule bounds it afterwards: a signed lie that nobody can read proves nothing."""


Read = Callable[[Any], Any]
"""A value of the right kind and size out of what was unpacked, or ValueError."""


def each(read: Read, most: int, least: int = 0) -> Read:
    def read_each(value: Any) -> tuple[Any, ...]:
        found = tuple(map(read, rows(value, most)))
        if len(found) < least:
            raise ValueError(f"expected at least {least} entries")
        return found

    return read_each


def fields(*reads: Read) -> Read:
    length = len(reads)
    return lambda value: tuple([read(item) for read, item in zip(reads, row(value, length), strict=True)])


def optional(read: Read) -> Read:
    """Reads a value, or nothing."""
    return lambda value: None if value is None else read(value)


class Packed:
    """Base of dataclasses that are packed as a row of their fields; `readers` has a reader for each."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]]
    readers: ClassVar[tuple[Read, ...]]

    def packed(self) -> tuple[Any, ...]:
        values = [getattr(self, name) for name in self.__match_args__]
        return tuple([value if type(value) in _PLAIN else _plain(value) for value in values])

    @classmethod
    def unpacked(cls, value: Any) -> Self:
        """Raises ValueError for anything that `packed` does not make."""
        readers = cls.readers
        return cls(*[read(item) for read, item in zip(readers, row(value, len(readers)), strict=True)])


_PLAIN = frozenset({bool, bytes, int, str})
"""What is packed as it is."""


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple([item.packed() for item in value]) if value and hasattr(value[0], "packed") else value
    return value.packed() if hasattr(value, "packed") else value


class Keys(Protocol):
    """One peer's signing key and everybody's verification. Ed25519 is deterministic, so this is pure."""

    def sign(self, kind: str, payload: bytes) -> bytes:
        """My signature over (run, kind, payload)."""

    def verify(self, peer: str, kind: str, payload: bytes, signature: bytes) -> bool:
        """Whether `peer` signed (run, kind, payload)."""


def digest_of(payload: bytes | memoryview) -> bytes:
    """The digest of some bytes. Every byte of a round is hashed several times, so by BLAKE3, which is fast."""
    return blake3(payload).digest()


def digest(*fields: Any) -> bytes:
    """The digest of a tuple of values."""
    return digest_of(pack(fields))
