"""What is judged: who gave how much, and what the reducers measured of it."""

from __future__ import annotations

from dataclasses import dataclass

LARGEST = 1e18
"""Norms above it are refused like infinite ones: their squares have no float32."""
SMALLEST = 1e-30
"""Norms below it are taken for zero."""


@dataclass(frozen=True, slots=True)
class Contributor:
    """One member of a round."""

    peer: str
    share: int
    """Tokens times discounts; 0 counts nothing."""
    steps: int
    """Inner steps behind the contribution, at least 1, already capped: a norm is held against their square root."""
    root: bytes
    """Merkle root of the encoded parts; empty if it gave nothing."""


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """One layer of the model, by members in the order of the claims. Any figure may be NaN or infinite."""

    norms: tuple[float | None, ...]
    """L2 norm of the decoded layer as it came; None where nothing was measured."""
    dots: tuple[float | None, ...]
    """Inner product with the last committed mean of this layer."""
    direction: float | None
    """L2 norm of that mean; None if there is none yet."""

    @property
    def heading(self) -> float | None:
        """`direction`, if it is a norm that a model can have."""
        return self.direction if self.direction is not None and 0 <= self.direction <= LARGEST else None
