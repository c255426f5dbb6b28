"""The benchmark of ranks: its models, its fit on figures that are given, its bars."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.benchmarks.ranks import FREE, MODELS, Forecast, cost_of, fit, forecast, judge
from tests.benchmarks.ranks_crew import RanksCase, RanksTimes

KNOWN = replace(FREE, inside_bytes_per_s=2e8, between_bytes_per_s=2e8, collective_s=1e-3, hop_s=5e-4)


def test_no_model_is_fitted_and_forecast() -> None:
    assert {model.fits for model in MODELS} == {True, False}
    names = [case.name for model in MODELS for ranks in (2, 4) for case in model.cases(ranks)]
    assert len(names) == len(set(names))
    assert {case.kind for case in MODELS[0].cases(4)} == {"replicated", "full", "hierarchical", "hybrid"}
    assert any(case.offloads for case in MODELS[0].cases(2))


def told(case: RanksCase) -> RanksTimes:
    """As `KNOWN` says, each repetition a little longer than the one before."""
    step_s = 0.05 if case.alone else cost_of(case, KNOWN, 0.05).step_s
    held_bytes = round(cost_of(replace(case, kind="replicated", group=0, offloads=False), KNOWN).device_bytes[0])
    return RanksTimes(name=case.name, steps_s=[step_s * (1 + at / 10) for at in range(3)], peak_bytes=held_bytes)


def test_the_fit_finds_the_numbers_that_made_the_figures() -> None:
    cases = [case for model in MODELS if model.fits for case in model.cases(4)]
    rows = {case.name: told(case) for case in cases}
    found = fit(cases, rows)
    assert found.inside_bytes_per_s == pytest.approx(KNOWN.inside_bytes_per_s)
    assert (found.collective_s, found.hop_s) == pytest.approx((KNOWN.collective_s, KNOWN.hop_s))
    held_out = next(model for model in MODELS if not model.fits).cases(4)
    rows |= {case.name: told(case) for case in held_out}
    for case in held_out[1:]:
        assert forecast(case, held_out[0], rows, found, fitted=False).step_error < 1e-6


def row(predicted_s: float, predicted_bytes: float, *, fitted: bool = False) -> Forecast:
    return Forecast(
        name="a", way="full", ranks=2, fitted=fitted, measured_s=1.0, median_s=1.1, predicted_s=predicted_s,
        measured_bytes=100, predicted_bytes=predicted_bytes,
    )  # fmt: skip


def test_the_bars_are_means_over_what_fitted_nothing() -> None:
    forecasts = [row(1.05, 95), row(0.87, 112), row(9.0, 900, fitted=True)]
    assert [bar.met for bar in judge(forecasts)] == [True, True]
    assert [bar.met for bar in judge([*forecasts, row(1.3, 130)])] == [False, False]
