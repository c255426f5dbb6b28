"""What losses are measured on: a set of windows from each source of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from peer.data.mixed_source import MixedSource, PartOfMix
from peer.data.source import Source
from peer.data.token_flags import predicted_tokens


@dataclass(frozen=True)
class HeldOutSets:
    """Those of a source, or of the sources of a mix. The loss of a run is the mean over them by their weights."""

    parts: tuple[PartOfMix, ...]

    @classmethod
    def of(cls, source: Source) -> HeldOutSets:
        return cls(source.parts if isinstance(source, MixedSource) else (PartOfMix("", 1.0, source),))

    @cached_property
    def tokens(self) -> tuple[Tensor, ...]:
        """Of each (B, context + 1), int64, on the CPU; the same for every peer with the same data."""
        return tuple(torch.from_numpy(part.source.held_out()) for part in self.parts)

    @property
    def predicted(self) -> int:
        """Tokens of all of them that are predicted."""
        return sum(map(predicted_tokens, self.tokens))

    def mean(self, losses: Sequence[float]) -> float:
        return sum(part.weight * loss for part, loss in zip(self.parts, losses, strict=True))

    def by_source(self, losses: Sequence[float]) -> dict[str, float]:
        """By the name of the source; empty where there is but one."""
        named = {part.name: loss for part, loss in zip(self.parts, losses, strict=True)}
        return named if len(named) > 1 else {}
