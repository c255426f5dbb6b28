"""Layouts of encoded numbers: single numbers, or blocks of integers that share a scale.

A part is encoded as a row of sections. The first section holds the first field of all units, and so on. So a tile of a
part is one slice of each section and can be decoded alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Octets = npt.NDArray[np.uint8]
"""One row of bytes per unit."""

FLOAT16_MAX = 65504.0
BLOCK_MAX = 1e38
"""Beyond this scaled integers saturate: their rounded-up scale times the largest integer stays finite."""
BLOCK = 64
TILE = 512 * BLOCK
"""Elements that are worked on at a time: whole units of every format, as few as a call of numpy is worth."""
SCALE_BYTES = 2
SMALLEST, LARGEST = 1e-20, 1e30
"""An inner product in float32 has lost nothing that counts if it lies between them."""
NAN_SCALE = 0x7FC0
"""The upper half of float32's NaN."""


class Format(Protocol):
    """How units of some elements become bytes, and back."""

    @property
    def unit(self) -> int:
        """Elements that are encoded together."""

    @property
    def sections(self) -> tuple[int, ...]:
        """Bytes of a unit in each section."""

    def encode(self, values: Floats) -> Sequence[Octets]:
        """The sections of whole units. NaN and infinity become NaN, in their unit."""

    def decode(self, sections: Sequence[Octets], values: Floats) -> None:
        """The same float32 values on every processor, whatever the bytes are, into `values`."""

    def is_finite(self, sections: Sequence[Octets]) -> bool:
        """Whether they decode to finite numbers alone; of scaled integers, whether they would with any integers."""

    def rounding_square(self, sections: Sequence[Octets], values: Floats) -> float:
        """The square of what encoding lost, at most, summed over these units, which decode to `values`; NaN where a
        scale is larger than `encode` makes it, which would hide any error."""


@dataclass(frozen=True)
class Dense:
    """Every number by itself, little-endian."""

    dtype: np.dtype[Any]
    largest: float = 0.0
    """What is larger becomes this; 0: nothing is too large."""
    unit: int = 1

    @property
    def sections(self) -> tuple[int, ...]:
        return (self.dtype.itemsize,)

    def encode(self, values: Floats) -> Sequence[Octets]:
        within = np.clip(values, -self.largest, self.largest) if self.largest else np.ascontiguousarray(values)
        return (_rows(within.astype(self.dtype, copy=False), self.dtype.itemsize),)

    def decode(self, sections: Sequence[Octets], values: Floats) -> None:
        numbers = sections[0].reshape(-1).view(self.dtype)
        if self.dtype == np.float16:
            np.take(_HALVES, numbers.view("<u2"), out=values, mode="clip")
        else:
            values[:] = numbers

    def is_finite(self, sections: Sequence[Octets]) -> bool:
        return bool(np.isfinite(sections[0].reshape(-1).view(self.dtype)).all())

    def rounding_square(self, sections: Sequence[Octets], values: Floats) -> float:
        """Half a unit in the last place: (eps · x)² / 4 at most, and of a subnormal likewise."""
        about = np.finfo(self.dtype)
        square = math.fsum(inner_product(values[tile], values[tile]) for tile in tiles(values.size))
        return (float(about.eps) ** 2 * square + float(about.smallest_subnormal) ** 2 * values.size) / 4


