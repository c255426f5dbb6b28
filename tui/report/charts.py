"""The charts of a report: matplotlib draws them as SVG inside the page.

They use the page's own text colour, so that the same picture suits a light and a dark page. Series differ by marker and
line, not by colour alone (colours: Okabe and Ito, 2008).
"""

from __future__ import annotations

import io
import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tui.report.lane_chart import BLUE, COLOURS, GREEN, INK, LINES, MARKERS, ORANGE, SKY, draw_lanes, shorten
from tui.swarm.phase_styles import penalty_code
from tui.swarm.snapshot import WEIGHT_ONE, Point, Round, SwarmState, labels_of
from tui.text.units import count

Labels = Mapping[str, str]

WIDE = (11.0, 3.8)
"""The size in inches."""
MANY = 8
"""With more peers than this, a chart shows their median and range instead of each peer."""

SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "homefires",
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "lines.markersize": 4.0,
    "figure.constrained_layout.use": True,
} | dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK)


@dataclass(frozen=True, kw_only=True)
class ReportFigure:
    """A picture (SVG for an HTML page, with a description for readers who cannot see it) and its caption."""

    title: str
    svg: str
    caption: str


def draw_charts(swarm: SwarmState) -> list[ReportFigure]:
    """All charts that have something to show, in order."""
    labels = labels_of(swarm)
    drawers: dict[str, Callable[[SwarmState, Labels], tuple[Figure, str] | None]] = {
        "Loss": _losses, "Lanes of the peers": draw_lanes, "Norms of what the peers gave": _norms,
        "Shares of the peers": _shares, "Tokens and bytes": _amounts, "Seconds of a round": _seconds,
    }  # fmt: skip
    charts = []
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        # A name may have letters that matplotlib cannot measure; the browser that draws them can.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        for number, (title, draw) in enumerate(drawers.items()):
            if drawn := draw(swarm, labels):
                figure, caption = drawn
                svg = _svg(figure, f"{title}. {caption}", f"c{number}-")
                charts.append(ReportFigure(title=title, svg=svg, caption=caption))
    return charts


# ---- what is drawn ----


def _losses(swarm: SwarmState, labels: Labels) -> tuple[Figure, str] | None:
    if not swarm.evaluations and not swarm.training:
        return None
    figure = Figure(figsize=WIDE)
    by_round, by_tokens = figure.subplots(1, 2, sharey=True)
    for axes, x_of in ((by_round, lambda point: point.round), (by_tokens, lambda point: point.tokens / 1e6)):
        _plot(axes, swarm.training, x_of, "training", color=SKY, marker="o", linestyle="--")
        _plot(axes, swarm.evaluations, x_of, "held out", color=BLUE, marker="s", linestyle="-")
    by_round.set(xlabel="round", ylabel="loss (lower is better)", title="by rounds")
    by_tokens.set(xlabel="tokens of all peers (millions)", title="by tokens")
    by_round.xaxis.set_major_locator(MaxNLocator(integer=True))
    by_round.legend()
    caption = "Training loss is the mean of the peers that report."
    if swarm.evaluations:
        first, last = swarm.evaluations[0], swarm.evaluations[-1]
        caption += f" Held-out loss went from {first.value:.3f} in round {first.round} to "
        caption += f"{last.value:.3f} in round {last.round}."
    return figure, caption


def _norms(swarm: SwarmState, labels: Labels) -> tuple[Figure, str] | None:
    series = _by_peer(swarm.history, lambda round: {peer: norm for peer, norm in round.norms.items() if norm > 0})
    if not series:
        return None
    figure, axes = _by_rounds(WIDE)
    _plot_peers(axes, series, labels)
    odd = [
        (round.round, round.norms[penalty.about])
        for round in swarm.history
        for penalty in round.penalties
        if penalty_code(penalty.code).kind != "late" and round.norms.get(penalty.about, 0) > 0
    ]
    axes.plot(*zip(*odd, strict=True) if odd else ((), ()), "o", markersize=13, fillstyle="none", color=INK)
    axes.set(ylabel="L2 norm of the pseudo-gradient", yscale="log")
    # Plain numbers: the formatter of logarithmic axes writes TeX, which is not parsed here.
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    caption = "As the reducers measured them, on a logarithmic scale. "
    return figure, caption + f"A ring marks what was refused or clipped ({count(len(odd), 'time')})."


def _shares(swarm: SwarmState, labels: Labels) -> tuple[Figure, str] | None:
    series = _by_peer(
        swarm.history, lambda round: {peer: 100 * weight / WEIGHT_ONE for peer, weight in round.weights.items()}
    )
    if not series:
        return None
    figure, axes = _by_rounds(WIDE)
    _plot_peers(axes, series, labels)
    axes.set(ylabel="weight in the mean (%)", ylim=(0, None))
    caption = "What each member weighed in the mean of a round. A gap is a round without it, 0 one that refused it."
    return figure, caption


