"""Curves over one axis: the data of a chart, the thinning of its points, and the widget that draws it.

Series differ by marker as well as by colour. A chart without points, or without space, is only its line of names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from tui.dashboard.appearance import Glyphs, place, trace
from tui.dashboard.view import View
from tui.dashboard.widgets.lines import LineView, StyledLine, fit

MIN_COLUMNS, MIN_ROWS = 32, 4
"""Below this number of cells axes do not fit: only the line with the newest values is drawn."""

LABEL_CELLS, NEWEST_CELLS = 9, 10
"""The cells left of the plot, for the labels of the vertical axis, and right of it, for each curve's newest value."""

MOST_MARKERS = 12
"""The largest number of markers in a series."""

Coordinates = tuple[tuple[float, float], ...]
"""(x, y), sorted by x."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve. `marker` is one ASCII character; with `marked` every point has it, otherwise only some."""

    name: str
    points: Coordinates
    marker: str
    style: str
    marked: bool = False


@dataclass(frozen=True, kw_only=True)
class Plot:
    """The content of one chart; the first series is drawn last, above the others."""

    title: str
    series: tuple[Series, ...]
    low: float
    """The left end of the horizontal axis."""
    high: float
    x_name: str
    """The quantity on the horizontal axis."""
    x_label: Callable[[float], str]
    y_label: Callable[[float], str]
    x_ticks: Callable[[float, float, int], list[float]]
    """The places of labels from `low` to `high`, at most the given number: `nice_ticks` or `time_ticks`."""

    @property
    def drawn(self) -> tuple[Series, ...]:
        """The series that have points, in drawing order."""
        return tuple(series for series in reversed(self.series) if series.points)

    @property
    def heights(self) -> tuple[float, float]:
        """The lowest and the highest value, which always differ a little."""
        values = [y for series in self.series for _, y in series.points]
        low, high = min(values, default=0.0), max(values, default=1.0)
        pad = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
        return low - pad, high + pad


def decimate(points: Sequence[tuple[float, float]], low: float, high: float, columns: int) -> Coordinates:
    """At most two points per column of [low, high]: the lowest and the highest of the curve in it, by x.

    Values that are not finite are left out.
    """
    width = (high - low) / max(1, columns)
    extremes: dict[int, list[tuple[float, float]]] = {}
    for x, y in points:
        if not (low <= x <= high and math.isfinite(y)):
            continue
        column = min(int((x - low) / width), columns - 1) if width > 0 else 0
        kept = extremes.setdefault(column, [(x, y), (x, y)])
        if y < kept[0][1]:
            kept[0] = (x, y)
        if y >= kept[1][1]:
            kept[1] = (x, y)
    return tuple(point for column in sorted(extremes) for point in sorted(set(extremes[column])))


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low or most < 1:
        return []
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    while True:
        for factor in (1, 2, 5):
            first, last = math.ceil(low / (factor * step)), math.floor(high / (factor * step))
            if last - first < most:
                return [index * factor * step for index in range(first, last + 1)]
        step *= 10


