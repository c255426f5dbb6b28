"""Chance by a seed: the same draws for the same words, on every machine."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

DRAWN_AT_A_TIME = 512

T = TypeVar("T")


class Dice:
    """Draws of one part of a simulation. `words` name the part, so that a draw more in one part moves no other."""

    def __init__(self, seed: int, *words: object) -> None:
        name = " ".join(map(str, words)).encode()
        self._generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name), len(name)]))
        self._drawn: list[float] = []

    def random(self) -> float:
        """Uniform, 0 ≤ x < 1."""
        if not self._drawn:
            self._drawn = self._generator.random(DRAWN_AT_A_TIME).tolist()
        return self._drawn.pop()

    def uniform(self, low: float, high: float) -> float:
        """Uniform between two numbers."""
        return low + (high - low) * self.random()

    def below(self, count: int) -> int:
        """An index: 0 ≤ i < count."""
        return int(self.random() * count)

    def choose(self, items: Sequence[T]) -> T:
        """One of them."""
        return items[self.below(len(items))]

    def lognormal(self, spread: float) -> float:
        """A factor with median 1 whose logarithm has this standard deviation."""
        return math.exp(spread * self.normal()) if spread else 1.0

    def normal(self) -> float:
        """Mean 0, standard deviation 1 (Box and Muller 1958)."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.random()))
        return radius * math.cos(2.0 * math.pi * self.random())

    def exponential(self, mean: float) -> float:
        """The time until the next of events that come independently, so often."""
        return -mean * math.log(1.0 - self.random())
