"""How points become a drawing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.dashboard.appearance import ASCII, UNICODE
from tui.dashboard.view import View
from tui.dashboard.widgets.chart import Plot, Series, decimate, draw, markers_of, nice_ticks, time_ticks, x_labels
from tui.swarm.snapshot import SwarmState


def view_of(*, ascii_only: bool) -> View:
    return View(swarm=SwarmState(), now=0.0, glyphs=ASCII if ascii_only else UNICODE)


def chart_of(*series: Series, low: float = 0.0, high: float = 10.0) -> Plot:
    return Plot(
        title="t",
        series=series,
        low=low,
        high=high,
        x_name="rounds",
        x_label=lambda x: f"{x:g}",
        y_label=lambda y: f"{y:g}",
        x_ticks=nice_ticks,
    )


def rising(marker: str = "o", *, marked: bool = True) -> Series:
    points = tuple((float(x), float(x)) for x in range(11))
    return Series(name="rising", points=points, marker=marker, style="red", marked=marked)


def plain(lines: list[list[tuple[str, str]]]) -> list[str]:
    return ["".join(text for text, _ in pieces) for pieces in lines]


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=400), st.integers(1, 50))
def test_no_column_keeps_more_than_two_points_and_extremes_stay(values: list[float], columns: int) -> None:
    points = [(float(index), value) for index, value in enumerate(values)]
    kept = decimate(points, 0.0, max(1.0, len(values) - 1.0), columns)
    finite = [value for value in values if math.isfinite(value)]
    assert len(kept) <= 2 * columns
    assert list(kept) == sorted(kept)
    assert set(kept) <= set(points)
    if finite:
        assert {min(finite), max(finite)} <= {value for _, value in kept}


def test_points_outside_the_axis_are_left_out() -> None:
    assert decimate([(0.0, 1.0), (5.0, 2.0), (9.0, 3.0)], 4.0, 6.0, 10) == ((5.0, 2.0),)


def test_an_axis_without_length_keeps_its_points() -> None:
    assert decimate([(1.0, 1.0), (1.0, 2.0)], 1.0, 1.0, 10) == ((1.0, 1.0), (1.0, 2.0))


@pytest.mark.parametrize(
    ("low", "high", "most", "ticks"),
    [(0, 10, 5, [0, 5, 10]), (2.31, 5.3, 4, [3, 4, 5]), (0, 1, 0, []), (3, 3, 5, []), (0, math.inf, 5, [])],
)
def test_ticks_are_round_numbers(low: float, high: float, most: int, ticks: list[float]) -> None:
    assert nice_ticks(low, high, most) == pytest.approx(ticks)


@given(st.floats(-1e12, 1e12), st.floats(1e-6, 1e12), st.integers(1, 20))
def test_there_are_never_more_ticks_than_asked_for_and_all_are_inside(low: float, length: float, most: int) -> None:
    ticks = nice_ticks(low, low + length, most)
    assert len(ticks) <= most
    slack = 1e-6 * max(1.0, abs(low), length)
    assert all(low - slack <= tick <= low + length + slack for tick in ticks)


@pytest.mark.parametrize(
    ("high", "ticks"), [(100.0, [0.0, 30.0, 60.0, 90.0]), (7300.0, [0.0, 3600.0, 7200.0]), (0.5, [0.0])]
)
def test_moments_are_those_of_a_clock(high: float, ticks: list[float]) -> None:
    assert time_ticks(0.0, high, 4) == ticks


def test_a_marked_series_marks_every_point_and_another_only_some_with_the_newest() -> None:
    points = tuple((float(x), 0.0) for x in range(100))
    marked = Series(name="", points=points, marker="o", style="", marked=True)
    some = Series(name="", points=points, marker="x", style="")
    assert len(markers_of(marked)) == 100
    assert len(markers_of(some)) <= 12
    assert points[-1] in markers_of(some)


def test_ascii_draws_a_rising_line_from_corner_to_corner_with_labels() -> None:
    lines = plain(draw(chart_of(rising()), 30, 8, view_of(ascii_only=True)))
    assert all(line.isascii() for line in lines)
    assert {len(line) for line in lines} == {30}
    assert len(lines) == 8
    assert lines[0].rstrip().endswith("o 10")
    assert lines[6][9:].lstrip("|+").startswith("o")
    assert "10" in lines[-1]
    assert "0 +" in lines[6] or "5 +" in "".join(lines)


def test_unicode_draws_lines_in_braille() -> None:
    lines = plain(draw(chart_of(rising("x", marked=False)), 40, 10, view_of(ascii_only=False)))
    assert any("\u2800" < char <= "\u28ff" for char in "".join(lines))
    assert {len(line) for line in lines} == {40}


def test_of_two_curves_in_one_cell_the_first_series_is_on_top() -> None:
    flat = tuple((float(x), 5.0) for x in range(11))
    first = Series(name="a", points=flat, marker="o", style="red", marked=True)
    second = Series(name="b", points=flat, marker="x", style="blue", marked=True)
    drawn = "".join(plain(draw(chart_of(first, second), 40, 6, view_of(ascii_only=True))))
    assert "o" in drawn
    assert "x" not in drawn


def test_labels_of_the_horizontal_axis_never_touch() -> None:
    row = x_labels(chart_of(rising(), high=1_000_000.0), 36)
    assert len(row) == 36
    assert row.split() == ["0", "500000", "1e+06"]


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(-1e9, 1e9)), min_size=1, max_size=30),
    st.integers(24, 60), st.integers(4, 20), st.booleans(),
)  # fmt: skip
def test_any_points_fill_exactly_the_cells_there_are(
    points: list[tuple[float, float]], columns: int, rows: int, ascii_only: bool
) -> None:
    series = Series(name="s", points=tuple(sorted(points)), marker="o", style="red")
    lines = plain(draw(chart_of(series), columns, rows, view_of(ascii_only=ascii_only)))
    assert [len(line) for line in lines] == [columns] * rows
