"""What each column of a lane shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tui.dashboard.canned import round_view
from tui.dashboard.widgets import lanes
from tui.dashboard.widgets.lanes import Axis
from tui.swarm.phase_styles import PHASES
from tui.swarm.snapshot import Span

AXIS = Axis(first=0, step_s=1.0, columns=10)


def spans(*pairs: tuple[float, str]) -> list[Span]:
    return [Span(t=t, phase=phase, round=1) for t, phase in pairs]


def test_each_column_shows_the_phase_that_fills_it_until_now() -> None:
    painted = lanes.paint(spans((2, "train"), (5, "exchange"), (6, "reduce")), AXIS, now=8.0)
    assert painted == ["", "", "train", "train", "train", "exchange", "reduce", "reduce", "", ""]


@pytest.mark.parametrize("phase", ["late", "failed"])
def test_late_and_failed_show_however_short_they_were(phase: str) -> None:
    painted = lanes.paint(spans((0, "train"), (3.5, phase), (3.500001, "train")), AXIS, now=10.0)
    assert painted[3] == phase
    assert painted[2] == painted[4] == "train"


def test_failed_shows_over_late() -> None:
    painted = lanes.paint(spans((0, "train"), (3.1, "failed"), (3.2, "late"), (3.9, "train")), AXIS, now=10.0)
    assert painted[3] == "failed"


def test_an_instant_of_failure_without_any_duration_shows() -> None:
    assert lanes.paint(spans((0, "train"), (3.5, "failed"), (3.5, "train")), AXIS, now=10.0)[3] == "failed"


def test_averaging_shows_over_training_from_an_eighth_of_a_column_on() -> None:
    long_enough = lanes.paint(spans((0, "train"), (3.5, "commit"), (3.7, "train")), AXIS, now=10.0)
    too_short = lanes.paint(spans((0, "train"), (3.5, "commit"), (3.55, "train")), AXIS, now=10.0)
    assert (long_enough[3], too_short[3]) == ("commit", "train")


def test_a_phase_that_began_before_the_axis_shows_from_its_left_end() -> None:
    assert lanes.paint(spans((-100, "paused")), AXIS, now=3.0)[:4] == ["paused", "paused", "paused", ""]


def test_a_phase_of_a_newer_client_is_drawn_and_hides_nothing_known() -> None:
    painted = lanes.paint(spans((0, "dreaming"), (2.5, "train"), (3.5, "dreaming")), AXIS, now=5.0)
    assert painted[:5] == ["dreaming", "dreaming", "train", "train", "dreaming"]


@given(
    st.lists(st.tuples(st.floats(-20, 20), st.sampled_from(sorted(PHASES))), max_size=30),
    st.floats(-20, 20), st.integers(1, 40), st.sampled_from(lanes.STEPS_S),
)  # fmt: skip
def test_any_spans_paint_every_column_once_and_what_is_late_is_seen(
    pairs: list[tuple[float, str]], now: float, columns: int, step_s: float
) -> None:
    axis = Axis(first=-3, step_s=step_s, columns=columns)
    known = spans(*sorted(pairs, key=lambda pair: pair[0]))
    painted = lanes.paint(known, axis, now)
    assert len(painted) == columns
    for span in known:
        column = axis.column_of(span.t)
        if span.phase in ("late", "failed") and span.t <= now and 0 <= column < columns:
            assert painted[column] in ("late", "failed")


def test_the_axis_moves_in_whole_columns() -> None:
    first = lanes.ending_at(100.2, 1.0, 10)
    assert first == lanes.ending_at(100.9, 1.0, 10)
    assert first.column_of(100.9) == 9
    assert lanes.ending_at(101.0, 1.0, 10).first == first.first + 1


def test_the_axis_begins_where_anything_happened() -> None:
    assert lanes.not_before(lanes.ending_at(105.0, 1.0, 50), 100.0).start_t == 100.0


def test_the_axis_follows_a_cursor_that_leaves_it() -> None:
    assert AXIS.moved_to(4) == AXIS
    assert AXIS.moved_to(-2).first == -2
    assert AXIS.moved_to(12).first == 3


def test_columns_are_as_wide_as_makes_a_round_ten_of_them_or_fewer() -> None:
    assert lanes.choose_step(10.0) == 1.0
    assert lanes.choose_step(0.3) == 0.05
    assert lanes.choose_step(1e9) == lanes.STEPS_S[-1]


def test_zoom_goes_through_the_widths_and_stops_at_the_ends() -> None:
    assert (lanes.zoomed(1.0, 1), lanes.zoomed(1.0, -1)) == (2.0, 0.5)
    assert lanes.zoomed(lanes.STEPS_S[0], -1) == lanes.STEPS_S[0]
    assert lanes.zoomed(lanes.STEPS_S[-1], 5) == lanes.STEPS_S[-1]


def test_a_column_tells_the_stay_that_it_shows_and_how_long_it_was() -> None:
    known = spans((0, "train"), (3.2, "late"), (3.4, "train"))
    stay = lanes.showing(known, AXIS, 3, now=10.0)
    assert stay is not None
    assert (stay.span.phase, round(stay.seconds, 3)) == ("late", 0.2)
    assert lanes.showing(known, AXIS, 9, now=5.0) is None


def test_a_column_that_begins_now_tells_what_goes_on() -> None:
    stay = lanes.showing(spans((0, "train")), AXIS, 5, now=5.0)
    assert stay is not None
    assert stay.span.phase == "train"


def test_rounds_are_named_where_they_were_committed_as_far_as_there_is_room() -> None:
    rounds = [round_view(number, ["a"]) for number in range(1, 5)]
    start_t = rounds[0].t - 10.0
    wide = Axis(first=round(start_t), step_s=1.0, columns=40)
    assert lanes.ticks(rounds, wide, "|") == f"{'':10}|1        |2        |3{'':8}"
    tight = Axis(first=round(start_t / 10.0), step_s=10.0, columns=8)
    assert lanes.ticks(rounds, tight, "|") == " |1 |4  "
