"""Is this norm usual for this peer: EDiT's anomaly test, one layer of one peer at a time (arXiv:2412.07210, §3.3).

An exponentially weighted mean m and variance M of the accepted norms, with weight α for the newest:

    d = v − m;    m ← m + α d;    M ← (1 − α) (M + α d (v − m));    z = (v − m) / √max(M, (floor · m)²)

Unlike the authors' code it begins with the first value (m = v, M = 0) instead of zeros, keeps refused values out, and
begins anew after `rejections` refusals in a row, so that a peer whose norms have changed for good is not lost.

Only + − · / and square roots on float64 in a fixed order, which give the same bits on every machine. (`sum` over floats
does not: Python 3.12 rounds it differently from 3.11. Nor does `**`, which is the C library's.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isfinite, sqrt

from peer.aggregation.aggregation_rules import AggregationRules
from peer.aggregation.peer_history import NOTHING, NormStats

ENOUGH = 3
"""Of fewer nobody can say which is the odd one."""


def z_of(stat: NormStats, value: float, standards: AggregationRules) -> float:
    """Deviations of a finite value above the mean; 0 before the warm-up is over, and where there is no deviation."""
    if stat.count < standards.warmup_rounds:
        return 0.0
    usual = deviation(stat, standards)
    return (value - stat.mean) / usual if usual > 0 else 0.0


def deviation(stat: NormStats, standards: AggregationRules) -> float:
    """The standard deviation, or its floor."""
    return max(sqrt(stat.variance), standards.deviation_floor * stat.mean)


def accepted(stat: NormStats, value: float, alpha: float) -> NormStats:
    """The statistics with one more value."""
    if stat.count == 0:
        return NormStats(value, 0.0, 1, 0)
    step = value - stat.mean
    mean = stat.mean + alpha * step
    variance = (1 - alpha) * (stat.variance + alpha * step * (value - mean))
    return NormStats(mean, variance, stat.count + 1, 0)


def refused(stat: NormStats, value: float, standards: AggregationRules) -> NormStats:
    """The statistics after an anomaly: one more refusal, or a history that begins with this value.

    The value with which it begins counts nothing in its own round. It must be finite: NaN begins nothing.
    """
    if stat.rejected >= standards.rejections and isfinite(value):
        return NormStats(value, 0.0, 1, 0)
    return replace(stat, rejected=stat.rejected + 1)


def ceiling(stat: NormStats, standards: AggregationRules) -> float | None:
    """Largest norm that counts in full by this history; None if it decides nothing yet.

    `clip` means. A history that has just seen norms rise has a mean that lags and a large deviation; what z accepts by
    it is not clipped.
    """
    if stat.count < standards.warmup_rounds or stat.mean <= 0:
        return None
    return max(standards.clip * stat.mean, stat.mean + standards.threshold * deviation(stat, standards))


FASTEST = 2.0
"""Beyond this factor in one round even what happens to all is not usual: all may explode."""
FASTEST_AT_FIRST = 1024.0
"""The same while no history decides anything: a run may begin with rounds of a single step."""


def drift(sizes: Sequence[float | None], histories: Sequence[NormStats], standards: AggregationRules) -> float:
    """How far the norms of a group have moved from what is usual for each of them: the lower median of v / m.

    Warm-ups and decays of the learning rate, and rounds of more inner steps, change norms for all alike. What all do
    is nobody's anomaly, and a history that lags behind it would accuse the honest while norms rise, and let twice the
    norm pass while they fall.
    """
    moved = [
        (size / stat.mean, stat.count)
        for size, stat in zip(sizes, histories, strict=True)
        if size is not None and isfinite(size) and size > 0 and stat.mean > 0
    ]
    if len(moved) < ENOUGH:
        return 1.0
    factor = lower_median([ratio for ratio, _ in moved])
    early = all(count < standards.warmup_rounds for _, count in moved)
    most = FASTEST_AT_FIRST if early else FASTEST
    return min(max(factor, 1 / most), most)


def drifted(stat: NormStats, factor: float) -> NormStats:
    """The statistics as they would be if every value had been `factor` times as large."""
    return replace(stat, mean=stat.mean * factor, variance=stat.variance * factor * factor)


def swarm_history(stats: Iterable[NormStats], standards: AggregationRules) -> NormStats:
    """What is usual for the layer: lower medians over the histories that decide, or over all while none does."""
    begun = [stat for stat in stats if stat.count]
    ripe = [stat for stat in begun if stat.count >= standards.warmup_rounds] or begun
    if not ripe:
        return NOTHING
    return NormStats(
        lower_median([stat.mean for stat in ripe]),
        lower_median([stat.variance for stat in ripe]),
        int(lower_median([stat.count for stat in ripe])),
        0,
    )


def lower_median(values: Sequence[float]) -> float:
    """The middle value, the lower of two."""
    return sorted(values)[(len(values) - 1) // 2]
