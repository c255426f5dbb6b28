"""Sparse layouts: the few largest elements of every chunk of 4,096, each with its 12-bit index in the chunk.

A contribution holds 64 of them, as one of two magnitudes and a sign: 116 bytes. What is not sent stays in its author's
residual (error feedback) and is sent once it has grown, as in SparseLoCo (arXiv:2508.15706). In the mean of n such
contributions up to 64 n elements of a chunk are not zero; it holds the 256 largest, with 8 bits each: 642 bytes.

| section | a contribution's chunk | a mean's chunk |
| --- | --- | --- |
| levels | two bfloat16, little-endian: the lower magnitude, the higher one | one bfloat16: the scale |
| places | 64 of 12 bits, in order; two in 3 bytes, the first in the lower 12 of 24 bits, little-endian | 256 likewise |
| values | 64 of 2 bits, four in a byte, the first lowest: bit 0 says higher, bit 1 says negative | 256 int8 |

Where fewer elements are not zero, the last of them is repeated. No encoder writes a chunk whose indices are out of
order or that holds two values for one index: such a chunk decodes to NaN, which every judge and voter rejects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from peer.consensus.codec.blockwise import (
    BLOCK_MAX,
    NAN_SCALE,
    SCALE_BYTES,
    Floats,
    Octets,
    are_finite,
    quantised,
    rounding_square,
    scales_in,
)

CHUNK = 4096
IN_CONTRIBUTION = 64
IN_MEAN = 256
_MOST = 127

Indices = npt.NDArray[np.int64]
"""(chunks, kept): where in its chunk each element lies, ascending."""


@dataclass(frozen=True)
class TopKSigned:
    """The `kept` largest of a chunk, each as one of two magnitudes with a sign."""

    kept: int
    unit: int = CHUNK

    @property
    def sections(self) -> tuple[int, ...]:
        return (2 * SCALE_BYTES, self.kept * 3 // 2, self.kept // 4)

    def encode(self, values: Floats) -> Sequence[Octets]:
        rows = values.reshape(-1, CHUNK)
        places = largest(rows, self.kept)
        chosen = np.take_along_axis(rows, places, axis=1)
        levels, high = _two_levels(np.abs(chosen))
        codes = high | (np.signbit(chosen) << np.uint8(1))
        fours = codes.reshape(len(rows), -1, 4) << np.array((0, 2, 4, 6), np.uint8)
        return levels.view(np.uint8), packed_places(places), np.bitwise_or.reduce(fours, axis=2)

    def decode(self, sections: Sequence[Octets], values: Floats) -> None:
        levels, places, codes = scales_in(sections[0]), unpacked_places(sections[1]), _codes(sections[2])
        chosen = np.where(codes & 1, levels[:, 1:], levels[:, :1])
        np.negative(chosen, out=chosen, where=codes >= 2)
        _scatter(places, codes, chosen, values)

    def is_finite(self, sections: Sequence[Octets]) -> bool:
        in_order = _in_order(unpacked_places(sections[1]), _codes(sections[2]))
        return bool(in_order.all()) and are_finite(scales_in(sections[0]), 0)

    def rounding_square(self, sections: Sequence[Octets], values: Floats) -> float:
        raise NotImplementedError("no mean is encoded so")


@dataclass(frozen=True)
class TopKInt8:
    """The `kept` largest of a chunk as integers from −127 to 127 with one scale."""

    kept: int
    unit: int = CHUNK

    @property
    def sections(self) -> tuple[int, ...]:
        return (SCALE_BYTES, self.kept * 3 // 2, self.kept)

    def encode(self, values: Floats) -> Sequence[Octets]:
        rows = values.reshape(-1, CHUNK)
        places = largest(rows, self.kept)
        scales, integers = quantised(np.take_along_axis(rows, places, axis=1), _MOST)
        return scales.view(np.uint8).reshape(-1, SCALE_BYTES), packed_places(places), integers.view(np.uint8)

    def decode(self, sections: Sequence[Octets], values: Floats) -> None:
        integers = sections[2].view(np.int8)
        with np.errstate(over="ignore", invalid="ignore"):  # nobody says that these bytes came from `encode`
            chosen = integers.astype(np.float32) * scales_in(sections[0])
        _scatter(unpacked_places(sections[1]), sections[2], chosen, values)

    def is_finite(self, sections: Sequence[Octets]) -> bool:
        in_order = _in_order(unpacked_places(sections[1]), sections[2])
        return bool(in_order.all()) and are_finite(scales_in(sections[0]), _MOST)

    def rounding_square(self, sections: Sequence[Octets], values: Floats) -> float:
        return rounding_square(scales_in(sections[0]), sections[2], _MOST, sections[2].size)


def largest(rows: Floats, kept: int) -> Indices:
    """Where the `kept` largest magnitudes of each row are; of equal ones the first, so that all machines choose alike.

    Of a row with fewer that are not zero, the last of those again and again.
    """
    # Without their signs floats are ordered as their bits are, NaN and infinity behind all others.
    magnitudes = rows.view(np.uint32) & np.uint32(0x7FFFFFFF)
    least = np.partition(magnitudes, CHUNK - kept, axis=1)[:, CHUNK - kept, None]
    chosen = magnitudes >= least
    if np.count_nonzero(chosen) != kept * len(rows):
        above, equal = magnitudes > least, magnitudes == least
        wanted = kept - np.count_nonzero(above, axis=1, keepdims=True)
        chosen = above | (equal & (np.cumsum(equal, axis=1) <= wanted))
    places = np.nonzero(chosen)[1].reshape(-1, kept)
    for row in np.flatnonzero(least == 0):
        there = places[row][magnitudes[row, places[row]] != 0]
        places[row] = np.pad(there, (0, kept - there.size), mode="edge") if there.size else 0
    return places


def packed_places(places: Indices) -> Octets:
    """Two numbers below 4,096 in three bytes."""
    pairs = (places[:, ::2] | places[:, 1::2] << 12).astype("<u4")
    return np.ascontiguousarray(pairs.view(np.uint8).reshape(len(places), -1, 4)[:, :, :3]).reshape(len(places), -1)


def unpacked_places(section: Octets) -> Indices:
    first, middle, last = (section[:, at::3].astype(np.int64) for at in range(3))
    return np.stack((first | (middle & 15) << 8, middle >> 4 | last << 4), axis=2).reshape(len(section), -1)


def _codes(section: Octets) -> Octets:
    codes: Octets = section[:, :, None] >> np.array((0, 2, 4, 6), np.uint8) & np.uint8(3)
    return codes.reshape(len(section), -1)


def _two_levels(magnitudes: Floats) -> tuple[npt.NDArray[np.uint16], Octets]:
    """(the upper halves of two float32 levels per row; which of them each is).

    Each is the median of those on its side of the middle between the least and the largest: no sum, whose last bits
    processors differ in, and what was decoded is encoded to the same bytes.
    """
    ordered = np.sort(magnitudes, axis=1)
    finite = np.isfinite(ordered[:, -1])  # NaN comes last
    ordered = np.minimum(np.where(finite[:, None], ordered, 0), np.float32(BLOCK_MAX))
    middle = (ordered[:, :1] + ordered[:, -1:]) / np.float32(2)
    low = np.count_nonzero(ordered <= middle, axis=1)
    kept, row = ordered.shape[1], np.arange(len(ordered))
    upper = np.where(low < kept, low + (kept - low - 1) // 2, (low - 1) // 2)
    both = np.stack((ordered[row, (low - 1) // 2], ordered[row, upper]), axis=1)
    levels = ((both.view(np.uint32) + 0x8000) >> 16).astype("<u2")
    levels[~finite] = NAN_SCALE
    return levels, (magnitudes > middle).astype(np.uint8)


def _in_order(places: Indices, said: Octets) -> npt.NDArray[np.bool_]:
    """Whether the places of each row ascend, and what is said twice of one is the same."""
    further = np.diff(places, axis=1)
    agrees = (further > 0) | ((further == 0) & (said[:, 1:] == said[:, :-1]))
    result: npt.NDArray[np.bool_] = agrees.all(axis=1)
    return result


def _scatter(places: Indices, said: Octets, chosen: Floats, values: Floats) -> None:
    """Everything else in `values` is zero."""
    values[:] = 0
    rows = values.reshape(-1, CHUNK)
    np.put_along_axis(rows, places, chosen, axis=1)
    rows[~_in_order(places, said)] = np.nan
