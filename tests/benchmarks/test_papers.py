"""The papers' formulas, and how far from their printed tables ours come out."""

from __future__ import annotations

import dataclasses

import pytest

from tests.benchmarks.papers import (
    SCALING_LAWS,
    STREAMING_DILOCO,
    TABLES,
    UTILISATIONS,
    Exchange,
    lines,
    mean_deviation,
    on_grid,
)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.source)
def test_the_published_tables_come_out_within_two_points_of_their_grid(table: object) -> None:
    """Points are 21 % apart; the mean is within one."""
    assert table in (STREAMING_DILOCO, SCALING_LAWS)
    compared = table.compare()  # type: ignore[attr-defined]
    assert mean_deviation(compared) < 0.15
    published = [each for each in compared if each.utilisation < 0.99]
    assert max(abs(each.deviation) for each in published) < 0.35


def test_the_last_percent_of_data_parallelism_waits_for_the_last_layer() -> None:
    exchange = STREAMING_DILOCO.settings[0].exchange
    assert on_grid(exchange.needed_bps(0.99)) / 1e9 == pytest.approx(569, rel=0.01)


def test_more_utilisation_needs_a_faster_line() -> None:
    for table in TABLES:
        for row in table.settings:
            needed = [row.exchange.needed_bps(share) for share in UTILISATIONS]
            assert needed == sorted(needed)


def test_a_delay_hides_a_fragment_altogether() -> None:
    exchange = Exchange(bits=8e9, step_s=1.0, layers=8, inner_steps=10, fragments=4, delay=3)
    assert exchange.exposed_s(1e9) == 0.0
    assert exchange.utilisation(1e9) == 1.0
    assert dataclasses.replace(exchange, delay=0).exposed_s(1e9) > 0


def test_the_tables_fit_80_columns() -> None:
    text = lines()
    assert max(map(len, text)) <= 80
    assert any("mean deviation" in line for line in text)
