"""The codec in torch, on the device where the numbers lie: the same bytes and bits as `peer.consensus.codec.codec`.

Nothing here reads a value on the host, which would wait for the GPU. Divisors are tensors: for a plain number a GPU
multiplies by its reciprocal, which rounds differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from peer.consensus.codec.blockwise import BLOCK, BLOCK_MAX, FLOAT16_MAX, NAN_SCALE
from peer.consensus.codec.codec import Codec
from peer.consensus.codec.topk import CHUNK, IN_CONTRIBUTION, IN_MEAN

MAGNITUDE = 0x7FFFFFFF
INFINITY = 0x7F800000
"""The bits of float32's infinity: without their signs floats are ordered as their bits are, NaN behind it."""
PLACE_BITS = 12
"""Of a place in a chunk."""


class TensorFormat(Protocol):
    """Units of elements and their sections of bytes, as `peer.consensus.codec.blockwise.Format`."""

    def encode(self, values: Tensor) -> Sequence[Tensor]:
        """Sections, (units, bytes of one) in uint8, of the float32 values of whole units."""

    def decode(self, sections: Sequence[Tensor], values: Tensor) -> None:
        """Into `values`, float32, of whole units."""


@dataclass(frozen=True)
class DenseTensor:
    """Every number by itself."""

    dtype: torch.dtype
    largest: float = 0.0

    def encode(self, values: Tensor) -> Sequence[Tensor]:
        within = values.clamp(-self.largest, self.largest) if self.largest else values
        return (_octets(within.to(self.dtype), self.dtype.itemsize),)

    def decode(self, sections: Sequence[Tensor], values: Tensor) -> None:
        values.copy_(sections[0].reshape(-1).view(self.dtype))


@dataclass(frozen=True)
class BlockQuantisedTensor:
    """Blocks of 64 integers from −`most` to `most` that share a scale."""

    most: int

    def encode(self, values: Tensor) -> Sequence[Tensor]:
        scales, levels = quantised(values.view(-1, BLOCK), self.most)
        if self.most > 7:
            return _octets(scales, 2), levels.view(torch.uint8)
        nibbles = levels.add_(8).view(torch.uint8).view(len(levels), -1, 2)
        return _octets(scales, 2), nibbles[:, :, 0] | nibbles[:, :, 1] << 4

    def decode(self, sections: Sequence[Tensor], values: Tensor) -> None:
        scales, packed = sections
        if self.most > 7:
            values.copy_(packed.reshape(-1).view(torch.int8))
        else:
            table, pairs = _pairs(values.device), values.view(torch.int64)
            torch.index_select(table, 0, packed.reshape(-1).to(torch.int32), out=pairs)
        values.view(-1, BLOCK).mul_(_scales_in(scales))


@dataclass(frozen=True)
class TopKSignedTensor:
    """The `kept` largest of a chunk, each as one of two magnitudes with a sign."""

    kept: int

    def encode(self, values: Tensor) -> Sequence[Tensor]:
        rows = values.view(-1, CHUNK)
        places = largest(rows, self.kept)
        chosen = rows.gather(1, places)
        levels, high = _two_levels(chosen.abs())
        codes = (high | (chosen.view(torch.int32) < 0).to(torch.uint8) << 1).view(len(rows), -1, 4)
        fours = codes[:, :, 0] | codes[:, :, 1] << 2 | codes[:, :, 2] << 4 | codes[:, :, 3] << 6
        return _octets(levels, 4), _packed_places(places), fours

    def decode(self, sections: Sequence[Tensor], values: Tensor) -> None:
        levels, places = _scales_in(sections[0]), _unpacked_places(sections[1])
        shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=values.device)  # made there: a copy would be awaited
        codes = (sections[2][:, :, None] >> shifts & 3).view(len(places), -1)
        chosen = torch.where(codes & 1 != 0, levels[:, 1:], levels[:, :1])
        _scatter(places, codes, torch.where(codes >= 2, -chosen, chosen), values)


