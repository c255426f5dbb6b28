"""Screens the contributions to one layer: which are rejected, and which norm is usual among the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite, sqrt

from peer.consensus.aggregation.evidence import (
    ANOMALY,
    LARGEST,
    NONFINITE,
    SMALLEST,
    AggregationRules,
    Contributor,
    LayerFinding,
    LayerNorms,
)
from peer.consensus.aggregation.peer_history import NOTHING, NormStats


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenedLayer:
    """One layer after the tests. Tuples are in the order of the claims."""

    layer: LayerNorms
    sizes: tuple[float | None, ...]
    """Norms over steps^⅝: NaN if refused as not finite; None where nothing counts or was measured."""
    powers_of_steps: tuple[float, ...]
    """steps^⅝ of each member."""
    histories: tuple[NormStats, ...]
    """Its own, or the swarm's."""
    swarm: NormStats
    drift: float
    """How far all have moved from them: each was tested by its history times this."""
    faults: tuple[LayerFinding, ...] = ()
    scores: tuple[float | None, ...] = ()
    """z of each member by its own history; None where that decides nothing yet."""
    standing: tuple[int, ...] = ()
    """Members with a norm that was not refused."""
    unmeasured: tuple[int, ...]
    """Members that count and of which nothing was measured here."""
    newcomers: frozenset[int]
    """Members that say nothing about what is usual."""

    @property
    def usual(self) -> float | None:
        """Lower median of the norms that stand, if there are enough. Zeros are left out: half of the members may give
        nothing. Newcomers are held against what the others have, be they ever so few."""
        sizes = self._telling
        return lower_median(sizes) if sizes else None

    @property
    def full(self) -> float | None:
        """The norm that weights are relative to: what is usual; of two that tell it the larger, since one of two that
        gives next to nothing must not take their weight from all others."""
        sizes = self._telling
        return max(sizes) if len(sizes) == 2 else self.usual

    @property
    def is_told_by_two(self) -> bool:
        """Of two nobody can say which is the odd one."""
        return len(self._telling) == 2

    @property
    def _telling(self) -> list[float]:
        telling = [member for member in self.standing if member not in self.newcomers]
        if len(telling) < ENOUGH and not self.newcomers:
            return []
        return [size for size in (self.sizes[member] for member in telling) if size]

    @property
    def sizes_standing(self) -> tuple[float, ...]:
        """In the order of `standing`."""
        return tuple(size for size in (self.sizes[member] for member in self.standing) if size is not None)

    @property
    def refused_all(self) -> bool:
        """Whether something was measured here and all of it was refused."""
        return not self.standing and any(size is not None for size in self.sizes)

    def without(self, members: Collection[int]) -> ScreenedLayer:
        """As if these had been refused here, too."""
        return replace(
            self,
            standing=tuple(member for member in self.standing if member not in members),
            unmeasured=tuple(member for member in self.unmeasured if member not in members),
        )


def screen(
    standards: AggregationRules, index: int, layer: LayerNorms, claims: Sequence[Contributor], counted: frozenset[int],
    own: Sequence[NormStats], swarm: NormStats, elsewhere: Collection[int] = (),
    newcomers: frozenset[int] = frozenset(), jumped: Collection[int] = (),
) -> ScreenedLayer:  # fmt: skip
    """Tests layer `index`: finite, then z against the peer's history, then the floor against free riders.

    Only members in `counted` are looked at. Whoever has no history is tested by the `swarm`'s. Who fails a test has no
    influence on the tests after it. `elsewhere` are outliers in some layer: in all others half the threshold holds.
    `jumped` are refused in any case. `newcomers` tell nothing about what is usual.
    """
    powers = tuple(power_of(claim.steps) for claim in claims)
    sizes = tuple(_size(layer, member, power) if member in counted else None for member, power in enumerate(powers))
    histories = tuple(
        stat if stat.count else NormStats(swarm.mean, swarm.variance, swarm.count, stat.rejected) for stat in own
    )
    blank = tuple(member for member in sorted(counted) if sizes[member] is None)
    screened = ScreenedLayer(
        layer=layer, sizes=sizes, powers_of_steps=powers, histories=histories, swarm=swarm, unmeasured=blank,
        drift=drift([None if member in newcomers else size for member, size in enumerate(sizes)], own, standards),
        newcomers=newcomers,
    )  # fmt: skip
    ripe = frozenset(member for member, stat in enumerate(own) if stat.count >= standards.warmup_rounds)
    return _without_riders(standards, index, _without_outliers(standards, index, screened, elsewhere, jumped, ripe))


def power_of(steps: int) -> float:
    """steps^⅝, by roots alone, which have the same bits everywhere. How far AdamW and Muon move in so many steps lies
    between the root of a walk at random and the steps of a straight one."""
    root = sqrt(max(1, steps))
    return root * sqrt(sqrt(root))


def _size(layer: LayerNorms, member: int, power_of_steps: float) -> float | None:
    norm, dot = layer.norms[member], layer.dots[member]
    if norm is None:
        return None
    if not 0 <= norm <= LARGEST or not isfinite(dot or 0.0):
        return float("nan")
    return norm / power_of_steps if norm >= SMALLEST * power_of_steps else 0.0


