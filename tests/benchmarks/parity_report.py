"""The results of the parity benchmark for people: a table, the bars, a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tests.benchmarks.quality_report import paired_ratios
from tests.benchmarks.rows import Bar, Row, draw_curve, losses, markdown, percent

WITHIN = 0.005
"""The last loss may be above plain DiLoCo's by this fraction, on the mean over the seeds."""
BARS = ("int4", "by-time", "interpolate-10", "interpolate-25", "interpolate-50")
COLOURS = {
    "plain": "#222222", "int4": "#e45756", "by-time": "#4c78a8", "rebase-10": "#54a24b", "rebase-25": "#2f7d32",
    "rebase-50": "#1b4d1e", "all": "#b279a2", "float16": "#9d9d9d", "interpolate-10": "#f5b558",
    "interpolate-25": "#f58518", "interpolate-50": "#a85508",
}  # fmt: skip


def judge(rows: Sequence[Row]) -> list[Bar]:
    """A bar per variant that has one and has rows."""
    found = [(variant, paired_ratios(rows, variant, to="plain")) for variant in BARS]
    return [_bar(variant, list(ratios.values())) for variant, ratios in found if ratios]


def _bar(variant: str, ratios: Sequence[float]) -> Bar:
    mean = statistics.mean(ratios)
    return Bar(
        name=f"{variant} at most {WITHIN:.1%} above plain DiLoCo at equal tokens (mean over paired seeds)",
        met=mean - 1 <= WITHIN,
        figures=f"{_to_plain(ratios)}; {', '.join(percent(ratio) for ratio in ratios)}",
    )


def _to_plain(ratios: Sequence[float]) -> str:
    """Mean of the paired ratios, less one, and its standard error."""
    if len(ratios) < 2:
        return percent(statistics.mean(ratios))
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    return f"{percent(statistics.mean(ratios)).removesuffix(' %')} ± {100 * error:.2f} %"


def table(rows: Sequence[Row]) -> str:
    """Markdown: one line per variant, in the order in which they were run."""
    seeds = sorted({row["seed"] for row in rows})
    titles = ["variant", "held-out loss", *(f"seed {seed}" for seed in seeds), "to plain", "tokens", "findings"]
    return markdown([titles, *(_line(rows, variant, seeds) for variant in COLOURS if losses(rows, variant))])


def _line(rows: Sequence[Row], variant: str, seeds: Sequence[int]) -> list[str]:
    by_seed, ratios = losses(rows, variant), list(paired_ratios(rows, variant, to="plain").values())
    values = list(by_seed.values())
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    mine = [row for row in rows if row["variant"] == variant]
    return [
        variant,
        f"{statistics.mean(values):.4f}{spread}",
        *(f"{by_seed[seed]:.4f}" if seed in by_seed else "–" for seed in seeds),
        "–" if variant == "plain" else _to_plain(ratios),
        " ".join(sorted({f"{row['tokens']:,}" for row in mine})),
        str(sum(len(row["findings"]) for row in mine)),
    ]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Held-out loss over tokens, and the last losses against plain DiLoCo's, as PNG."""
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    curves, ratios = figure.subplots(1, 2, width_ratios=(1, 1))
    for variant, colour in COLOURS.items():
        draw_curve(curves, [row for row in rows if row["variant"] == variant], variant, colour)
    curves.set(xlabel="tokens of all peers together (millions)", ylabel="held-out loss (nats per token)")
    curves.set_title("mean over seeds, band from lowest to highest", fontsize=10)
    curves.legend(frameon=False, fontsize=8)
    _draw_ratios(ratios, rows)
    for axes in (curves, ratios):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _draw_ratios(axes: Any, rows: Sequence[Row]) -> None:
    """One dot per variant and seed, a stroke for the mean, and the line that must not be crossed."""
    found = [variant for variant in COLOURS if variant != "plain" and paired_ratios(rows, variant, to="plain")]
    for place, variant in enumerate(found):
        percents = [100 * (ratio - 1) for ratio in paired_ratios(rows, variant, to="plain").values()]
        axes.plot([place] * len(percents), percents, "o", color=COLOURS[variant], alpha=0.7)
        axes.plot([place - 0.25, place + 0.25], [statistics.mean(percents)] * 2, color=COLOURS[variant], linewidth=2)
    axes.axhline(100 * WITHIN, color="#54a24b", linestyle="--", linewidth=1)
    axes.axhline(0, color="#222222", linewidth=1)
    axes.set(xticks=range(len(found)), xlim=(-0.5, max(1, len(found)) - 0.5))
    axes.set_xticklabels(found, rotation=30, ha="right", fontsize=8)
    axes.set_ylabel("last loss against plain DiLoCo's, per seed (%)")
    axes.set_title(f"the bar is {100 * WITHIN:g} % for the mean", fontsize=10)
