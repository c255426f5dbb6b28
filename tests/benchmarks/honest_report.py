"""The results of the benchmark of honest peers for people: a table, the bars, a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tests.benchmarks.rows import Bar, Row, draw_curve, losses, markdown

SHARDS = ("iid", "non-iid")
COSTLIEST = 0.02
"""Share of a round that judging may take."""
JUDGED = 3
"""How often a peer judges a round: when it closes, from the table, and before it votes."""
MEASURED = 2
"""How often a contribution is measured: by the reducers, and by whom it comes from, who checks them."""
COLOURS = {"iid": "#4c78a8", "non-iid": "#e45756"}


def differences(rows: Sequence[Row], ours: str, shards: str) -> dict[int, float]:
    """Last held-out loss of `ours` less that of mean, by seed, where both were run."""
    mine, plain = losses(rows, f"{ours} {shards}"), losses(rows, f"mean {shards}")
    return {seed: mine[seed] - plain[seed] for seed in mine if seed in plain}


def standard_error(values: Sequence[float]) -> float:
    """Of their mean; none for a single value."""
    return statistics.stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def cost(row: Row) -> float:
    """Judging's share of the round of one peer that works alone on its machine and never waits."""
    peer_s = row["rounds_s"] / row["peers"]
    return float((MEASURED * row["measuring_s"] / row["peers"] + JUDGED * row["judging_s"]) / peer_s)


def judge(rows: Sequence[Row], ours: str) -> list[Bar]:
    """The bars that there are rows for."""
    bars = [_no_worse(rows, ours, shards) for shards in SHARDS if differences(rows, ours, shards)]
    costs = [cost(row) for row in rows if row["variant"].split()[0] == ours]
    if costs:
        worst = f"mean {statistics.mean(costs):.3%}, worst run {max(costs):.3%}"
        bars.append(
            Bar(name=f"judging takes under {COSTLIEST:.0%} of a round", met=max(costs) < COSTLIEST, figures=worst)
        )
    return bars


def _no_worse(rows: Sequence[Row], ours: str, shards: str) -> Bar:
    """No worse: the mean difference is not above zero by more than its standard error over the seeds."""
    by_seed = differences(rows, ours, shards)
    values = list(by_seed.values())
    mean, error = statistics.mean(values), standard_error(values)
    each = ", ".join(f"seed {seed} {value:+.4f}" for seed, value in by_seed.items())
    return Bar(
        name=f"{shards}: {ours} ends no worse than mean (mean difference at most its standard error)",
        met=mean <= error,
        figures=f"{mean:+.4f}, standard error {error:.4f} ({each}) nats per token",
    )


def table(rows: Sequence[Row], ours: str) -> str:
    """Markdown: one line per shards and reducer."""
    seeds = sorted({row["seed"] for row in rows})
    titles = [
        "shards, reducer",
        "held-out loss",
        *(f"seed {seed}" for seed in seeds),
        "to mean",
        "judging",
        "false alarms",
    ]
    variants = [f"{reducer} {shards}" for shards in SHARDS for reducer in ("mean", ours)]
    return markdown([titles, *(_line(rows, variant, seeds, ours) for variant in variants if losses(rows, variant))])


def _line(rows: Sequence[Row], variant: str, seeds: Sequence[int], ours: str) -> list[str]:
    reducer, shards = variant.split()
    by_seed = losses(rows, variant)
    mine = [row for row in rows if row["variant"] == variant]
    values = list(differences(rows, ours, shards).values()) if reducer == ours else []
    return [
        f"{shards}, {reducer}",
        _mean(list(by_seed.values())),
        *(f"{by_seed[seed]:.4f}" if seed in by_seed else "–" for seed in seeds),
        f"{statistics.mean(values):+.4f} ± {standard_error(values):.4f}" if values else "–",
        f"{statistics.mean(map(cost, mine)):.3%}",
        _alarms(mine),
    ]


def _alarms(rows: Sequence[Row]) -> str:
    """How many contributions something was found against, by code, of how many."""
    given = sum(row["peers"] * row["exchanges"] for row in rows)
    found = [code for row in rows for _, _, code, *_ in row["findings"]]
    by_code = ", ".join(f"{found.count(code)} {code}" for code in sorted(set(found)))
    return f"{by_code or 'none'} of {given}"


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def draw(rows: Sequence[Row], path: Path, ours: str) -> None:
    """Held-out loss over tokens, and the last losses against mean, as PNG."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    curves, dots = figure.subplots(1, 2, width_ratios=(3, 2))
    for shards, colour in COLOURS.items():
        for reducer, line in ((ours, "-"), ("mean", ":")):
            variant = f"{reducer} {shards}"
            draw_curve(curves, [row for row in rows if row["variant"] == variant], f"{shards}, {reducer}", colour, line)
    curves.set(xlabel="tokens of all peers together (millions)", ylabel="held-out loss (nats per token)")
    curves.set_title("mean over seeds, band from lowest to highest", fontsize=10)
    curves.legend(frameon=False)
    _draw_differences(dots, rows, ours)
    for axes in (curves, dots):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _draw_differences(axes: Any, rows: Sequence[Row], ours: str) -> None:
    """One dot per seed, a bar for the mean."""
    for place, shards in enumerate(SHARDS):
        values = list(differences(rows, ours, shards).values())
        if values:
            axes.plot([place] * len(values), values, "o", color=COLOURS[shards], alpha=0.8)
            axes.plot([place - 0.15, place + 0.15], [statistics.mean(values)] * 2, color=COLOURS[shards], linewidth=2)
    axes.axhline(0, color="#222222", linewidth=1)
    axes.set(xticks=range(len(SHARDS)), xticklabels=SHARDS, xlim=(-0.5, len(SHARDS) - 0.5))
    axes.set_ylabel(f"last loss of {ours} less that of mean, per seed")
    axes.set_title("all peers honest", fontsize=10)
