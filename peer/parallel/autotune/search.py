"""Finds the micro-batch and the attention kernel by trying them. Pure but for what `attempt` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

BETTER = 1.03
"""A change must be faster by this factor; otherwise noise would decide."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A configuration that fits, as it was measured."""

    sequences: int
    attention: str
    seconds: float
    """Seconds of forward, backward and a share of the optimizer's step for one micro-batch."""
    peak_bytes: int

    @property
    def sequences_per_s(self) -> float:
        return self.sequences / self.seconds


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The fastest trial, and the memory that it needs."""

    best: Trial
    fixed_bytes: int
    sequence_bytes: int


Attempt = Callable[[int, str], Trial | None]
"""Called with a number of sequences and an attention kernel. Returns the trial; None if it does not fit, or if the
kernel does not exist."""


def find(attempt: Attempt, wanted: int, most: int, attentions: Sequence[str]) -> SearchResult | None:
    """Try the spec's own micro-batch, halve it until it fits, then double it while that is faster.

    `wanted` is the number of sequences in the spec's micro-batch, `most` that in its whole inner step. `attentions`
    lists kernels, the usual one first. None if not even one sequence fits.
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
    """The fixed memory and the memory per sequence, on a straight line through the peaks of one sequence and of the
    best trial."""
    if not best.peak_bytes:
        return {"fixed_bytes": 0, "sequence_bytes": 0}
    one = attempt(1, best.attention) if best.sequences > 1 else None
    if one is None:
        return {"fixed_bytes": 0, "sequence_bytes": -(-best.peak_bytes // best.sequences)}
    each = max(1, (best.peak_bytes - one.peak_bytes) // (best.sequences - 1))
    return {"fixed_bytes": max(0, best.peak_bytes - best.sequences * each), "sequence_bytes": each}