@dataclass(frozen=True)
class BlockQuantised:
    """Blocks of 64 integers from −`most` to `most` that share a scale; two of them in a byte if `most` is 7.

    A scale is a bfloat16: its range is float32's, and the product of its 8 significant bits with a small integer is
    exact in float32, so every processor decodes to the same bits.
    """

    most: int
    unit: int = BLOCK

    @property
    def _per_byte(self) -> int:
        return 2 if self.most <= 7 else 1

    @property
    def sections(self) -> tuple[int, ...]:
        return (SCALE_BYTES, BLOCK // self._per_byte)

    def encode(self, values: Floats) -> Sequence[Octets]:
        scales, levels = quantised(values.reshape(-1, BLOCK), self.most)
        packed = _in_nibbles(levels) if self._per_byte == 2 else levels.view(np.uint8)
        return _rows(scales, SCALE_BYTES), packed

    def decode(self, sections: Sequence[Octets], values: Floats) -> None:
        scales, packed = sections
        if self._per_byte == 2:
            np.take(_PAIRS, packed.reshape(-1), out=values.view(np.uint64), mode="clip")
        else:
            values[:] = packed.reshape(-1).view(np.int8)
        with np.errstate(over="ignore", invalid="ignore"):  # nobody says that these bytes came from `encode`
            rows = values.reshape(-1, BLOCK)
            rows *= scales_in(scales)

    def is_finite(self, sections: Sequence[Octets]) -> bool:
        return are_finite(scales_in(sections[0]), self.most)

    def rounding_square(self, sections: Sequence[Octets], values: Floats) -> float:
        levels = sections[1]
        if self._per_byte == 2:
            levels = np.take(_LARGER, levels, mode="clip")
        return rounding_square(scales_in(sections[0]), levels, self.most, values.size)


def tiles(elements: int, tile: int = TILE) -> list[slice]:
    return [slice(start, min(start + tile, elements)) for start in range(0, elements, tile)]


def inner_product(left: Floats, right: Floats) -> float:
    """Of two tiles: in float32, which is eight times as fast, unless that is too small or too large for it.

    What it sums of a tile is off by 1e-6 of the norms at most; whoever compares allows a thousand times as much.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        product = float(np.dot(left, right))
        if SMALLEST < abs(product) < LARGEST:
            return product
        return float(np.dot(left.astype(np.float64), right.astype(np.float64)))


def rounding_square(scales: Floats, levels: Octets, most: int, elements: int) -> float:
    """Of `elements` in rows of int8, each row with a scale: half a step for each, the most that can be.

    A third of that square is lost on average. But where all numbers of a part are one, as a contributor may choose, or
    two of each contribution, as sparse ones have, all are off by the same.

    Scales are rounded up by 2⁻⁷ of their size at most: the largest integer of a row is all but the highest.
    """
    steps = scales.reshape(-1).astype(np.float64)
    full = _reach(levels, math.ceil(most / (1 + 2.0**-7) - 0.5)) | (steps == 0)
    return float(np.square(steps).sum()) * elements / len(steps) / 4 if full.all() else math.nan


def _reach(levels: Octets, least: int) -> npt.NDArray[np.bool_]:
    """Which rows of int8 hold one of this magnitude: eight bytes at a time, which is much faster than a maximum."""
    large = levels + np.uint8(least - 1) > np.uint8(2 * least - 2)  # with the carry lost, of both signs
    eights = large.view(np.uint64)
    full: npt.NDArray[np.bool_] = np.logical_or.reduce([eights[:, at] != 0 for at in range(eights.shape[1])])
    return full


def quantised(rows: Floats, most: int) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int8]]:
    """(the upper halves of float32 scales, one per row; integers from −`most` to `most`)."""
    # Without their signs floats are ordered as their bits are, NaN and infinity behind all others.
    magnitudes = rows.view(np.uint32) & np.uint32(0x7FFFFFFF)
    largest = np.maximum.reduceat(magnitudes.reshape(-1), np.arange(0, rows.size, rows.shape[1])).view(np.float32)
    if largest.max() <= BLOCK_MAX:  # False for NaN
        scales, steps = _scales_of(largest, most)
        levels = rows / np.where(steps > 0, steps, np.float32(1))[:, None]
        return scales, np.rint(levels, out=levels).astype(np.int8)
    finite = np.isfinite(largest)
    rows = np.where(finite[:, None], np.clip(rows, -BLOCK_MAX, BLOCK_MAX), 0)
    scales, steps = _scales_of(np.where(finite, np.minimum(largest, np.float32(BLOCK_MAX)), 0), most)
    levels = np.clip(np.rint(rows / np.where(steps > 0, steps, np.float32(1))[:, None]), -most, most)
    levels[~finite] = 1
    scales[~finite] = NAN_SCALE
    return scales, levels.astype(np.int8)


def scales_in(section: Octets) -> Floats:
    """The float32 values of the bfloat16 in each row, in as many columns."""
    return (section.view("<u2").astype(np.uint32) << 16).view(np.float32)


def are_finite(scales: Floats, most: int) -> bool:
    """Whether these scales times integers of this size are finite numbers."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(scales * np.float32(most + 1)).all())


def _rows(values: npt.NDArray[Any], size: int) -> Octets:
    return values.reshape(-1).view(np.uint8).reshape(-1, size)


def _scales_of(largest: npt.NDArray[Any], most: int) -> tuple[npt.NDArray[np.uint16], Floats]:
    """(the upper halves, the scales themselves): rounded up, so that no magnitude falls outside the levels."""
    exact = largest.astype(np.float32) / np.float32(most)
    scales = ((exact.view(np.uint32) + 0xFFFF) >> 16).astype("<u2")
    return scales, (scales.astype(np.uint32) << 16).view(np.float32)


def _in_nibbles(levels: npt.NDArray[np.int8]) -> Octets:
    """Two integers from −7 to 7 in a byte, the first in its lower half."""
    pairs = (levels + np.int8(8)).view("<u2")
    packed: Octets = (pairs | (pairs >> np.uint16(4))).astype(np.uint8)
    return packed


_PAIRS: npt.NDArray[np.uint64] = np.array(
    [((byte & 0x0F) - 8, (byte >> 4) - 8) for byte in range(256)], np.float32
).reshape(-1).view(np.uint64)  # fmt: skip
"""The two integers of each byte, as float32 side by side."""
_LARGER: Octets = np.array([max(abs((byte & 0x0F) - 8), abs((byte >> 4) - 8)) for byte in range(256)], np.uint8)
"""The larger magnitude of the two."""
_HALVES: Floats = np.arange(1 << 16, dtype="<u2").view(np.float16).astype(np.float32)
"""Every float16: looked up in half of the time that numpy converts one."""
