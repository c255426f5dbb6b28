"""The codec of parts: encodes a part once; every peer decodes the same bytes to the same float32 values.

What rounding loses stays in the encoder's residual (error feedback, Seide et al. 2014); the error of the mean is the
same for all peers. Parts are processed in tiles that stay in the processor's cache. That is several times faster than
the same operations over whole parts, and gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from peer.consensus.codec.blockwise import (
    BLOCK,
    FLOAT16_MAX,
    TILE,
    BlockQuantised,
    Dense,
    Floats,
    Format,
    Octets,
    tiles,
)
from peer.consensus.codec.topk import IN_CONTRIBUTION, IN_MEAN, TopKInt8, TopKSigned
from peer.consensus.protocol.block import WEIGHT_ONE

FORMATS: dict[str, Format] = {
    "float32": Dense(np.dtype("<f4")),
    "float16": Dense(np.dtype("<f2"), largest=FLOAT16_MAX),
    "int8": BlockQuantised(127),
    "int4": BlockQuantised(7),
    "sparse": TopKSigned(IN_CONTRIBUTION),
    "sparse mean": TopKInt8(IN_MEAN),
}


class DecodeTile(Protocol):
    """Gives the values of a tile, in whole units; writes them where one says."""

    def __call__(self, tile: slice, values: Floats | None = None) -> Floats: ...


@dataclass(frozen=True)
class Codec:
    """An encoding by its name in the spec. NaN and infinity come out as NaN: judging them is not its business.

    float32 is exact; the others saturate. float16 rounds to nearest; int8 and int4 take 1.03 and 0.53 bytes
    per element and err by at most half a level of the block's largest magnitude, and the scale's rounding.
    `sparse` takes 0.03 bytes and sends the largest alone.
    """

    wire: str

    @property
    def of_means(self) -> Codec:
        """The encoding of the mean of what is encoded in this one."""
        return Codec("sparse mean") if self.wire == "sparse" else self

    @property
    def is_sparse(self) -> bool:
        """Whether most of a residual stays where it is in any round.

        Who trained on from the anchor less all that is owed would then share little with the others.
        """
        return self.wire == "sparse"

    @property
    def _format(self) -> Format:
        return FORMATS[self.wire]

    @property
    def unit(self) -> int:
        """Elements that are encoded together."""
        return self._format.unit

    @property
    def sections(self) -> tuple[int, ...]:
        """Bytes of a unit in each section."""
        return self._format.sections

    def part_bytes(self, elements: int) -> int:
        return self.padded_elements(elements) // self._format.unit * sum(self._format.sections)

    def padded_elements(self, elements: int) -> int:
        """The elements of the whole units that hold so many."""
        return -(-elements // self._format.unit) * self._format.unit

    def without_rows(self, payload: bytes, elements: int) -> bytes:
        """The encoded mean of so many elements, less the rows of its contributors that follow it."""
        return payload[: self.of_means.part_bytes(elements)]

    def elements(self, payload: bytes | memoryview) -> int:
        """How many a payload decodes to: whole units. Raises ValueError for bytes that are none."""
        unit_bytes = sum(self._format.sections)
        if len(payload) % unit_bytes:
            raise ValueError(f"{len(payload)} bytes are no whole units of {unit_bytes} bytes ({self.wire})")
        return len(payload) // unit_bytes * self._format.unit

    def encode(self, values: Floats) -> bytes:
        return self.encode_tiles(values.size, values.__getitem__)

    def encode_tiles(self, elements: int, values_of: Callable[[slice], Floats]) -> bytes:
        """The bytes of a part whose values are asked for tile by tile."""
        payload, unit = bytearray(self.part_bytes(elements)), self._format.unit
        sections = self.rows(payload)
        for tile in tiles(elements):
            first = tile.start // unit
            for section, piece in zip(sections, self._format.encode(_padded(values_of(tile), unit)), strict=True):
                section[first : first + len(piece)] = piece
        return bytes(payload)

    def is_finite(self, payload: bytes | memoryview) -> bool:
        """Whether it decodes to finite numbers alone; of blocks, whether it would with any integers."""
        return self._format.is_finite(self.rows(payload))

    def rounding_square(self, payload: bytes | memoryview, values: Floats) -> float:
        """The square norm of what encoding lost, at most, from the bytes of a part, which decode to `values`; NaN for
        bytes that `encode` would not make."""
        return self._format.rounding_square(self.rows(payload), values)

    def decode(self, payload: bytes | memoryview) -> Floats:
        """The float32 values of a part, the same on every processor. Raises ValueError as `elements` does.

        Whole units: behind the part's end are zeros.
        """
        values = np.empty(self.elements(payload), np.float32)
        decode_tile = self.opened(payload)
        for tile in self.tiles(values.size):
            decode_tile(tile, values[tile])
        return values

    def pieces(self, payload: bytes | memoryview) -> Iterator[Floats]:
        """The values of a part, tile by tile, each in the place of the one before."""
        elements, decode_tile = self.elements(payload), self.opened(payload)
        places = self.tiles(elements)
        values = np.empty(max((tile.stop - tile.start for tile in places), default=0), np.float32)
        return (decode_tile(tile, values[: tile.stop - tile.start]) for tile in places)

    def tiles(self, elements: int) -> list[slice]:
        """Those that are worth a call of `decode`: of a sparse part there are few numbers in a tile."""
        return tiles(elements, TILE if self._format.unit <= BLOCK else 8 * TILE)

    def opened(self, payload: bytes | memoryview) -> DecodeTile:
        """What gives those values of `decode` that are in a tile of it."""
        encoding, sections = self._format, self.rows(payload)

        def decode_tile(tile: slice, values: Floats | None = None) -> Floats:
            values = np.empty(self.padded_elements(tile.stop - tile.start), np.float32) if values is None else values
            units = slice(tile.start // encoding.unit, -(-tile.stop // encoding.unit))
            encoding.decode([section[units] for section in sections], values)
            return values

        return decode_tile

    def rows(self, payload: bytes | bytearray | memoryview) -> list[Octets]:
        """One array of bytes per section, (units, bytes of one), which share the payload's memory."""
        units = len(payload) // sum(self._format.sections)
        found, start = [], 0
        for size in self._format.sections:
            found.append(np.frombuffer(payload, np.uint8, units * size, start).reshape(units, size))
            start += units * size
        return found


def _padded(values: Floats, unit: int) -> Floats:
    if values.size % unit == 0:
        return np.ascontiguousarray(values, np.float32)
    padded = np.zeros(-(-values.size // unit) * unit, np.float32)
    padded[: values.size] = values
    return padded


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
    the noise of a full round (`tests/benchmarks/results/drops.md`). p is the `pull` to v, the `last` committed mean
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