def _amounts(swarm: SwarmState, labels: Labels) -> tuple[Figure, str] | None:
    history = swarm.history
    if not history:
        return None
    figure = Figure(figsize=(WIDE[0], 5.4))
    (tokens, tokens_all), (sent, sent_all) = figure.subplots(2, 2, sharex=True)
    _stairs(tokens, history, [round.tokens / 1e3 for round in history], BLUE, "tokens")
    _stairs(sent, history, [round.bytes_sent / 1e6 for round in history], ORANGE, "sent")
    rounds = [round.round for round in history]
    megatokens = itertools.accumulate(round.tokens / 1e6 for round in history)
    up = itertools.accumulate(round.bytes_sent / 1e6 for round in history)
    down = itertools.accumulate(round.bytes_received / 1e6 for round in history)
    every = _every(rounds)
    tokens_all.plot(rounds, list(megatokens), color=BLUE, marker="o", markevery=every)
    sent_all.plot(rounds, list(up), color=ORANGE, marker="^", markevery=every, label="sent")
    sent_all.plot(rounds, list(down), color=GREEN, marker="v", markevery=every, linestyle="--", label="received")
    sent_all.legend()
    tokens.set(ylabel="tokens (thousands)", title="per round")
    tokens_all.set(ylabel="tokens (millions)", title="in total")
    sent.set(xlabel="round", ylabel="sent by all (MB)")
    sent_all.set(xlabel="round", ylabel="bytes of all (MB)")
    sent.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, "Tokens that the members of each round trained, and the bytes of the peers that report."


def _seconds(swarm: SwarmState, labels: Labels) -> tuple[Figure, str] | None:
    history = swarm.history
    if not history:
        return None
    figure, axes = _by_rounds((WIDE[0], 3.2))
    _stairs(axes, history, [round.round_s for round in history], GREEN, "could train")
    _stairs(axes, history, [min(round.exposed_s, round.round_s) for round in history], ORANGE, "could not", "////")
    axes.set(ylabel="seconds", ylim=(0, None))
    axes.legend()
    longest = max(history, key=lambda round: round.round_s)
    return figure, (
        "From round to round; hatched is the time in which a peer could make no inner step, on average. "
        f"The longest was round {longest.round} with {longest.round_s:.1f} s."
    )


# ---- how ----


def _by_rounds(size: tuple[float, float]) -> tuple[Figure, Axes]:
    """A chart of something over rounds."""
    figure = Figure(figsize=size)
    axes = figure.subplots()
    axes.set(xlabel="round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def _plot(axes: Axes, points: Sequence[Point], x_of: Callable[[Point], float], label: str, **style: Any) -> None:
    if points:
        values = [point.value for point in points]
        axes.plot([x_of(point) for point in points], values, label=label, markevery=_every(points), **style)


def _by_peer(
    history: Iterable[Round], values_of: Callable[[Round], Mapping[str, float]]
) -> dict[str, dict[int, float]]:
    """For each peer, its value in each round that has one."""
    series: dict[str, dict[int, float]] = {}
    for round in history:
        for peer, value in values_of(round).items():
            series.setdefault(peer, {})[round.round] = value
    return series


def _plot_peers(axes: Axes, series: Mapping[str, Mapping[int, float]], labels: Labels) -> None:
    """One line per peer, with gaps where it has no value; for many peers the median and the range."""
    rounds = sorted(set().union(*series.values()))
    span = range(rounds[0], rounds[-1] + 1)
    if len(series) > MANY:
        _plot_range(axes, series, rounds)
        return
    for index, (peer, values) in enumerate(sorted(series.items(), key=lambda item: labels.get(item[0], item[0]))):
        axes.plot(
            span, [values.get(round, float("nan")) for round in span], label=shorten(labels.get(peer, peer)),
            color=COLOURS[index % len(COLOURS)], marker=MARKERS[index % len(MARKERS)],
            linestyle=LINES[index % len(LINES)], markevery=_every(span),
        )  # fmt: skip
    axes.legend(ncols=4, fontsize="small")


def _every(points: Sequence[object]) -> int:
    """The interval between markers, so that they do not overlap."""
    return max(1, len(points) // 60)


def _plot_range(axes: Axes, series: Mapping[str, Mapping[int, float]], rounds: Sequence[int]) -> None:
    columns = [[values[round] for values in series.values() if round in values] for round in rounds]
    axes.fill_between(rounds, list(map(min, columns)), list(map(max, columns)), color=SKY, alpha=0.3, label="all")
    axes.plot(rounds, list(map(median, columns)), color=BLUE, marker="o", label=f"median of {len(series)} peers")
    axes.legend(fontsize="small")


def _stairs(
    axes: Axes, history: Sequence[Round], values: Sequence[float], colour: str, label: str, hatch: str = ""
) -> None:
    """One bar per round; nothing where a round is missing."""
    known = dict(zip((round.round for round in history), values, strict=True))
    span = range(history[0].round, history[-1].round + 1)
    edges = [round - 0.5 for round in (*span, span[-1] + 1)]
    axes.stairs(
        [known.get(round, 0.0) for round in span], edges, fill=True, facecolor=colour, alpha=0.75, label=label,
        edgecolor=INK if hatch else colour, hatch=hatch or None, linewidth=0,
    )  # fmt: skip


# ---- SVG in HTML ----


def _svg(figure: Figure, description: str, prefix: str) -> str:
    """The figure for an HTML page: with unique ids, the page's text colour, a flexible size, and a description."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>|\s*<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    text = text.replace("url(#", f"url(#{prefix}").replace('xlink:href="#', f'href="#{prefix}')
    view = re.search(r'viewBox="[^"]*"', text)
    assert view is not None
    head = f'<svg {view[0]} role="img" aria-label="{escape(description)}">'
    return re.sub(r"<svg\b[^>]*>", lambda _: head, text, count=1).replace(INK, "currentColor").strip()
