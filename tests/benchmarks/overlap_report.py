"""The results of the overlap benchmark for people: a table, the bars, a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Self

from matplotlib.figure import Figure

from tests.benchmarks.overlap_figures import Alone, Measured
from tests.benchmarks.rows import Bar, markdown, percent

BLOCKING, LAYERWISE, STREAMING = "blocking", "layerwise", "streaming"
MOST_EXPOSED = 0.02
LEAST_SPEED = 0.98
MOST_LOAD = 0.6
EXCHANGE = (0.15, 0.40)
"""What share of a blocking round the exchange takes, so that there is something to hide."""
PACE_SLACK = 0.01
"""Nobody makes more tokens than its declared step allows; beyond this the pace was not kept: nothing else counts."""


def sum_alone(alone: Sequence[Alone], slower: Sequence[float]) -> float:
    """Tokens per second that peers so slow make together, each alone in a run of its own."""
    rates = {each.slower: each.tokens_per_s for each in alone}
    return sum(rates[times] for times in slower)


def of_modes(runs: Sequence[Measured]) -> list[Measured]:
    """The first run of each mode with peers of unequal speeds: those that are compared with peers alone."""
    found: dict[str, Measured] = {}
    for run in runs:
        if run.repeat == 0:
            found.setdefault(run.mode, run)
    return list(found.values())


@dataclass(frozen=True, kw_only=True)
class Equals:
    """The runs that show what one more peer costs those who are in all of them."""

    without: list[Measured]
    with_equal: list[Measured]
    with_slow: list[Measured]

    @classmethod
    def of(cls, runs: Sequence[Measured]) -> Self:
        """Those among `runs`; empty lists if there are none."""
        modes = of_modes(runs)
        rest = [run for run in runs if not any(run is mode for mode in modes)]
        fewest = min((len(run.slower) for run in rest), default=0)
        more = [run for run in rest if len(run.slower) > fewest]
        return cls(
            without=[run for run in rest if len(run.slower) == fewest],
            with_equal=[run for run in more if len(set(run.slower)) == 1],
            with_slow=[run for run in more if len(set(run.slower)) > 1],
        )


# ---- bars


def judge(alone: Sequence[Alone], runs: Sequence[Measured]) -> list[Bar]:
    """The bars for which there are runs; of every streaming mode."""
    by_mode = {run.mode: run for run in of_modes(runs)}
    bars = [_set_up(by_mode[BLOCKING])] if BLOCKING in by_mode else []
    for mode, run in by_mode.items():
        if mode.startswith(STREAMING):
            bars += [_exposed(run), _speed(run, alone)]
    if {BLOCKING, LAYERWISE} <= set(by_mode):
        bars.append(_layerwise(by_mode[BLOCKING], by_mode[LAYERWISE]))
    equals = Equals.of(runs)
    bars += _others("a slower peer changes", equals.without, equals.with_slow)
    bars += _others("that it is slower changes", equals.with_equal, equals.with_slow)
    return [*bars, _pace(runs), _load(alone, runs)]


def _set_up(blocking: Measured) -> Bar:
    low, high = EXCHANGE
    return Bar(
        name=f"the exchange takes {low:.0%} to {high:.0%} of a blocking round",
        met=low <= blocking.exposed <= high,
        figures=f"{blocking.exposed:.1%} of {blocking.round_s:.1f} s",
    )


def _exposed(run: Measured) -> Bar:
    each = ", ".join(f"{statistics.fmean(peer.exposed):.2%}" for peer in run.peers)
    worst = max(share for peer in run.peers for share in peer.exposed)
    return Bar(
        name=f"{run.mode}: at most {MOST_EXPOSED:.0%} of a round exposed",
        met=run.exposed <= MOST_EXPOSED,
        figures=f"{run.exposed:.2%} (peers {each}; worst round of one peer {worst:.2%})",
    )


def _speed(run: Measured, alone: Sequence[Alone]) -> Bar:
    together = sum_alone(alone, run.slower)
    made, counted = run.made_per_s / together, run.counted_per_s / together
    return Bar(
        name=f"{run.mode}: tokens per second at least {LEAST_SPEED} of what the peers make alone",
        met=min(made, counted) >= LEAST_SPEED,
        figures=f"made {made:.3f}, counted {counted:.3f} of {together:.1f} tokens/s; missing and not exposed: "
        f"{1 - made - run.exposed:+.3f}",
    )


def _layerwise(blocking: Measured, layerwise: Measured) -> Bar:
    return Bar(
        name="layerwise exposes less than blocking",
        met=layerwise.exposed < blocking.exposed,
        figures=f"{layerwise.exposed:.1%} against {blocking.exposed:.1%} of a round",
    )


def _others(what: str, without: Sequence[Measured], with_slow: Sequence[Measured]) -> list[Bar]:
    """What the slow peer costs the equal ones, against what repeats of the same run differ by."""
    if not without or not with_slow:
        return []
    many = with_slow[0].slower.count(1.0)
    kinds = (without, with_slow)
    rates = [[sum(peer.tokens_per_s for peer in run.peers[:many]) for run in runs] for runs in kinds]
    return [
        _no_worse(f"{what} the others' round time", [[_round_s(run) for run in runs] for runs in kinds], 1, "s"),
        _no_worse(f"{what} the others' tokens/s", rates, -1, "tokens/s"),
    ]


def _round_s(run: Measured) -> float:
    return statistics.fmean(of.seconds for of in run.rounds)


def _no_worse(name: str, pair: Sequence[Sequence[float]], sign: int, unit: str) -> Bar:
    """`sign` is 1 if more is worse. The spread is the largest difference of two runs of the same kind."""
    without, with_slow = pair
    spread = max((abs(one - other) for runs in pair for one, other in combinations(runs, 2)), default=0.0)
    before, after = statistics.fmean(without), statistics.fmean(with_slow)
    each = " and ".join(", ".join(f"{value:.3f}" for value in values) for values in pair)
    return Bar(
        name=f"{name} by no more than runs of the same kind differ",
        met=sign * (after - before) <= spread,
        figures=f"{percent(after / before)}: {each} {unit}, spread {spread:.3f}",
    )


def _pace(runs: Sequence[Measured]) -> Bar:
    shares = [peer.of_declared for run in runs for peer in run.peers]
    return Bar(
        name="nobody is faster than its device",
        met=max(shares) <= 1 + PACE_SLACK,
        figures=f"{max(shares):.4f} of the declared speed at most, {min(shares):.4f} at least",
    )


def _load(alone: Sequence[Alone], runs: Sequence[Measured]) -> Bar:
    most = max([*(each.load for each in alone), *(run.load for run in runs)])
    mine = max(run.swarm_load for run in runs)
    return Bar(
        name=f"load of everything on this machine at most {MOST_LOAD:.0%} of the cores",
        met=most <= MOST_LOAD,
        figures=f"{most:.0%} at most; the run's own processes {mine:.0%}",
    )


# ---- table


def sentence(run: Measured) -> str:
    """A run in one line, while the benchmark goes on."""
    peers = ", ".join(f"{times:g}" for times in run.slower)
    return (
        f"{run.mode}, slower by {peers}: rounds of {run.round_s:.2f} s, {run.exposed:.2%} exposed, "
        f"made {run.made_per_s:.1f} and counted {run.counted_per_s:.1f} tokens/s, "
        f"load {run.load:.0%} (the run {run.swarm_load:.0%})"
    )


def table(alone: Sequence[Alone], runs: Sequence[Measured]) -> str:
    """Markdown: a line per run."""
    titles = ["run", "slower by", "round (s)", "exposed", "of the worst peer", "made", "counted", "MB up", "load"]
    return markdown([titles, *(_line(run, alone) for run in runs)])


def _line(run: Measured, alone: Sequence[Alone]) -> list[str]:
    known = {each.slower for each in alone}
    together = sum_alone(alone, run.slower) if known >= set(run.slower) else 0.0
    seconds = [of.seconds for of in run.rounds]
    spread = f" ± {statistics.stdev(seconds):.2f}" if len(seconds) > 1 else ""
    sent = statistics.fmean(size for peer in run.peers for size in peer.bytes_sent)
    return [
        run.mode,
        " ".join(f"{times:g}" for times in run.slower),
        f"{run.round_s:.2f}{spread}",
        f"{run.exposed:.2%}",
        f"{max(statistics.fmean(peer.exposed) for peer in run.peers):.2%}",
        *(f"{rate:.1f}" + (f" ({rate / together:.3f})" if together else "")
          for rate in (run.made_per_s, run.counted_per_s)),
        f"{sent / 1e6:.1f}",
        f"{run.load:.0%} ({run.swarm_load:.0%})",
    ]  # fmt: skip


# ---- picture


def draw(alone: Sequence[Alone], runs: Sequence[Measured], path: Path) -> None:
    """What of a round is exposed in each mode, and the round times without and with a slow peer, as PNG."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_modes(left, alone, of_modes(runs))
    _draw_equals(right, Equals.of(runs))
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _draw_modes(axes: Any, alone: Sequence[Alone], modes: Sequence[Measured]) -> None:
    for place, run in enumerate(modes):
        exposed_s = run.exposed * run.round_s
        axes.barh(place, run.round_s - exposed_s, color="#54a24b", label="inner steps" if place == 0 else None)
        axes.barh(place, exposed_s, left=run.round_s - exposed_s, color="#e45756",
                  label="exposed" if place == 0 else None)  # fmt: skip
        share = min(run.made_per_s, run.counted_per_s) / sum_alone(alone, run.slower)
        text = f" {run.exposed:.1%} exposed, {share:.3f} of alone"
        axes.text(run.round_s, place, text, va="center", fontsize=8)
    axes.set(yticks=range(len(modes)), xlabel="seconds of a round, mean over peers and rounds")
    axes.set_yticklabels([run.mode for run in modes])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.6 * max(run.round_s for run in modes))
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.set_title("four peers, one of them slower", fontsize=10)


def _draw_equals(axes: Any, equals: Equals) -> None:
    """A dot per round, in a column per run."""
    kinds = (
        ("alone", "#4c78a8", equals.without), ("and an equal one", "#54a24b", equals.with_equal),
        ("and a slow one", "#f58518", equals.with_slow),
    )  # fmt: skip
    place = 0
    for name, colour, runs in kinds:
        for run in runs:
            seconds = [of.seconds for of in run.rounds]
            axes.plot([place] * len(seconds), seconds, "o", color=colour, alpha=0.7, label=name)
            name, place = "_" + name, place + 1  # said once
    axes.set(xticks=[], xlim=(-0.5, max(1, place) - 0.5), ylabel="round (s)")
    if place:
        axes.legend(frameon=False, fontsize=8)
    axes.set_title("what one more peer costs three equal ones", fontsize=10)
