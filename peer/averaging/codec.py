"""How numbers travel: encode a part once, decode the same bytes everywhere to the same float32 values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
ELEMENT_TYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
FLOAT16_MAX = 65504.0


@dataclass(frozen=True)
class Codec:
    """float32 is exact; float16 rounds to nearest and saturates, so that a large value never becomes infinite."""

    wire: str

    def part_bytes(self, elements: int) -> int:
        """Encoded size of a part."""
        return elements * int(ELEMENT_TYPES[self.wire].itemsize)

    def encode(self, values: Floats) -> bytes:
        """The bytes of a part. NaN stays NaN: judging it is not the codec's business."""
        if self.wire == "float16":
            values = np.clip(values, -FLOAT16_MAX, FLOAT16_MAX)
        encoded: bytes = values.astype(ELEMENT_TYPES[self.wire]).tobytes()
        return encoded

    def decode(self, payload: bytes | memoryview) -> Floats:
        """float32 values of a part; the same on every processor."""
        encoded: npt.NDArray[Any] = np.frombuffer(payload, ELEMENT_TYPES[self.wire])
        return encoded.astype(np.float32)


def weighted_mean(parts: Sequence[Floats], weights: Sequence[int]) -> Floats:
    """Σ (wᵢ/Σw)·xᵢ in float32, separate multiply and add in the order given, so that an audit can repeat it."""
    total = sum(weights)
    assert total > 0, "somebody must weigh something"
    mean = np.zeros_like(parts[0])
    for values, weight in zip(parts, weights, strict=True):
        mean += values * np.float32(weight / total)
    return mean
