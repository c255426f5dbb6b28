"""How numbers travel: encode a part once, decode the same bytes everywhere to the same float32 values.

`int8` and `int4` round within blocks of 64 elements that share one scale. A scale is a bfloat16:
its range is float32's, and the product of its 8 significant bits with a small integer is exact in
float32, so every processor decodes to the same bits. What rounding loses stays in the balance of
whoever encoded (error feedback, Seide et al. 2014); the error of the mean is the same for all.

All of it goes over a part in tiles that stay in the processor's cache, which makes it several times
faster than the same operations over whole parts, and gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from peer.rounds.update import WEIGHT_ONE

Floats = npt.NDArray[np.float32]
FLOAT_TYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
FLOAT16_MAX = 65504.0
BLOCK_MAX = 1e38
"""Beyond this int8 and int4 saturate: their rounded-up scale times the largest integer stays finite."""
BLOCK = 64
SCALE_BYTES = 2
LEVELS = {"int8": 127, "int4": 7}
"""Largest integer of a block; the smallest is its negative."""
PER_BYTE = {"int8": 1, "int4": 2}
TILE = 256 * BLOCK
"""Elements that are worked on at a time."""


def tiles(elements: int) -> list[slice]:
    """A part of so many elements, tile by tile."""
    return [slice(start, min(start + TILE, elements)) for start in range(0, elements, TILE)]


@dataclass(frozen=True)
class Codec:
    """An encoding by its name in the spec. NaN and infinity come out as NaN: judging them is not its business.

    float32 is exact; the others saturate. float16 rounds to nearest; int8 and int4 take 1.03 and 0.53 bytes
    per element and err by at most half a level of the block's largest magnitude, and the scale's rounding.
    """

    wire: str

    def part_bytes(self, elements: int) -> int:
        """Encoded size of a part."""
        if self.wire in FLOAT_TYPES:
            return elements * int(FLOAT_TYPES[self.wire].itemsize)
        return _blocks(elements) * (SCALE_BYTES + BLOCK // PER_BYTE[self.wire])

    def elements(self, payload: bytes | memoryview) -> int:
        """How many a payload decodes to: whole blocks with int8 and int4."""
        if self.wire in FLOAT_TYPES:
            return len(payload) // FLOAT_TYPES[self.wire].itemsize
        return len(payload) // self.part_bytes(BLOCK) * BLOCK

    def encode(self, values: Floats) -> bytes:
        """The bytes of a part."""
        return self.encode_tiles(values.size, values.__getitem__)

    def encode_tiles(self, elements: int, values_of: Callable[[slice], Floats]) -> bytes:
        """The bytes of a part whose values are asked for tile by tile."""
        if self.wire in FLOAT_TYPES:
            floats: npt.NDArray[Any] = np.empty(elements, FLOAT_TYPES[self.wire])
            for tile in tiles(elements):
                values = values_of(tile)
                floats[tile] = np.clip(values, -FLOAT16_MAX, FLOAT16_MAX) if self.wire == "float16" else values
            return floats.tobytes()
        payload = bytearray(self.part_bytes(elements))
        split, per_byte = self._scale_bytes(payload), PER_BYTE[self.wire]
        scales, packed = np.frombuffer(payload, "<u2", split // SCALE_BYTES), np.frombuffer(payload, np.uint8)[split:]
        for tile in tiles(elements):
            tile_scales, levels = _quantised(values_of(tile), LEVELS[self.wire])
            first, start = tile.start // BLOCK, tile.start // per_byte
            scales[first : first + tile_scales.size] = tile_scales
            packed[start : start + levels.size // per_byte] = (
                _in_nibbles(levels) if per_byte == 2 else levels.reshape(-1).view(np.uint8)
            )
        return bytes(payload)

    def is_finite(self, payload: bytes) -> bool:
        """Whether it decodes to finite numbers alone; of blocks, whether it would with any integers."""
        if self.wire in FLOAT_TYPES:
            return bool(np.isfinite(np.frombuffer(payload, FLOAT_TYPES[self.wire])).all())
        with np.errstate(over="ignore", invalid="ignore"):
            largest = self._scales(payload) * np.float32(LEVELS[self.wire] + 1)
        return bool(np.isfinite(largest).all())

    def _scales(self, payload: bytes | memoryview, first: int = 0, count: int = -1) -> Floats:
        count = self._scale_bytes(payload) // SCALE_BYTES if count < 0 else count
        scales = np.frombuffer(payload, "<u2", count, first * SCALE_BYTES).astype(np.uint32)
        return (scales << 16).view(np.float32)

    def _scale_bytes(self, payload: bytes | bytearray | memoryview) -> int:
        return len(payload) * SCALE_BYTES // self.part_bytes(BLOCK)

    def decode(self, payload: bytes | memoryview) -> Floats:
        """The float32 values of a part, the same on every processor.

        int8 and int4 give whole blocks: behind the part's end are zeros.
        """
        values = np.empty(self.elements(payload), np.float32)
        for tile in tiles(values.size):
            values[tile] = self.decode_tile(payload, tile)
        return values

    def decode_tile(self, payload: bytes | memoryview, tile: slice) -> Floats:
        """Those values of `decode` that are in this tile of it."""
        if self.wire in FLOAT_TYPES:
            floats: npt.NDArray[Any] = np.frombuffer(payload, FLOAT_TYPES[self.wire])[tile]
            return floats.astype(np.float32)
        count, per_byte = tile.stop - tile.start, PER_BYTE[self.wire]
        packed = np.frombuffer(
            payload, np.uint8, count // per_byte, self._scale_bytes(payload) + tile.start // per_byte
        )
        values = _PAIRS.take(packed).view(np.float32) if per_byte == 2 else packed.view(np.int8).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # nobody says that these bytes came from `encode`
            rows = values.reshape(-1, BLOCK)
            rows *= self._scales(payload, tile.start // BLOCK, count // BLOCK)[:, None]
        return values


def weighted_mean(
    parts: Sequence[Floats],
    weights: Sequence[int],
    missing: int = 0,
    *,
    scale: int = WEIGHT_ONE,
    pull: int = 0,
    last: Floats | None = None,
) -> Floats:
    """c · (Σ wᵢ·xᵢ + p·v) / √(W · (W + `missing`)), with W = Σw + p: the weighted mean of contributions x.

    It is smaller if some who offered this part are `missing`: a mean over c of n is noisier by √(n/c), and what is
    missing comes in a later round on top of that round's, so that the plain mean would overshoot there. The root keeps
    the noise of a full round (`tests/benchmarks/README.md`, drops). p is the `pull` to v, the `last` committed mean
    (centered clip; None is zero); c is `scale` over 65,536.

    float32, separate multiply and add in the order given, so that an audit can
    repeat it; the root is exact to the last bit everywhere (IEEE 754).
    """
    total = sum(weights) + pull
    assert total > 0, "somebody must weigh something"
    divisor = math.sqrt(total * (total + missing))
    mean = np.zeros_like(parts[0])
    for values, weight in zip(parts, weights, strict=True):
        mean += values * np.float32(weight / divisor)
    if pull and last is not None:
        mean += last * np.float32(pull / divisor)
    if scale != WEIGHT_ONE:
        mean *= np.float32(scale / WEIGHT_ONE)
    return mean


def _blocks(elements: int) -> int:
    return -(-elements // BLOCK)


def _quantised(values: Floats, most: int) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int8]]:
    """(the upper halves of float32 scales, one per block; integers from −`most` to `most`, a block per row)."""
    padded = np.ascontiguousarray(values, np.float32)
    if values.size % BLOCK:
        padded = np.zeros(_blocks(values.size) * BLOCK, np.float32)
        padded[: values.size] = values
    # Without their signs floats are ordered as their bits are, NaN and infinity behind all others.
    magnitudes = padded.view(np.uint32) & np.uint32(0x7FFFFFFF)
    largest = np.maximum.reduceat(magnitudes, np.arange(0, padded.size, BLOCK)).view(np.float32)
    rows = padded.reshape(-1, BLOCK)
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


def _scales_of(largest: npt.NDArray[Any], most: int) -> tuple[npt.NDArray[np.uint16], Floats]:
    """(the upper halves, the scales themselves): rounded up, so that no magnitude falls outside the levels."""
    exact = largest.astype(np.float32) / np.float32(most)
    scales = ((exact.view(np.uint32) + 0xFFFF) >> 16).astype(np.uint16)
    return scales, (scales.astype(np.uint32) << 16).view(np.float32)


NAN_SCALE = 0x7FC0
"""The upper half of float32's NaN."""


def _in_nibbles(levels: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Two integers from −7 to 7 in a byte, the first in its lower half."""
    pairs = (levels.reshape(-1) + np.int8(8)).view("<u2")
    packed: npt.NDArray[np.uint8] = (pairs | (pairs >> np.uint16(4))).astype(np.uint8)
    return packed


_PAIRS: npt.NDArray[np.uint64] = np.array(
    [((byte & 0x0F) - 8, (byte >> 4) - 8) for byte in range(256)], np.float32
).reshape(-1).view(np.uint64)  # fmt: skip
"""The two integers of each byte, as float32 side by side."""
