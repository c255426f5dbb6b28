"""The benchmark of penalties: what it counts, and the weights that it shows."""

from __future__ import annotations

import pytest

from tests.benchmarks import penalties
from tests.benchmarks.penalties import Counts, curve, weight_of

pytestmark = pytest.mark.nightly


def test_a_drawn_run_is_the_same_each_time_and_doubles_some_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penalties, "ROUNDS", 8)
    monkeypatch.setattr(penalties, "STEPS", 4)
    first, again = penalties.play(5), penalties.play(5)
    assert first == again
    assert first.contributions > 8
    assert 0 < first.doubled <= 8


def test_the_bars_are_of_all_runs_together() -> None:
    counts = Counts(contributions=1500, doubled=50, refused=44)
    counts.add(Counts(contributions=500, doubled=50, refused=46))
    assert [bar.met for bar in counts.bars()] == [True, True, True]
    counts.add(Counts(doubled=1))
    assert [bar.met for bar in counts.bars()] == [True, False, True]


def test_the_curve_falls_with_the_norm() -> None:
    weights = [weight_of(ratio) for ratio in penalties.CURVE]
    assert weights == sorted(weights, reverse=True)
    assert weights[0] == pytest.approx(1.0, abs=1e-3)
    assert f"{weights[-1]:.2f}" in curve()