def time_ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` times from `low` to `high` seconds, in steps that are usual on clocks."""
    for step in _CLOCK_S:
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first < most:
            return [float(index * step) for index in range(first, last + 1)]
    return nice_ticks(low, high, most)


_CLOCK_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 604_800)


def markers_of(series: Series) -> Coordinates:
    """The points with a marker: all of a marked series, otherwise a few, including the newest."""
    stride = 1 if series.marked else max(1, math.ceil(len(series.points) / MOST_MARKERS))
    return tuple(series.points[index] for index in range(len(series.points) - 1, -1, -stride))


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The cells of a plot, each with several dots, and the places of points in them."""

    chart: Plot
    columns: int
    rows: int
    glyphs: Glyphs

    def dot(self, point: tuple[float, float]) -> tuple[int, int]:
        """The dot for a point, (x, y) from the top left."""
        bottom, top = self.chart.heights
        across, down = self.glyphs.dots
        x = place(point[0], self.chart.low, self.chart.high, self.columns * across)
        return x, place(point[1], top, bottom, self.rows * down)

    def cell(self, point: tuple[float, float]) -> tuple[int, int]:
        """The cell for a point, (column, row)."""
        (x, y), (across, down) = self.dot(point), self.glyphs.dots
        return x // across, y // down


def draw(chart: Plot, columns: int, rows: int, view: View) -> list[StyledLine]:
    """`rows` lines of `columns` cells: curves in Braille dots (full stops on an ASCII terminal), with labels around
    them."""
    frame = Frame(chart=chart, columns=columns - LABEL_CELLS - NEWEST_CELLS, rows=rows - 1, glyphs=view.glyphs)
    ticks = {frame.cell((chart.low, tick))[1]: tick for tick in nice_ticks(*chart.heights, max(2, frame.rows // 3))}
    cells = _curves(frame)
    newest = _newest(frame)
    lines = [[*_row(row, cells, ticks.get(row), frame, view), newest.get(row, _NONE)] for row in range(frame.rows)]
    below = f"{chart.x_name:>{LABEL_CELLS - 2}}  ", x_labels(chart, frame.columns), _NONE[0]
    return [*lines, [("".join(below), view.ink.muted)]]


_NONE = " " * NEWEST_CELLS, ""


def _newest(frame: Frame) -> dict[int, tuple[str, str]]:
    """By row, the text right of the plot: the newest value of each curve; if two share a row, that of the first."""
    told: dict[int, tuple[str, str]] = {}
    for series in frame.chart.series:
        if series.points:
            column, row = frame.cell(series.points[-1])
            marker = "" if column == frame.columns - 1 else f"{series.marker} "
            text = f" {marker}{frame.chart.y_label(series.points[-1][1])}"
            told.setdefault(row, (fit(text, NEWEST_CELLS, frame.glyphs.ellipsis), series.style))
    return told


def _curves(frame: Frame) -> dict[tuple[int, int], tuple[str, str]]:
    """The drawn characters with their styles, by (column, row)."""
    bits: dict[tuple[int, int], int] = {}
    cells: dict[tuple[int, int], tuple[str, str]] = {}
    for series in frame.chart.drawn:
        for cell, dots in trace([frame.dot(point) for point in series.points], frame.glyphs).items():
            bits[cell] = bits.get(cell, 0) | dots
            cells[cell] = frame.glyphs.dotted(bits[cell]), series.style
    for series in frame.chart.drawn:
        cells |= {frame.cell(point): (series.marker, series.style) for point in markers_of(series)}
    return cells


_AXES = ((("│", " "), ("┤", "╌")), (("|", " "), ("+", " ")))
"""The axis and the background of the curves, without and with a label, in Unicode and in ASCII."""


def _row(
    row: int, cells: Mapping[tuple[int, int], tuple[str, str]], tick: float | None, frame: Frame, view: View
) -> StyledLine:
    """One line of the plot: label, axis, and the curves above a faint line at a label's height."""
    label = "" if tick is None else frame.chart.y_label(tick)
    axis, faint = _AXES[view.glyphs.ascii][tick is not None]
    pieces: StyledLine = [(f"{label[: LABEL_CELLS - 2]:>{LABEL_CELLS - 2}} ", view.ink.muted), (axis, view.ink.track)]
    for column in range(frame.columns):
        text, style = cells.get((column, row), (faint, view.ink.track))
        if style == pieces[-1][1] and column:
            pieces[-1] = pieces[-1][0] + text, style
        else:
            pieces.append((text, style))
    return pieces


def x_labels(chart: Plot, width: int) -> str:
    """`width` cells with the labels of the horizontal axis, each starting at its place."""
    row = [" "] * width
    free = 0
    for tick in chart.x_ticks(chart.low, chart.high, max(2, width // 12)):
        label = chart.x_label(tick)
        column = min(place(tick, chart.low, chart.high, width), width - len(label))
        if column >= free:
            row[column : column + len(label)] = label
            free = column + len(label) + 1
    return "".join(row)


class SeriesChart(LineView):
    """One chart below a line that names its curves with their newest values. It is redrawn only when it has changed."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._make: Callable[[int], Plot] | None = None
        self._view: View | None = None
        self._drawn: tuple[object, ...] = ()

    def show(self, make: Callable[[int], Plot], view: View) -> None:
        """Draw the chart that `make` returns for the number of columns, unless it is already drawn."""
        self._make, self._view = make, view
        width, rows = self.size.width, self.size.height - 1
        if not width:
            return
        chart = make(max(1, width - LABEL_CELLS - NEWEST_CELLS))
        drawn = (chart, width, rows, view.glyphs, view.ink)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        fits = width >= MIN_COLUMNS and rows >= MIN_ROWS and chart.drawn and chart.high > chart.low
        self.draw([_names(chart, view, width), *(draw(chart, width, rows, view) if fits else [])])

    def on_resize(self) -> None:
        if self._make is not None and self._view is not None:
            self.show(self._make, self._view)


def _names(chart: Plot, view: View, width: int) -> StyledLine:
    """loss, lower is better  o held-out 2.350  x training 2.611; without the unit if it does not fit."""
    values: StyledLine = []
    for series in chart.series:
        if series.points:
            newest = chart.y_label(series.points[-1][1])
            values += [(f"  {series.marker} {series.name} ", series.style), (newest, view.ink.text)]
    if not values:
        values = [("  nothing yet", view.ink.muted)]
    room = width - sum(cell_len(text) for text, _ in values)
    title = chart.title if cell_len(chart.title) <= room else chart.title.partition(",")[0]
    return [(title, view.ink.strong), *values]
