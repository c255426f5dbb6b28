"""The Learning screen: the model's loss over tokens, rounds or time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Grid

from tui.dashboard.appearance import draw_spark
from tui.dashboard.keys import bindings
from tui.dashboard.view import Panel, TextBlock, View
from tui.dashboard.widgets.chart import Plot, Series, SeriesChart, decimate, nice_ticks, time_ticks
from tui.dashboard.widgets.lines import fit
from tui.swarm import figures
from tui.swarm.snapshot import PeerView, Point, SwarmState
from tui.text.units import format_count, format_elapsed

CHARTS = ("loss", "norm", "tokens", "rate")
"""The charts in the order in which they get space."""

TITLES = {
    "loss": "loss, lower is better",
    "norm": "pseudo-gradient norm",
    "tokens": "tokens per second",
    "rate": "learning rate",
}

AXES = ("tokens", "rounds", "time")

ROWS_EACH = 7
"""The lines that a chart needs."""

MOST_ZOOM = 10
"""The number of zoom steps; each shows the newer half of what was visible."""


Curve = tuple[str, Sequence[Point], str, int, bool]
"""Name, points, marker, index of its colour, and whether every point is marked."""


class LearningPanel(Panel):
    """As many of the chosen charts as fit; in a small terminal their newest values in words."""

    TITLE = "Learning"
    BINDINGS = bindings("learning")
    DEFAULT_CSS = """
    LearningPanel { overflow: hidden; }
    LearningPanel #learning-head { height: 1; text-wrap: nowrap; }
    LearningPanel #learning-words { height: 1fr; text-wrap: nowrap; display: none; }
    LearningPanel > Grid { height: 1fr; grid-size: 1; grid-gutter: 1 2; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.axis = AXES[0]
        self.zoom = 0
        self.chosen = set(CHARTS)

    def compose(self) -> ComposeResult:
        yield TextBlock(id="learning-head")
        yield TextBlock(id="learning-words")
        with Grid():
            for name in CHARTS:
                yield SeriesChart(id=f"chart-{name}")

    def draw_view(self, view: View) -> None:
        fitting = self._fitting(view)
        self.query_one("#learning-head", TextBlock).draw(self._heading(view, len(fitting)))
        words = self.query_one("#learning-words", TextBlock)
        words.display, self.query_one(Grid).display = not fitting, bool(fitting)
        if not fitting:
            words.draw(self._in_words(view))
            return
        for name in CHARTS:
            self.query_one(f"#chart-{name}", SeriesChart).display = name in fitting
        peer = peer_of(view)
        low, high = range_of(self.axis, view, peer)
        low = high - (high - low) / 2**self.zoom
        for name in fitting:
            make = partial(plot_of, name, self.axis, view, peer, low, high)
            self.query_one(f"#chart-{name}", SeriesChart).show(make, view)

    def action_axis(self) -> None:
        self.axis = AXES[(AXES.index(self.axis) + 1) % len(AXES)]
        self.redraw()

    def action_zoom(self, by: int) -> None:
        self.zoom = min(max(self.zoom + by, 0), MOST_ZOOM)
        self.redraw()

    def action_choose(self, name: str) -> None:
        """Show or hide a chart; the last one cannot be hidden."""
        self.chosen = self.chosen ^ {name} or self.chosen
        self.redraw()

    def _fitting(self, view: View) -> list[str]:
        """The chosen charts that fit; none if words say more. Sets the columns of the grid."""
        chosen = [name for name in CHARTS if name in self.chosen]
        height = self.content_size.height - 1
        if view.mini or height < ROWS_EACH:
            return []
        across = 2 if view.width >= 120 and len(chosen) > 1 else 1
        room = max(1, height // (ROWS_EACH + 1)) * across
        self.query_one(Grid).styles.grid_size_columns = across if min(room, len(chosen)) > 1 else 1
        return chosen[:room]

    def _heading(self, view: View, shown: int) -> Text:
        dot, ink = view.glyphs.dot, view.ink
        wanted = len(self.chosen)
        parts = [f"over {self.axis}", f"newest 1/{2**self.zoom}" if self.zoom else "all of it"]
        if 0 < shown < wanted:
            parts.append(f"{shown} of {wanted} charts have room")
        hints = "x axis  [ ] zoom  l n t r charts"
        told = f" {dot} ".join(["Learning", *parts])
        gap = self.content_size.width - len(told) - len(hints) - 2
        rule = f" {view.glyphs.rest * gap} " if gap > 0 else "  "
        return Text.assemble((told, ink.strong), (rule, ink.track), (hints if gap > 0 else "", ink.muted))

    def _in_words(self, view: View) -> Text:
        lines, width = list[Text](), self.content_size.width
        for name in (name for name in CHARTS if name in self.chosen):
            lines.append(Text(TITLES[name], style=view.ink.strong))
            for curve_name, points, _, ink, _ in curves_of(name, view, peer_of(view)):
                if points:
                    told = f"  {fit(curve_name, 12, view.glyphs.ellipsis)} {_LABELS[name](points[-1].value):>8}  "
                    spark = draw_spark([point.value for point in points], max(0, width - len(told)), view.glyphs)
                    lines.append(Text.assemble((told, view.ink.text), (spark, view.ink.series[ink])))
        return Text("\n").join(lines)


def peer_of(view: View) -> PeerView | None:
    """The peer whose own curves are drawn: the volunteer's, or else the selected one."""
    return view.mine or view.swarm.peers.get(view.selected)


def range_of(axis: str, view: View, peer: PeerView | None) -> tuple[float, float]:
    """The range from the first to the newest point of any curve."""
    swarm = view.swarm
    curves = [swarm.evaluations, swarm.training, swarm.speeds, *((peer.losses, peer.norms) if peer else ())]
    xs = [_x(axis, curve[index], swarm) for curve in curves if curve for index in (0, -1)]
    return min(xs, default=0.0), max(xs, default=1.0)


def plot_of(name: str, axis: str, view: View, peer: PeerView | None, low: float, high: float, columns: int) -> Plot:
    """One of `CHARTS` over one of `AXES`, from `low` to `high`, with the curve of one peer in addition to the
    swarm's."""
    made = []
    for curve_name, points, marker, ink, marked in curves_of(name, view, peer):
        known = {_x(axis, point, view.swarm): point.value for point in points}  # of a round what was told last
        thinned = decimate(list(known.items()), low, high, columns)
        made.append(Series(name=curve_name, points=thinned, marker=marker, style=view.ink.series[ink], marked=marked))
    label = {"tokens": format_count, "rounds": _whole, "time": format_elapsed}[axis]
    return Plot(
        title=TITLES[name], series=tuple(made), low=low, high=high, x_name=axis, x_label=label,
        y_label=_LABELS[name], x_ticks=time_ticks if axis == "time" else nice_ticks,
    )  # fmt: skip


def _x(axis: str, point: Point, swarm: SwarmState) -> float:
    if axis == "tokens":
        return float(point.tokens)
    return float(point.round) if axis == "rounds" else point.t - (swarm.started_t or 0.0)


def curves_of(name: str, view: View, peer: PeerView | None) -> list[Curve]:
    """The curves of a chart: those of the swarm, and last that of the peer."""
    swarm = view.swarm
    own: Sequence[Point] = ()
    common: list[Curve] = []
    if name == "loss":
        common = [("held-out", swarm.evaluations, "o", 1, True), ("training", swarm.training, "+", 2, False)]
        own = peer.losses if peer else ()
    elif name == "norm":
        common, own = [("median", figures.tokens_norms(swarm), "+", 2, False)], peer.norms if peer else ()
    elif name == "tokens":
        common, own = [("swarm", swarm.speeds, "+", 2, False)], peer.speeds if peer else ()
    else:
        own = peer.learning_rates if peer else ()
    if peer is None:
        return common
    return [*common, ("mine" if view.mine is not None else peer.label, own, "x", 0, False)]


def _whole(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else ""


_LABELS: dict[str, Callable[[float], str]] = {
    "loss": "{:.3f}".format, "norm": "{:.3g}".format, "tokens": format_count, "rate": "{:.3g}".format,
}  # fmt: skip
