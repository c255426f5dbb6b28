"""Finds the micro-batch and the attention kernel by trying them. Pure but for what `attempt` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

BETTER = 1.03
"""A change must be worth so much, or noise would decide."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One way that has room."""

    sequences: int
    attention: str
    seconds: float
    """Of forward, backward and its share of the optimizer for one micro-batch."""
    peak_bytes: int

    @property
    def sequences_per_s(self) -> float:
        return self.sequences / self.seconds


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The fastest trial, and what memory it takes."""

    best: Trial
    fixed_bytes: int
    sequence_bytes: int


Attempt = Callable[[int, str], Trial | None]
"""Sequences and attention kernel, to what it took; None if there is no room, or no such kernel."""


def find(attempt: Attempt, wanted: int, most: int, attentions: Sequence[str]) -> SearchResult | None:
    """From the spec's own micro-batch down by halves until one has room, then up by doubling while that is faster.

    `wanted`: sequences of the spec's micro-batch; `most`: of its whole inner step; `attentions`: kernels, the usual
    one first. None if not even one sequence has room.
    """
    usual, *others = attentions
    sequences = wanted
    while (best := attempt(sequences, usual)) is None and sequences > 1:
        sequences = (sequences + 1) // 2
    if best is None:
        return None
    has_shrunk = best.sequences < wanted
    while not has_shrunk and best.sequences < most:
        larger = attempt(min(most, 2 * best.sequences), usual)
        if larger is None or larger.sequences_per_s < BETTER * best.sequences_per_s:
            break
        best = larger
    for attention in others:
        other = attempt(best.sequences, attention)
        if other is not None and other.sequences_per_s > BETTER * best.sequences_per_s:
            best = other
    return SearchResult(best=best, **_memory(attempt, best))


def _memory(attempt: Attempt, best: Trial) -> dict[str, int]:
    """A straight line through the peaks of one sequence and of the best."""
    if not best.peak_bytes:
        return {"fixed_bytes": 0, "sequence_bytes": 0}
    one = attempt(1, best.attention) if best.sequences > 1 else None
    if one is None:
        return {"fixed_bytes": 0, "sequence_bytes": -(-best.peak_bytes // best.sequences)}
    each = max(1, (best.peak_bytes - one.peak_bytes) // (best.sequences - 1))
    return {"fixed_bytes": max(0, best.peak_bytes - best.sequences * each), "sequence_bytes": each}
