"""Several sources as one: the position of a window in a shard alone decides which source it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from peer.consensus.protocol.rules import DATA_SHARDS
from peer.training.data.chat.token_flags import predicted_tokens
from peer.training.data.source import Source
from peer.training.data.tokenizer import Tokens

PERIOD = 1 << 10
"""Windows of a shard after which the pattern of its sources begins anew: weights count in steps of this."""


@dataclass(frozen=True)
class PartOfMix:
    """One of the sources, and its share of all windows."""

    name: str
    weight: float
    """Of 1."""
    source: Source


class MixedSource:
    """Several sources as one. In each shard they alternate in a pattern of their weights that never changes.

    A shard in which a source has nothing is read less often, in proportion, so that over all shards each source has its
    share. The pattern follows from the sizes of the shards: peers with the same data have the same one.
    """

    def __init__(self, parts: Sequence[PartOfMix]) -> None:
        self.parts = tuple(parts)
        self._shares: dict[int, list[Fraction]] = {}
        for shard in range(DATA_SHARDS):
            shares = [Fraction(part.weight) * _share(part.source, shard) for part in parts]
            if any(shares):
                self._shares[shard] = shares
        windows = sum(sum(part.source.windows.values()) for part in parts)
        self.windows: Mapping[int, int] = {
            shard: max(1, round(windows * sum(shares))) for shard, shares in self._shares.items()
        }
        self._pattern = cache(self._made)

    def window(self, shard: int, position: int) -> Tokens:
        """Tokens (T) of the source whose turn it is: its own next window of the shard."""
        turn, place = divmod(position, PERIOD)
        turns, before = self._pattern(shard)
        number = int(turns[place])
        counts = before[-1]
        return self.parts[number].source.window(shard, turn * int(counts[number]) + int(before[place, number]))

    def held_out(self) -> npt.NDArray[np.int64]:
        """Tokens (B, T) of all of them, in their order."""
        return np.concatenate([part.source.held_out() for part in self.parts])

    def _made(self, shard: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The source at each position (PERIOD), and how many turns each has had before it (PERIOD + 1, sources)."""
        counts = _counts(self._shares[shard])
        # The k-th of n turns belongs at (k + ½) / n of the period; so none is late by more than a turn or two.
        ideal = [(Fraction(2 * k + 1, 2 * n), number) for number, n in enumerate(counts) for k in range(n)]
        turns = np.asarray([number for _, number in sorted(ideal)])
        before = np.zeros((PERIOD + 1, len(counts)), np.int64)
        np.cumsum(turns[:, None] == np.arange(len(counts)), axis=0, out=before[1:])
        return turns, before


def _share(source: Source, shard: int) -> Fraction:
    """The share of a source's windows that lie in the shard."""
    return Fraction(source.windows.get(shard, 0), sum(source.windows.values()))


def _counts(shares: Sequence[Fraction]) -> list[int]:
    """Turns of each source in a period: at least one if it has anything; the largest gets the rest."""
    total = sum(shares)
    counts = [max(1, round(PERIOD * share / total)) if share else 0 for share in shares]
    counts[counts.index(max(counts))] += PERIOD - sum(counts)
    return counts


@dataclass(frozen=True)
class HeldOutSets:
    """The held-out sets of a source, or of the sources of a mix. The loss of a run is their mean by the weights of
    the sources."""

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
        """The number of predicted tokens in all of them."""
        return sum(map(predicted_tokens, self.tokens))

    def mean(self, losses: Sequence[float]) -> float:
        return sum(part.weight * loss for part, loss in zip(self.parts, losses, strict=True))

    def by_source(self, losses: Sequence[float]) -> dict[str, float]:
        """By the name of the source; empty where there is but one."""
        named = {part.name: loss for part, loss in zip(self.parts, losses, strict=True)}
        return named if len(named) > 1 else {}
