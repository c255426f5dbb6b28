"""How numbers travel: encode a part once, decode the same bytes everywhere to the same float32 values.

`int8` and `int4` round within blocks of 64 elements that share one scale. A scale is a bfloat16:
its range is float32's, and the product of its 8 significant bits with a small integer is exact in
float32, so every processor decodes to the same bits. What rounding loses stays in the balance of
whoever encoded (error feedback, Seide et al. 2014); the error of the mean is the same for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
        return _blocks(elements) * (SCALE_BYTES + BLOCK // (1 if self.wire == "int8" else 2))

    def encode(self, values: Floats) -> bytes:
        """The bytes of a part."""
        if self.wire == "float16":
            values = np.clip(values, -FLOAT16_MAX, FLOAT16_MAX)
        if self.wire in FLOAT_TYPES:
            encoded: bytes = values.astype(FLOAT_TYPES[self.wire]).tobytes()
            return encoded
        scales, levels = _quantised(values, LEVELS[self.wire])
        packed = levels.tobytes() if self.wire == "int8" else _in_nibbles(levels).tobytes()
        return scales.astype("<u2").tobytes() + packed

    def is_finite(self, payload: bytes) -> bool:
        """Whether it decodes to finite numbers alone; of blocks, whether it would with any integers."""
        if self.wire in FLOAT_TYPES:
            return bool(np.isfinite(np.frombuffer(payload, FLOAT_TYPES[self.wire])).all())
        with np.errstate(over="ignore", invalid="ignore"):
            largest = self._scales(payload) * np.float32(LEVELS[self.wire] + 1)
        return bool(np.isfinite(largest).all())

    def _scales(self, payload: bytes | memoryview) -> Floats:
        scales = np.frombuffer(payload[: self._scale_bytes(payload)], "<u2").astype(np.uint32)
        return (scales << 16).view(np.float32)

    def _scale_bytes(self, payload: bytes | memoryview) -> int:
        return len(payload) * SCALE_BYTES // self.part_bytes(BLOCK)

    def decode(self, payload: bytes | memoryview) -> Floats:
        """The float32 values of a part, the same on every processor.

        int8 and int4 give whole blocks: behind the part's end are zeros.
        """
        if self.wire in FLOAT_TYPES:
            floats: npt.NDArray[Any] = np.frombuffer(payload, FLOAT_TYPES[self.wire])
            return floats.astype(np.float32)
        split = self._scale_bytes(payload)
        levels = _from_nibbles(payload[split:]) if self.wire == "int4" else np.frombuffer(payload[split:], np.int8)
        values = levels.reshape(-1, BLOCK).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # nobody says that these bytes came from `encode`
            values *= self._scales(payload)[:, None]
        return values.reshape(-1)


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
    padded = np.zeros(_blocks(values.size) * BLOCK, np.float32)
    padded[: values.size] = values
    rows = padded.reshape(-1, BLOCK)
    finite = np.isfinite(rows).all(axis=1)
    rows = np.clip(rows, -BLOCK_MAX, BLOCK_MAX)
    largest = np.abs(rows).max(axis=1)
    # Rounded up, so that the largest magnitude never falls outside the levels.
    exact = np.where(finite, largest, 0).astype(np.float32) / np.float32(most)
    scales = ((exact.view(np.uint32) + 0xFFFF) >> 16).astype(np.uint16)
    steps = (scales.astype(np.uint32) << 16).view(np.float32)
    usable = finite & (steps > 0)
    divided = np.divide(rows, steps[:, None], out=np.zeros_like(rows), where=usable[:, None])
    levels = np.clip(np.rint(divided), -most, most).astype(np.int8)
    levels[~finite] = 1
    scales[~finite] = NAN_SCALE
    return scales, levels


NAN_SCALE = 0x7FC0
"""The upper half of float32's NaN."""


def _in_nibbles(levels: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Two integers from −7 to 7 in a byte, the first in its lower half."""
    shifted = (levels.reshape(-1) + 8).astype(np.uint8)
    packed: npt.NDArray[np.uint8] = shifted[::2] | (shifted[1::2] << np.uint8(4))
    return packed


def _from_nibbles(payload: bytes | memoryview) -> npt.NDArray[np.int8]:
    packed: npt.NDArray[np.uint8] = np.frombuffer(payload, np.uint8)
    levels = np.empty(2 * packed.size, np.int8)
    levels[::2] = (packed & 0x0F).astype(np.int8) - 8
    levels[1::2] = (packed >> 4).astype(np.int8) - 8
    return levels