def _without_outliers(
    standards: AggregationRules, index: int, screened: ScreenedLayer, elsewhere: Collection[int],
    jumped: Collection[int], ripe: Collection[int],
) -> ScreenedLayer:  # fmt: skip
    faults, standing = [], []
    scores: list[float | None] = [None] * len(screened.sizes)
    for member, size in enumerate(screened.sizes):
        if size is None:
            continue
        if not isfinite(size):
            text = f"norm {screened.layer.norms[member]:.4g}, inner product {screened.layer.dots[member] or 0.0:.4g}"
            faults.append(LayerFinding(member, NONFINITE, index, float("inf"), 0.0, text))
            continue
        history = drifted(screened.histories[member], screened.drift)
        z = z_of(history, size, standards)
        factor = STRANGERS if member not in ripe else 0.5 if member in elsewhere else 1.0
        threshold = SINGLE_LAYER * factor * standards.threshold
        if member in ripe:
            scores[member] = z
        if z > threshold or member in jumped:
            text = f"norm {size:.4g} where {history.mean:.4g} is usual (z {z:.4g})"
            faults.append(LayerFinding(member, ANOMALY, index, z / standards.threshold, 0.0, text, outlier=True))
        else:
            standing.append(member)
    return replace(screened, faults=tuple(faults), standing=tuple(standing), scores=tuple(scores))


def jumps(standards: AggregationRules, screened: Sequence[ScreenedLayer]) -> frozenset[int]:
    """Members whose whole contribution is unusual: the lower median of z over the layers is above the threshold. Where
    a fragment is one layer, that may be one which varies more."""
    found, threshold = set(), standards.threshold * (ONE_LAYER if len(screened) == 1 else 1.0)
    for member, of_layers in enumerate(zip(*(item.scores for item in screened), strict=True)):
        scores = [score for score in of_layers if score is not None]
        if scores and lower_median(scores) > threshold:
            found.add(member)
    return frozenset(found)


def _without_riders(standards: AggregationRules, index: int, screened: ScreenedLayer) -> ScreenedLayer:
    usual = screened.usual
    if usual is None:
        return screened
    least = standards.floor * usual
    riders = []
    for member, size in zip(screened.standing, screened.sizes_standing, strict=True):
        if size < least:
            text = f"norm {size:.4g} where {usual:.4g} is usual in the round: a free rider"
            riders.append(LayerFinding(member, ANOMALY, index, least / size if size else float("inf"), 0.0, text))
    left = screened.without({fault.member for fault in riders})
    return replace(left, faults=screened.faults + tuple(riders))


SINGLE_LAYER = 5.0
"""Times the threshold for a single layer, which varies more from round to round than the whole model does."""
ONE_LAYER = 2.0
"""Times the threshold where a contribution is nothing but one layer."""
STRANGERS = 2.0
"""Times the threshold for who has no history of its own: its text and its speed may be unlike the others'."""
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
    if stat.count == 0:
        return NormStats(value, 0.0, 1, 0)
    alpha = max(alpha, 1 / (stat.count + 1))  # the plain mean of the first values: a run begins with short rounds
    step = value - stat.mean
    mean = stat.mean + alpha * step
    variance = (1 - alpha) * (stat.variance + alpha * step * (value - mean))
    return NormStats(mean, variance, stat.count + 1, 0)


def refused(stat: NormStats, value: float, standards: AggregationRules) -> NormStats:
    """The statistics after an anomaly: one more refusal, or with the last one a history that begins with this value.

    The value with which it begins counts nothing in its own round. It must be finite: NaN begins nothing.
    """
    if stat.rejected + 1 >= standards.rejections and isfinite(value):
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
    """How far the norms of a group have moved from what is usual for each of them: the lower median of v / m; of two,
    as far as both have moved the same way.

    Warm-ups and decays of the learning rate, and rounds of more inner steps, change norms for all alike. What all do
    is nobody's anomaly, and a history that lags behind it would accuse the honest while norms rise, and let twice the
    norm pass while they fall.
    """
    moved = [
        (size / stat.mean, stat.count)
        for size, stat in zip(sizes, histories, strict=True)
        if size is not None and isfinite(size) and size > 0 and stat.mean > 0
    ]
    if len(moved) < 2:
        return 1.0
    ratios = [ratio for ratio, _ in moved]
    # One of two that gives next to nothing must not make the other's norm unusual.
    factor = lower_median(ratios) if len(moved) >= ENOUGH else max(min(ratios), min(1.0, max(ratios)))
    early = all(count < standards.warmup_rounds for _, count in moved)
    most = FASTEST_AT_FIRST if early else FASTEST
    return min(max(factor, 1 / most), most)


def drifted(stat: NormStats, factor: float) -> NormStats:
    """The statistics as they would be if every value had been `factor` times as large."""
    if factor == 1.0:
        return stat
    return NormStats(stat.mean * factor, stat.variance * factor * factor, stat.count, stat.rejected)


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
