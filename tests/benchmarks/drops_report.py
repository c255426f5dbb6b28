"""The results of the drop benchmark for people: a table, the bar, a picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tests.benchmarks.rows import Bar, Row, draw_curve, losses, markdown, percent

WORST = 0.021
"""What DiLoCo lost in its worst case, half of the outer gradients dropped and shards unlike (arXiv:2311.08105)."""

NAMES = {
    "no-drops": "no drops",
    "carry": "50 % drops with carry",
    "no-carry": "50 % drops without carry",
}
COLOURS = {"no-drops": "#222222", "carry": "#e45756", "no-carry": "#4c78a8"}


def paired_ratios(rows: Sequence[Row], variant: str) -> dict[int, float]:
    """Perplexity of `variant` over that without drops, by seed, where both were run."""
    ours, theirs = losses(rows, variant), losses(rows, "no-drops")
    return {seed: math.exp(ours[seed] - theirs[seed]) for seed in ours if seed in theirs}


def judge(rows: Sequence[Row]) -> list[Bar]:
    """The bar, if there are rows for it."""
    ratios = paired_ratios(rows, "carry")
    if not ratios:
        return []
    each = ", ".join(f"seed {seed} {percent(ratio)}" for seed, ratio in ratios.items())
    mean = statistics.mean(ratios.values())
    without = paired_ratios(rows, "no-carry").values()
    beside = f"; without carry {percent(statistics.mean(without))}" if without else ""
    return [
        Bar(
            name=f"perplexity with half of the contributions dropped at most {WORST:.1%} above that with none",
            met=mean - 1 <= WORST,
            figures=f"mean of {len(ratios)} paired seeds {percent(mean)} ({each}){beside}",
        )
    ]


def table(rows: Sequence[Row]) -> str:
    """Markdown: one line per variant, perplexities by seed."""
    seeds = sorted({row["seed"] for row in rows})
    titles = ["variant", "perplexity", *(f"seed {seed}" for seed in seeds), "to no drops", "held-out loss"]
    return markdown([titles, *(_line(rows, variant, seeds) for variant in NAMES if losses(rows, variant))])


def _line(rows: Sequence[Row], variant: str, seeds: Sequence[int]) -> list[str]:
    by_seed = losses(rows, variant)
    perplexities = {seed: math.exp(loss) for seed, loss in by_seed.items()}
    return [
        NAMES[variant],
        _mean(list(perplexities.values())),
        *(f"{perplexities[seed]:.4f}" if seed in perplexities else "–" for seed in seeds),
        _mean_percent([100 * (ratio - 1) for ratio in paired_ratios(rows, variant).values()]),
        _mean(list(by_seed.values())),
    ]


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def _mean_percent(values: Sequence[float]) -> str:
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):+.2f}{spread} %"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Held-out loss over tokens, and the last perplexities against no drops, as PNG."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    curves, ratios = figure.subplots(1, 2, width_ratios=(3, 2))
    for variant, name in NAMES.items():
        draw_curve(curves, [row for row in rows if row["variant"] == variant], name, COLOURS[variant])
    curves.set(xlabel="tokens of all peers together (millions)", ylabel="held-out loss (nats per token)")
    curves.set_title("mean over seeds, band from lowest to highest", fontsize=10)
    curves.legend(frameon=False)
    _draw_ratios(ratios, rows)
    for axes in (curves, ratios):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _draw_ratios(axes: Any, rows: Sequence[Row]) -> None:
    """One dot per seed, a bar for the mean, and the line that must not be crossed."""
    found = [variant for variant in NAMES if variant != "no-drops" and paired_ratios(rows, variant)]
    for place, variant in enumerate(found):
        percents = [100 * (ratio - 1) for ratio in paired_ratios(rows, variant).values()]
        axes.plot([place] * len(percents), percents, "o", color=COLOURS[variant], alpha=0.8)
        axes.plot([place - 0.15, place + 0.15], [statistics.mean(percents)] * 2, color=COLOURS[variant], linewidth=2)
    axes.axhline(100 * WORST, color="#54a24b", linestyle="--", linewidth=1)
    axes.axhline(0, color="#222222", linewidth=1)
    axes.set(xticks=range(len(found)), xlim=(-0.5, max(1, len(found)) - 0.5))
    axes.set_xticklabels([NAMES[variant].removeprefix("50 % drops ") for variant in found])
    axes.set_ylabel("last perplexity against no drops, per seed (%)")
    axes.set_title(f"half of the contributions dropped; the bar is {100 * WORST:g} %", fontsize=10)
