"""Histories of bounded size, however long a run lasts: curves and lanes."""

from __future__ import annotations

from tui.swarm.phase_styles import phase as phase_named
from tui.swarm.snapshot import Point, Span

SWARM_POINTS = 1024
"""The maximal number of points in a curve of the whole swarm."""
PEER_POINTS = 256
"""The maximal number of points in a curve of one peer."""
MAX_SPANS = 512
"""The maximal number of spans in the lane of one peer: some fifty rounds."""

LONG_S = 1.0
"""No speed is computed over a shorter time."""


def add_point(points: list[Point], point: Point, limit: int) -> None:
    """Append to a curve of at most `limit` points (even) that covers its whole time about evenly.

    When it is full, every second point is removed. From half full on, a new point replaces the last one until that is
    as far from the one before as the points are on average, so the newest value is always there. A point that is older
    than the last one is left out.
    """
    if points and point.t < points[-1].t:
        return
    if len(points) >= limit // 2:
        gap_s = 2 * (points[-1].t - points[0].t) / limit
        if point.t - points[-2].t < gap_s:
            points[-1] = point
            return
    points.append(point)
    if len(points) > limit:
        points[:] = points[::2]


def add_span(spans: list[Span], t: float, phase: str, round: int) -> None:
    """From `t` on the peer is in this phase. Does nothing if it is already."""
    if spans:
        last = spans[-1]
        if (last.phase, last.round) == (phase, round):
            return
        t = max(t, last.t)
        if last.phase == "idle" and t == last.t:
            spans.pop()
    spans.append(Span(t=t, phase=phase, round=round))
    if len(spans) > MAX_SPANS:
        del spans[0]


def mark_tardy(spans: list[Span], t: float, phase: str, round: int) -> None:
    """Show in a lane that the peer was late in `round`, or (phase `failed`) did not answer.

    A span of sending that was too slow becomes late. A peer that had not begun to send is late from `t` on, when the
    round was decided without it. A peer that was paused, catching up or gone is still shown as that.
    """
    of_round = [index for index, span in enumerate(spans) if span.round == round]
    sending = [index for index in of_round if spans[index].phase == "exchange"]
    if not sending and (not spans or (spans[-1].round <= round and not phase_named(spans[-1].phase).stands)):
        add_span(spans, t, phase, round)
        return
    for index in sending or of_round[-1:]:
        if not phase_named(spans[index].phase).stands:
            spans[index] = Span(t=spans[index].t, phase=phase, round=round)


def is_exchanging(spans: list[Span]) -> bool:
    """Whether the peer is between the end of its training and the next anchor."""
    return bool(spans) and phase_named(spans[-1].phase).exchanges


def training_began(spans: list[Span], round: int) -> float | None:
    """The time since which the peer trains towards `round`, if its lane shows it."""
    return next((span.t for span in reversed(spans) if span.round == round and span.phase == "train"), None)
