from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tui.swarm.snapshot import Point, Span
from tui.swarm.timeline import MAX_SPANS, add_point, add_span, mark_tardy

LIMIT = 64


def point(t: float, value: float = 0.0, round: int = 0) -> Point:
    return Point(t=t, round=round, tokens=0, value=value)


def curve(times: list[float]) -> list[Point]:
    points: list[Point] = []
    for t in times:
        add_point(points, point(t, value=t), LIMIT)
    return points


def test_a_short_curve_keeps_every_point() -> None:
    assert [each.t for each in curve([float(t) for t in range(LIMIT // 2)])] == list(range(LIMIT // 2))


def test_a_long_curve_covers_all_of_its_time_evenly() -> None:
    """Days at a point per second: the first and the newest are there, and no gap is much wider than the others."""
    points = curve([float(t) for t in range(200_000)])
    assert LIMIT // 4 <= len(points) <= LIMIT
    assert (points[0].t, points[-1].t) == (0.0, 199_999.0)
    gaps = [later.t - earlier.t for earlier, later in pairwise(points)]
    assert max(gaps) < 6 * 200_000 / LIMIT


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 1e6), max_size=500))
def test_a_curve_is_bounded_and_in_order_whatever_comes(times: list[float]) -> None:
    points = curve(times)
    assert len(points) <= LIMIT
    assert [each.t for each in points] == sorted(each.t for each in points)
    if times:
        assert points[-1].t == max(times)


def lane(*steps: tuple[float, str, int]) -> list[Span]:
    spans: list[Span] = []
    for t, phase, round in steps:
        add_span(spans, t, phase, round)
    return spans


def phases(spans: list[Span]) -> list[tuple[float, str]]:
    return [(span.t, span.phase) for span in spans]


def test_what_goes_on_is_one_span() -> None:
    assert phases(lane((0, "train", 1), (1, "train", 1), (2, "exchange", 1))) == [(0, "train"), (2, "exchange")]


def test_a_lane_is_bounded_and_keeps_the_newest() -> None:
    spans = lane(*((float(t), "train", t) for t in range(MAX_SPANS + 7)))
    assert len(spans) == MAX_SPANS
    assert spans[-1].round == MAX_SPANS + 6


def test_time_in_a_lane_never_runs_back() -> None:
    assert phases(lane((5, "train", 1), (3, "exchange", 1))) == [(5, "train"), (5, "exchange")]


def test_what_was_sent_too_slowly_becomes_late() -> None:
    spans = lane((0, "train", 1), (5, "exchange", 1), (8, "weigh", 1), (9, "idle", 2), (9.5, "train", 2))
    mark_tardy(spans, 10, "late", 1)
    assert phases(spans) == [(0, "train"), (5, "late"), (8, "weigh"), (9, "idle"), (9.5, "train")]


def test_who_had_nothing_ready_is_late_from_the_commit_on() -> None:
    spans = lane((0, "train", 4))
    mark_tardy(spans, 10, "late", 4)
    assert phases(spans) == [(0, "train"), (10, "late")]


def test_who_has_gone_on_meanwhile_was_late_in_that_round() -> None:
    spans = lane((0, "train", 4), (9, "train", 5))
    mark_tardy(spans, 10, "late", 4)
    assert phases(spans) == [(0, "late"), (9, "train")]


def test_who_was_paused_or_gone_is_shown_as_that() -> None:
    for phase in ("paused", "gone", "sync"):
        spans = lane((0, phase, 4))
        mark_tardy(spans, 10, "failed", 4)
        assert phases(spans) == [(0, phase)]
