"""The waterfall's layout: what each column of a peer's lane shows. Pure: spans and times in, names of phases out.

A lane is a row of columns of equal time. Columns start at multiples of their width, so that a lane that follows the
clock moves in whole columns, and what was drawn before stays as it was.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tui.swarm.phase_styles import phase as phase_named
from tui.swarm.snapshot import Round, Span

_NEVER_HIDDEN = frozenset({"failed", "late"})

ENOUGH = 1 / 8
"""A phase that lasts a smaller share of a column's time is not shown, unless it is late or failed."""

STEPS_S = (
    0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0,
)  # fmt: skip
"""The available widths of a column, in seconds."""

ROUND_COLUMNS = 10
"""At first, a round has about this number of columns."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """`columns` columns of `step_s` seconds; `first` is the number of columns between time 0 and the left one."""

    first: int
    step_s: float
    columns: int

    @property
    def start_t(self) -> float:
        return self.first * self.step_s

    @property
    def end_t(self) -> float:
        return (self.first + self.columns) * self.step_s

    def bounds(self, column: int) -> tuple[float, float]:
        """The beginning and end of column `column`, counted from the left, in Unix seconds."""
        return (self.first + column) * self.step_s, (self.first + column + 1) * self.step_s

    def column_of(self, t: float) -> int:
        """The column that contains `t`; negative left of the axis, `columns` or more right of it."""
        return math.floor(t / self.step_s) - self.first

    def moved_to(self, column: int) -> Axis:
        """The axis moved just enough to show the column (counted from the left)."""
        if column < 0:
            return replace(self, first=self.first + column)
        return replace(self, first=self.first + max(0, column - self.columns + 1))


class Stay(NamedTuple):
    """The time that a peer spent in a span."""

    span: Span
    begin_t: float
    end_t: float

    @property
    def seconds(self) -> float:
        return self.end_t - self.begin_t


def ending_at(end_t: float, step_s: float, columns: int) -> Axis:
    return Axis(first=math.floor(end_t / step_s) - columns + 1, step_s=step_s, columns=columns)


def not_before(axis: Axis, first_t: float) -> Axis:
    """The axis moved to the right if it began before the first event."""
    return replace(axis, first=max(axis.first, math.floor(first_t / axis.step_s)))


def choose_step(round_s: float) -> float:
    """The width of a column for which a round of `round_s` seconds has about `ROUND_COLUMNS` columns."""
    return next((step_s for step_s in STEPS_S if step_s * ROUND_COLUMNS >= round_s), STEPS_S[-1])


def zoomed(step_s: float, steps: int) -> float:
    """The available width that is `steps` wider than `step_s` (narrower if negative)."""
    index = min(range(len(STEPS_S)), key=lambda index: abs(STEPS_S[index] - step_s))
    return STEPS_S[min(max(index + steps, 0), len(STEPS_S) - 1)]


def stays(spans: Sequence[Span], begin_t: float, end_t: float, now: float) -> Iterator[Stay]:
    """The spans that touch [begin_t, end_t); each lasts until the next one, and the last one until `now`."""
    index = max(0, bisect_right(spans, begin_t, key=lambda span: span.t) - 1)
    for position in range(index, len(spans)):
        span = spans[position]
        if span.t >= end_t or span.t > now:
            return
        ends_t = spans[position + 1].t if position + 1 < len(spans) else max(now, span.t)
        if ends_t >= begin_t:
            yield Stay(span, span.t, min(ends_t, max(now, span.t)))


def paint(spans: Sequence[Span], axis: Axis, now: float) -> list[str]:
    """The phase that each column shows, "" if nothing is known.

    Among the phases that last for at least `ENOUGH` of a column's time, the most important one is shown; late and
    failed always are.
    """
    best: list[tuple[bool, int, float, str]] = [(False, -1, 0.0, "")] * axis.columns
    for stay in stays(spans, axis.start_t, axis.end_t, now):
        last = axis.column_of(stay.end_t)
        for column in range(max(0, axis.column_of(stay.begin_t)), min(last, axis.columns - 1) + 1):
            share = _share(stay, axis, column)
            if share > 0 or column == axis.column_of(stay.begin_t):
                best[column] = max(best[column], _claim(stay.span.phase, share))
    return [phase for *_, phase in best]


def showing(spans: Sequence[Span], axis: Axis, column: int, now: float) -> Stay | None:
    """The stay that column `column` shows, or the one in which the column begins."""
    begin_t, end_t = axis.bounds(column)
    touching = list(stays(spans, begin_t, end_t, now)) if begin_t <= now else []
    inside = [stay for stay in touching if _share(stay, axis, column) > 0 or axis.column_of(stay.begin_t) == column]
    return max(inside or touching, key=lambda stay: _claim(stay.span.phase, _share(stay, axis, column)), default=None)


def ticks(rounds: Sequence[Round], axis: Axis, mark: str) -> str:
    """A row with `mark` and the number of each round at the column of its commit, as many as fit."""
    row = [" "] * axis.columns
    free = 0
    first = bisect_left(rounds, axis.start_t, key=lambda view: view.t)  # rounds are by number, and so by time
    for view in rounds[first:]:
        column, text = axis.column_of(view.t), f"{mark}{view.round}"
        if column >= axis.columns:
            break
        if column < free or column + len(text) > axis.columns:
            continue
        row[column : column + len(text)] = text
        free = column + len(text) + 1
    return "".join(row)


def _share(stay: Stay, axis: Axis, column: int) -> float:
    begin_t, end_t = axis.bounds(column)
    return max(0.0, min(stay.end_t, end_t) - max(stay.begin_t, begin_t)) / axis.step_s


def _claim(phase: str, share: float) -> tuple[bool, int, float, str]:
    """A sort key for the phase of a column: whether it lasts long enough (or is never hidden), then rank, then time.

    Among phases that do not last long enough, the longest is shown.
    """
    enough = phase in _NEVER_HIDDEN or share >= ENOUGH
    return enough, phase_named(phase).rank if enough else -1, share, phase
