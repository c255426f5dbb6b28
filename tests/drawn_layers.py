"""Layers of every kind, drawn by number: what the arithmetic of a round is tried on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from peer.consensus.codec.codec import Codec

Floats = npt.NDArray[np.float32]
WIRES = ("float32", "float16", "int8", "int4", "sparse")
KINDS = ("plain", "denormal", "huge", "mixed", "zeros", "infinite", "equal")


@dataclass(frozen=True)
class DrawnLayer:
    """One layer of one part, and what a round decides of it."""

    codec: Codec
    theta: Floats
    momentum: Floats
    residual: Floats
    start: Floats
    now: Floats
    cut: int
    """Where the first of two parameters ends."""
    mean: bytes
    mine: bytes


@cache
def drawn_layer(number: int) -> DrawnLayer:
    """Every kind with every codec, again and again."""
    random = np.random.default_rng(number)
    kind, codec = KINDS[number % len(KINDS)], Codec(WIRES[number // len(KINDS) % len(WIRES)])
    size = int(random.integers(2, 5000 if codec.is_sparse else 700))
    theta, momentum, residual, start, now, mean, mine = (_values(random, kind, size) for _ in range(7))
    with np.errstate(all="ignore"):
        return DrawnLayer(
            codec, theta, momentum, residual, start, now, int(random.integers(1, size)), codec.of_means.encode(mean),
            codec.encode(mine),
        )  # fmt: skip


def _values(random: np.random.Generator, kind: str, size: int) -> Floats:
    values = random.standard_normal(size).astype(np.float32)
    with np.errstate(all="ignore"):
        if kind == "denormal":
            values *= np.float32(1e-41)
        if kind == "huge":
            values *= np.float32(2e38)
        if kind == "mixed":
            values *= np.exp2(random.integers(-140, 126, size)).astype(np.float32)
        if kind == "zeros":
            values = np.where(random.random(size) < 0.97, np.float32(-0.0), values)
        if kind == "infinite":
            values[random.random(size) < 0.01] = np.inf
        if kind == "equal":
            values = np.round(values)
    return values
