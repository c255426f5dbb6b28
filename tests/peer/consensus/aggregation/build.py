"""Rounds to judge, written down shortly."""

from __future__ import annotations

from collections.abc import Sequence

from peer.consensus.aggregation.aggregate import AggregationResult, aggregate
from peer.consensus.aggregation.evidence import AggregationRules, Contributor, LayerNorms
from peer.consensus.aggregation.peer_history import NormStats, PeerHistory

Figures = Sequence[float | None]
"""By members."""
ELEMENTS = 1_000_000
"""Of each layer."""


def claims(
    count: int, round: int = 1, shares: Sequence[int] = (), steps: Sequence[int] = (), roots: Sequence[bytes] = ()
) -> tuple[Contributor, ...]:
    """Members p00, p01, …: 1,000 tokens, one step, and a root of this round's each, if nothing else is said."""
    return tuple(
        Contributor(
            name(index), shares[index] if shares else 1000, steps[index] if steps else 1,
            roots[index] if roots else b"%04d%04d" % (index, round) + bytes(24),
        )
        for index in range(count)
    )  # fmt: skip


def name(index: int) -> str:
    """Sorts like the index."""
    return f"p{index:02}"


def norms(*layers: Figures) -> tuple[LayerNorms, ...]:
    """Layers without a last mean."""
    return tuple(LayerNorms(tuple(layer), (None,) * len(layer), None, ELEMENTS) for layer in layers)


def pointing(sizes: Figures, cosines: Sequence[float], direction: float = 1.0) -> LayerNorms:
    """A layer with a last mean, and the cosines with it."""
    dots = [None if size is None else size * direction * cosine for size, cosine in zip(sizes, cosines, strict=True)]
    return LayerNorms(tuple(sizes), tuple(dots), direction, ELEMENTS)


def history(
    count: int, usual: float = 1.0, variance: float = 0.0, layers: int = 1, accepted: int = 50
) -> tuple[PeerHistory, ...]:
    """Records of p00, p01, …, all of round 0 and past every warm-up."""
    stats = (NormStats(usual, variance, accepted, 0).rounded(),) * layers
    return tuple(PeerHistory(name(index), 0, stats, b"") for index in range(count))


def play(standards: AggregationRules, rounds: Sequence[Sequence[Figures]]) -> list[AggregationResult]:
    """Judges one round after the other; each is a list of layers."""
    records: tuple[PeerHistory, ...] = ()
    found = []
    for number, layers in enumerate(rounds, start=1):
        found.append(aggregate(standards, number, records, claims(len(layers[0]), number), norms(*layers)))
        records = found[-1].records
    return found
