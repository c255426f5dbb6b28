"""The results of the spike benchmark for people: a table, the bar, a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tests.benchmarks.rows import Bar, Row, draw_curve, losses, markdown

LARGEST = 0.5
"""Of plain averaging's peak."""
COLOURS = {"mean": "#222222", "edit": "#e45756", "centered-clip": "#4c78a8", "agreement": "#54a24b"}


def peak(row: Row, begins: int) -> float:
    """How far the highest loss from then on lies above the loss of the anchor where the spoilt rounds begin."""
    before = next(point["loss"] for point in row["points"] if point["round"] == begins)
    highest: float = max(point["loss"] for point in row["points"] if point["round"] > begins)
    return highest - float(before)


def peaks(rows: Sequence[Row], variant: str, begins: int) -> dict[int, float]:
    """By seed; 0 if the loss never rose above where it was."""
    return {row["seed"]: max(0.0, peak(row, begins)) for row in rows if row["variant"] == variant}


def judge(rows: Sequence[Row], begins: int) -> list[Bar]:
    """The bar, if there are rows for it: every seed must meet it, and plain averaging must have a peak at all."""
    ours, theirs = peaks(rows, "edit", begins), peaks(rows, "mean", begins)
    both = [seed for seed in ours if seed in theirs]
    if not both:
        return []
    each = ", ".join(f"seed {seed} {ours[seed]:.4f} of {theirs[seed]:.4f}" for seed in both)
    return [
        Bar(
            name=f"with the penalty the loss peak is under {LARGEST:.0%} of plain averaging's, in every seed",
            met=all(ours[seed] < LARGEST * theirs[seed] for seed in both),
            figures=f"{each} nats",
        )
    ]


def table(rows: Sequence[Row], begins: int) -> str:
    """Markdown: one line per reducer, peaks by seed, the last losses, and how often the spoilt peer was named."""
    seeds = sorted({row["seed"] for row in rows})
    titles = ["reducer", "peak (nats)", *(f"seed {seed}" for seed in seeds), "last loss", "penalties", "of the honest"]
    found = [variant for variant in COLOURS if losses(rows, variant)]
    return markdown([titles, *(_line(rows, variant, seeds, begins) for variant in found)])


def _line(rows: Sequence[Row], variant: str, seeds: Sequence[int], begins: int) -> list[str]:
    by_seed, last = peaks(rows, variant, begins), losses(rows, variant)
    mine = [row for row in rows if row["variant"] == variant]
    guilty = {row["seed"]: f"-peer-{row['peers']}" for row in mine}
    findings = [(row["seed"], found) for row in mine for found in row["findings"]]
    caught = [found for seed, found in findings if found[1].endswith(guilty[seed])]
    return [
        variant,
        _mean(list(by_seed.values())),
        *(f"{by_seed[seed]:.4f}" if seed in by_seed else "–" for seed in seeds),
        _mean(list(last.values())),
        str(len(caught)),
        str(len(findings) - len(caught)),
    ]


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def draw(rows: Sequence[Row], path: Path, begins: int, spoilt: int) -> None:
    """Held-out loss over rounds by reducer, with the spoilt rounds marked, as PNG."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    curves, heights = figure.subplots(1, 2, width_ratios=(3, 2))
    for variant, colour in COLOURS.items():
        draw_curve(curves, [row for row in rows if row["variant"] == variant], variant, colour)
    _mark_spoilt(curves, rows[0], begins, spoilt)
    curves.set(xlabel="tokens of all peers together (millions)", ylabel="held-out loss (nats per token)")
    curves.set_title("one of the peers learns from random labels in the grey rounds", fontsize=10)
    curves.legend(frameon=False)
    _draw_peaks(heights, rows, begins)
    for axes in (curves, heights):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _mark_spoilt(axes: Any, row: Row, begins: int, spoilt: int) -> None:
    tokens = {point["round"]: point["tokens"] / 1e6 for point in row["points"]}
    axes.axvspan(tokens[begins], tokens[begins + spoilt], color="#999999", alpha=0.15, linewidth=0)


def _draw_peaks(axes: Any, rows: Sequence[Row], begins: int) -> None:
    """One dot per seed, in order of the reducers."""
    found = [variant for variant in COLOURS if peaks(rows, variant, begins)]
    for place, variant in enumerate(found):
        values = list(peaks(rows, variant, begins).values())
        axes.plot([place] * len(values), values, "o", color=COLOURS[variant], alpha=0.8)
    axes.set(xticks=range(len(found)), xticklabels=found, xlim=(-0.5, max(1, len(found)) - 0.5))
    axes.set_ylabel("peak above the loss before (nats per token)")
    axes.set_title("height of the peak, per seed", fontsize=10)
