"""The anomaly test on one peer's norms, against figures that were computed by hand and elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from peer.consensus.aggregation.evidence import AggregationRules
from peer.consensus.aggregation.outliers import accepted, ceiling, lower_median, refused, swarm_history, z_of
from peer.consensus.aggregation.peer_history import NOTHING, NormStats

BARE = AggregationRules(alpha=0.2, warmup_rounds=5, deviation_floor=0.0)
"""The golden values are without the variance floor."""
NORMS = (1, 1.1, 0.9, 1.05, 0.95, 1, 1.02, 0.98, 10, 1)


def watch(
    standards: AggregationRules, values: Sequence[float], stat: NormStats = NOTHING
) -> tuple[list[float], NormStats]:
    """z of each value, and the statistics after the last; what is above the threshold is refused."""
    scores = []
    for value in values:
        scores.append(z_of(stat, value, standards))
        if scores[-1] > standards.threshold or not math.isfinite(value):
            stat = refused(stat, value, standards)
        else:
            stat = accepted(stat, value, standards.alpha)
    return scores, stat


def test_golden_values() -> None:
    """First-value start and rejection: the ninth norm is flagged, and the tenth is judged as if it had not been."""
    scores, stat = watch(BARE, NORMS)
    assert scores[:5] == [0.0] * 5
    assert scores[8] == pytest.approx(212.46, abs=0.01)
    assert scores[9] == pytest.approx(0.0189, abs=0.0005)
    assert stat.mean == pytest.approx(0.99936, abs=5e-6)
    assert (stat.count, stat.rejected) == (9, 0)


def test_the_floor_of_the_deviation_forgives_even_peers_a_trifle() -> None:
    """A peer whose norms hardly vary is not refused for 5 % more, nor is one pardoned for ten times as much."""
    even = watch(BARE, [1.0, 1.001] * 5)[1]
    assert z_of(even, 1.05, BARE) > 30
    floored = AggregationRules(alpha=0.2, warmup_rounds=5, deviation_floor=0.1)
    assert z_of(even, 1.05, floored) == pytest.approx(0.5, abs=0.01)
    assert z_of(even, 10.0, floored) == pytest.approx(90, abs=0.1)
    assert watch(floored, NORMS)[0][8] == pytest.approx(90.08, abs=0.01)


def test_nothing_is_decided_before_the_warm_up() -> None:
    """Whatever comes."""
    scores, stat = watch(BARE, [1, 1, 1, 1000, 1])
    assert scores == [0.0] * 5
    assert stat.count == 5


def test_only_large_norms_are_unusual() -> None:
    """A small one has a negative z."""
    assert z_of(watch(BARE, NORMS[:8])[1], 0.001, BARE) < 0


def test_after_so_many_refusals_in_a_row_the_history_starts_anew() -> None:
    """The value with which it starts is refused as well; the next one is not, for a warm-up is on again."""
    usual = watch(BARE, [1.0, 1.1] * 5)[1]
    scores, stat = watch(BARE, [10.0] * 2, usual)
    assert min(scores) > BARE.threshold
    assert (stat.mean, stat.rejected) == (usual.mean, 2)
    scores, stat = watch(BARE, [10.0], stat)
    assert scores[0] > BARE.threshold
    assert stat == NormStats(10.0, 0.0, 1, 0)
    assert watch(BARE, [10.0] * 5, stat)[0] == [0.0] * 5


def test_refusals_are_counted_in_a_row() -> None:
    """One usual norm in between, and the count begins again."""
    stat = watch(BARE, [1.0, 1.1] * 5 + [10.0] * 2)[1]
    assert stat.rejected == 2
    assert watch(BARE, [1.0], stat)[1].rejected == 0


def test_a_history_never_begins_with_what_is_no_number() -> None:
    """However often it comes."""
    usual = watch(BARE, [1.0, 1.1] * 5)[1]
    stat = watch(BARE, [math.nan, math.inf] * 4, usual)[1]
    assert (stat.mean, stat.variance, stat.rejected) == (usual.mean, usual.variance, 8)


def test_the_swarms_history_is_that_of_the_peer_in_the_middle() -> None:
    """Of those past the warm-up if there are any, so that newcomers do not hide what is known."""
    ripe = [NormStats(mean, 0.1 * mean, 10 + int(mean), 0) for mean in (1.0, 2.0, 3.0, 40.0)]
    young = [NormStats(100.0, 9.0, 2, 0)] * 5
    assert swarm_history([*young, NOTHING, *ripe], BARE) == NormStats(2.0, 0.2, 12, 0)
    assert swarm_history([*young, NOTHING], BARE) == young[0]
    assert swarm_history([NOTHING], BARE) == NOTHING


def test_the_ceiling_is_a_multiple_of_the_mean_or_what_z_accepts() -> None:
    """A young history whose mean lags behind rising norms must not clip what z takes for usual."""
    assert ceiling(NormStats(1.0, 0.0, 4, 0), BARE) is None
    assert ceiling(NormStats(0.0, 0.0, 9, 0), BARE) is None
    assert ceiling(NormStats(1.0, 0.01, 5, 0), BARE) == 3.0
    rising = watch(BARE, [0.05, 2.56, 6.32, 6.32, 6.32])[1]
    assert z_of(rising, 6.32, BARE) < BARE.threshold
    limit = ceiling(rising, BARE)
    assert limit is not None
    assert limit > 6.32


@pytest.mark.parametrize(("values", "middle"), [([1.0], 1.0), ([2.0, 1.0], 1.0), ([3.0, 1.0, 2.0], 2.0)])
def test_the_lower_median_is_one_of_the_values(values: list[float], middle: float) -> None:
    """The lower of the two in the middle."""
    assert lower_median(values) == middle