@dataclass(frozen=True)
class TopKInt8Tensor:
    """Means alone are in this format, and no peer's trainer encodes one."""

    kept: int

    def encode(self, values: Tensor) -> Sequence[Tensor]:
        raise NotImplementedError("a shard owner encodes means")

    def decode(self, sections: Sequence[Tensor], values: Tensor) -> None:
        integers = sections[2].view(torch.int8)
        chosen = integers.to(torch.float32) * _scales_in(sections[0])
        _scatter(_unpacked_places(sections[1]), sections[2], chosen, values)


FORMATS: dict[str, TensorFormat] = {
    "float32": DenseTensor(torch.float32),
    "float16": DenseTensor(torch.float16, largest=FLOAT16_MAX),
    "int8": BlockQuantisedTensor(127),
    "int4": BlockQuantisedTensor(7),
    "sparse": TopKSignedTensor(IN_CONTRIBUTION),
    "sparse mean": TopKInt8Tensor(IN_MEAN),
}

DecodeSlice = Callable[[slice, Tensor], Tensor]
"""Decodes a slice of a part, from the beginning of a unit on, into a buffer of whole units; gives its elements."""


@dataclass(frozen=True)
class TorchCodec:
    """What a `Codec` does, of tensors."""

    codec: Codec

    @cached_property
    def _format(self) -> TensorFormat:
        return FORMATS[self.codec.wire]

    def encode(self, values: Tensor, tile: int) -> Tensor:
        """The bytes of a part, uint8 where the values lie; `tile` elements at a time, whole units but for the last."""
        payload = torch.empty(self.codec.part_bytes(values.numel()), dtype=torch.uint8, device=values.device)
        sections = self._sections(payload)
        for first in range(0, values.numel(), tile):
            piece = self._padded(values[first : first + tile])
            for section, encoded in zip(sections, self._format.encode(piece), strict=True):
                unit = first // self.codec.unit
                section[unit : unit + len(encoded)] = encoded
        return payload

    def opened(self, payload: Tensor) -> DecodeSlice:
        """What decodes the slices of a part; `payload` is uint8 on the device of the buffers."""
        sections, unit = self._sections(payload), self.codec.unit

        def decode(where: slice, buffer: Tensor) -> Tensor:
            values = buffer[: self.codec.padded_elements(where.stop - where.start)]
            units = slice(where.start // unit, -(-where.stop // unit))
            self._format.decode([section[units] for section in sections], values)
            return values[: where.stop - where.start]

        return decode

    def _padded(self, values: Tensor) -> Tensor:
        whole = self.codec.padded_elements(values.numel())
        return values if whole == values.numel() else torch.nn.functional.pad(values, (0, whole - values.numel()))

    def _sections(self, payload: Tensor) -> list[Tensor]:
        """One per section, (units, bytes of one), that share the payload's memory."""
        units, found, start = payload.numel() // sum(self.codec.sections), [], 0
        for size in self.codec.sections:
            found.append(payload[start : start + units * size].view(units, size))
            start += units * size
        return found


def quantised(rows: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """(the upper halves of float32 scales, int16, one per row; integers from −`most` to `most`, int8)."""
    largest = (rows.view(torch.int32) & MAGNITUDE).amax(dim=1)
    finite = largest < INFINITY
    kept = torch.where(finite, largest, 0).view(torch.float32).clamp_(max=BLOCK_MAX)
    scales = (kept / torch.full_like(kept[:1], most)).view(torch.int32).add_(0xFFFF) >> 16
    steps = (scales << 16).view(torch.float32)
    levels = rows.clamp(-BLOCK_MAX, BLOCK_MAX).div_(torch.where(steps > 0, steps, 1)[:, None]).round_().to(torch.int8)
    return torch.where(finite, scales, NAN_SCALE).to(torch.int16), torch.where(finite[:, None], levels, 1)


def largest(rows: Tensor, kept: int) -> Tensor:
    """Where the `kept` largest magnitudes of each row are, ascending; of equal ones the first.

    Of a row with fewer that are not zero, the last of those again and again.
    """
    magnitudes = (rows.view(torch.int32) & MAGNITUDE).to(torch.int64)
    before = torch.arange(CHUNK - 1, -1, -1, device=rows.device)
    keys = (magnitudes << PLACE_BITS | before).topk(kept, dim=1, sorted=False).values
    there = keys >> PLACE_BITS != 0
    places = torch.where(there, CHUNK - 1 - (keys & CHUNK - 1), CHUNK).sort(dim=1).values
    last = there.sum(dim=1, keepdim=True) - 1
    ranks = torch.minimum(torch.arange(kept, device=rows.device), last)
    return torch.where(last < 0, 0, places.gather(1, ranks.clamp_(min=0)))


def _octets(values: Tensor, size: int) -> Tensor:
    return values.contiguous().view(torch.uint8).view(-1, size)


def _scales_in(section: Tensor) -> Tensor:
    """The float32 values of the bfloat16 in each row, in as many columns."""
    return (section.contiguous().view(torch.int16).to(torch.int32) << 16).view(torch.float32)


def _two_levels(magnitudes: Tensor) -> tuple[Tensor, Tensor]:
    """(the upper halves of two float32 levels per row, int16; which of them each is), see
    `peer.consensus.codec.topk`."""
    ordered = magnitudes.sort(dim=1).values
    finite = ordered[:, -1:].isfinite()  # NaN comes last
    ordered = torch.where(finite, ordered, 0).clamp_(max=BLOCK_MAX)
    middle = (ordered[:, :1] + ordered[:, -1:]) / torch.full_like(ordered[:1, :1], 2)
    low, kept = (ordered <= middle).sum(dim=1, keepdim=True), ordered.shape[1]
    lower = (low - 1) >> 1
    upper = torch.where(low < kept, low + (kept - low - 1 >> 1), lower)
    both = ordered.gather(1, torch.cat((lower, upper), dim=1))
    levels = torch.where(finite, both.view(torch.int32) + 0x8000 >> 16, NAN_SCALE)
    return levels.to(torch.int16), (magnitudes > middle).to(torch.uint8)


def _packed_places(places: Tensor) -> Tensor:
    """Two numbers below 4,096 in three bytes."""
    pairs = places[:, ::2] | places[:, 1::2] << PLACE_BITS
    octets = torch.stack((pairs & 255, pairs >> 8 & 255, pairs >> 16), dim=2)
    return octets.to(torch.uint8).view(len(places), -1)


def _unpacked_places(section: Tensor) -> Tensor:
    first, middle, last = (section[:, at::3].to(torch.int64) for at in range(3))
    return torch.stack((first | (middle & 15) << 8, middle >> 4 | last << 4), dim=2).view(len(section), -1)


def _scatter(places: Tensor, said: Tensor, chosen: Tensor, values: Tensor) -> None:
    """Everything else in `values` is zero; a row whose places are not in order is NaN."""
    further = places[:, 1:] - places[:, :-1]
    agrees = ((further > 0) | ((further == 0) & (said[:, 1:] == said[:, :-1]))).all(dim=1, keepdim=True)
    rows = values.view(-1, CHUNK).zero_().scatter_(1, places, chosen)
    rows.masked_fill_(~agrees, torch.nan)


def _pairs(device: torch.device) -> Tensor:
    """The two integers of each byte as float32 side by side, in one int64."""
    if device not in _PAIRS:
        octets = torch.arange(256, device=device)
        both = torch.stack(((octets & 15) - 8, (octets >> 4) - 8), dim=1).to(torch.float32)
        _PAIRS[device] = both.view(torch.int64).view(-1)
    return _PAIRS[device]


_PAIRS: dict[torch.device, Tensor] = {}
