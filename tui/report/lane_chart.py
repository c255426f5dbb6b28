"""A lane per peer: what it did when, and its penalties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tui.swarm.phase_styles import PENALTY_CODES, PHASES, penalty_code
from tui.swarm.snapshot import PeerView, SwarmState
from tui.text.units import count

INK = "#010203"
"""A placeholder for the page's text colour, which replaces it in the finished picture."""

BLUE, ORANGE, GREEN, RED, SKY, PINK = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7"
COLOURS = (BLUE, ORANGE, GREEN, RED, SKY, PINK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")
"""The colours, markers and lines of all charts: distinguishable without colours, and for colour-blind readers (Okabe
and Ito)."""
SHORT = 24
"""The characters of a name that fit in a chart."""
MOST = 48
"""The lanes that fit in a chart."""
FINEST = 1500
"""Spans shorter than the whole time divided by this are invisible, and count as part of the span before."""
MOST_BARS = 20_000
"""The maximal number of bars in all lanes together: with many lanes, each is coarser."""
UNITS = (("hours", 3600.0, 4 * 3600.0), ("minutes", 60.0, 600.0), ("seconds", 1.0, 0.0))
"""(Name, seconds, the length of the chart in seconds from which on the unit is used)."""
MOST_LETTERS = 300


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a kind of span is drawn: kinds also differ by height and hatch."""

    name: str
    colour: str
    height: float
    hatch: str = ""


TRAIN = Kind(name="trains", colour=GREEN, height=0.7)
AVERAGE = Kind(name="averages", colour=BLUE, height=0.4)
SYNC = Kind(name="catches up", colour=SKY, height=0.7, hatch="////")
LATE = Kind(name="late or failed", colour=ORANGE, height=0.7, hatch="xxxx")
PAUSED = Kind(name="paused", colour=PINK, height=0.25, hatch="||||")
GONE = Kind(name="gone", colour=RED, height=0.08)
KINDS = {
    "train": TRAIN, "sync": SYNC, "late": LATE, "failed": LATE, "paused": PAUSED, "gone": GONE,
    **{name: AVERAGE for name, phase in PHASES.items() if phase.exchanges},
}  # fmt: skip
"""The kind of each phase. A peer that is idle has an empty lane."""


def draw_lanes(swarm: SwarmState, labels: Mapping[str, str]) -> tuple[Figure, str] | None:
    """The chart and its caption; None if no peer reported what it did."""
    views = [view for view in swarm.peers.values() if any(span.phase in KINDS for span in view.spans)]
    if not views or swarm.started_t is None or swarm.last_t is None:
        return None
    penalised = {penalty.about for penalty in swarm.penalty_log}
    shown = sorted(views, key=lambda view: view.peer not in penalised)[:MOST]
    shown.sort(key=lambda view: labels[view.peer])
    figure = Figure(figsize=(11.0, 1.4 + 0.42 * len(shown)))
    axes = figure.subplots()
    time = _time_of(shown, swarm.started_t, swarm.last_t)
    least_s = (time.last_t - time.first_t) / min(FINEST, MOST_BARS // len(shown))
    for row, view in enumerate(shown):
        _draw_lane(axes, row, view, time, least_s)
    _draw_letters(axes, swarm, {view.peer: row for row, view in enumerate(shown)}, time)
    axes.set(xlabel=f"{time.unit} since the run began", xlim=(time.x(time.first_t), time.x(time.last_t)))
    axes.set(ylim=(len(shown) - 0.4, -0.7))
    axes.set_yticks(range(len(shown)), [shorten(labels[view.peer]) for view in shown])
    axes.grid(axis="y", visible=False)
    handles = [
        Patch(facecolor=kind.colour, edgecolor=INK, linewidth=0, hatch=kind.hatch, label=kind.name)
        for kind in (TRAIN, AVERAGE, SYNC, LATE, PAUSED, GONE)
    ]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(handles), fontsize="small")
    return figure, _caption(swarm, len(views) - len(shown))


def _caption(swarm: SwarmState, left_out: int) -> str:
    codes = sorted({penalty.code for penalty in swarm.penalty_log} & set(PENALTY_CODES))
    letters = ", ".join(f"{PENALTY_CODES[code].letter} {code}" for code in codes)
    parts = [
        "What each peer did when; where a lane is empty it waited.",
        f"Letters are penalties: {letters}." if letters else "",
        f"{count(left_out, 'more peer')} without a lane here." if left_out else "",
    ]
    return " ".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class _Time:
    """The horizontal axis: from `first_t` to `last_t` (Unix seconds), counted from `began_t` in `unit`s."""

    began_t: float
    first_t: float
    last_t: float
    unit: str
    unit_s: float

    def x(self, t: float) -> float:
        return round((t - self.began_t) / self.unit_s, 4)


def _time_of(views: Sequence[PeerView], began_t: float, last_t: float) -> _Time:
    """The horizontal axis. For a long run only the newest spans are known, so it begins with the first of these."""
    first_t = min(view.spans[0].t for view in views)
    last_t = max(last_t, first_t + 1.0)
    unit, unit_s = next((name, size_s) for name, size_s, from_s in UNITS if last_t - first_t >= from_s)
    return _Time(began_t=began_t, first_t=first_t, last_t=last_t, unit=unit, unit_s=unit_s)


def _draw_lane(axes: Axes, row: int, view: PeerView, time: _Time, least_s: float) -> None:
    bars: dict[Kind, list[tuple[float, float]]] = {}
    for kind, start_t, end_t in _bars(view, time.last_t, least_s):
        bars.setdefault(kind, []).append((time.x(start_t), time.x(end_t) - time.x(start_t)))
    for kind, spans in bars.items():
        axes.broken_barh(
            spans, (row - kind.height / 2, kind.height), facecolor=kind.colour, edgecolor=INK, linewidth=0,
            hatch=kind.hatch or None,
        )  # fmt: skip


def _bars(view: PeerView, ended_t: float, least_s: float) -> Iterator[tuple[Kind, float, float]]:
    """(Kind, start, end) of the bars, in order. Neighbours of one kind are merged, and so are spans too short to be
    seen."""
    starts: list[tuple[float, Kind | None]] = []
    for span in view.spans:
        kind = KINDS.get(span.phase)
        if len(starts) > 1 and span.t - starts[-1][0] < least_s:
            starts.pop()
        if not starts or starts[-1][1] is not kind:
            starts.append((span.t, kind))
    ends = [start_t for start_t, _ in starts[1:]] + [ended_t]
    for (start_t, kind), end_t in zip(starts, ends, strict=True):
        if kind is not None and end_t > start_t:
            yield kind, start_t, end_t


def _draw_letters(axes: Axes, swarm: SwarmState, rows: Mapping[str, int], time: _Time) -> None:
    shown = [each for each in swarm.penalty_log if each.about in rows and each.t >= time.first_t][-MOST_LETTERS:]
    for penalty in shown:
        place = (time.x(penalty.t), rows[penalty.about] - 0.36)
        letter = penalty_code(penalty.code).letter
        axes.annotate(letter, place, ha="center", va="bottom", fontsize=9, fontweight="bold")


def shorten(label: str) -> str:
    """The label, shortened for a chart. A legend leaves out labels that begin with an underscore, so a space is put
    before it."""
    short = label if len(label) <= SHORT else f"{label[: SHORT - 1]}…"
    return f" {short}" if short.startswith("_") else short
