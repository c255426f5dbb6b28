"""The results of the quality benchmark for people: a table, the bars, a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tests.benchmarks.rows import Bar, Row, draw_curve, losses, markdown, percent
from tests.benchmarks.variants import CODECS, VARIANTS

FLOAT32_BYTES = 4
LOSSLESS = 0.01
"""A codec is lossless if its held-out loss differs from float32's by at most this fraction."""
FEWER_BYTES = {"int4": 7.2, "sparse": 30.0}
"""Times H fewer bytes per token than data parallelism in float32, at least."""


def paired_ratios(rows: Sequence[Row], variant: str, to: str = "float32") -> dict[int, float]:
    """Loss of `variant` over that of `to`, by seed, where both were run."""
    ours, theirs = losses(rows, variant), losses(rows, to)
    return {seed: ours[seed] / theirs[seed] for seed in ours if seed in theirs}


# ---- bars


def judge(rows: Sequence[Row]) -> list[Bar]:
    """The bars for which there are rows."""
    found = [_lossless(rows, "int4"), *(_better_than_one(rows, codec) for codec in ("float32", "int4"))]
    return [bar for bar in found if bar is not None]


def _lossless(rows: Sequence[Row], codec: str) -> Bar | None:
    ratios = paired_ratios(rows, codec)
    if not ratios:
        return None
    mean = statistics.mean(ratios.values())
    each = ", ".join(f"seed {seed} {percent(ratio)}" for seed, ratio in ratios.items())
    return Bar(
        name=f"{codec} within {LOSSLESS:.0%} of float32 (each seed and the mean)",
        met=all(abs(ratio - 1) <= LOSSLESS for ratio in (*ratios.values(), mean)),
        figures=f"{each}; mean {percent(mean)}",
    )


def _better_than_one(rows: Sequence[Row], codec: str) -> Bar | None:
    """The gap of the means must exceed the larger of the two ranges over seeds."""
    many, one, together = (list(losses(rows, variant).values()) for variant in (codec, "one-peer", "ddp"))
    if not many or not one:
        return None
    gap = statistics.mean(one) - statistics.mean(many)
    spread = max(max(many) - min(many), max(one) - min(one))
    ddp = f"; ddp {statistics.mean(together):.4f}" if together else ""
    return Bar(
        name=f"all peers ({codec}) below one peer with as many steps by more than the spread over seeds",
        met=gap > spread,
        figures=f"{statistics.mean(many):.4f} against {statistics.mean(one):.4f}: {gap:.4f} lower, spread {spread:.4f}"
        + ddp,
    )


def fewer_bytes(rows: Sequence[Row]) -> list[Bar]:
    """The bars on bytes for which there are rows."""
    found = [_fewer_bytes(rows, codec) for codec in FEWER_BYTES]
    return [bar for bar in found if bar is not None]


def _fewer_bytes(rows: Sequence[Row], codec: str) -> Bar | None:
    """Both send and receive 2(n−1)/n of what they average; data parallelism does so in every one of the H steps."""
    row = next((row for row in rows if row["variant"] == codec), None)
    if row is None:
        return None
    times = 2 * FLOAT32_BYTES * row["parameters"] / both_ways(row)
    steps = row["steps"] / row["exchanges"]
    return Bar(
        name=f"{codec}: at least {FEWER_BYTES[codec]:g} x H fewer bytes per token than ddp in float32",
        met=times >= FEWER_BYTES[codec],
        figures=f"{times:.1f} x H; with the mean H of {steps:.1f} {times * steps:.0f} x fewer",
    )


# ---- table


def table(rows: Sequence[Row]) -> str:
    """Markdown: one line per variant."""
    seeds = sorted({row["seed"] for row in rows})
    titles = ["variant", "held-out loss", *(f"seed {seed}" for seed in seeds), "to float32", "peers", "tokens",
              "bytes per parameter up", "times", "MB up"]  # fmt: skip
    return markdown([titles, *(_line(rows, variant, seeds) for variant in VARIANTS if losses(rows, variant))])


def _line(rows: Sequence[Row], variant: str, seeds: Sequence[int]) -> list[str]:
    by_seed = losses(rows, variant)
    values = list(by_seed.values())
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    ratios = paired_ratios(rows, variant).values()
    row = next(row for row in rows if row["variant"] == variant)
    up_bytes = sent_bytes(row)
    return [
        variant, f"{statistics.mean(values):.4f}{spread}",
        *(f"{by_seed[seed]:.4f}" if seed in by_seed else "–" for seed in seeds),
        percent(statistics.mean(ratios)) if ratios else "–", str(row["peers"]), f"{row['tokens'] / 1e6:.2f} M",
        f"{up_bytes / row['parameters']:.3f}", str(row["exchanges"] if up_bytes else 0),
        f"{up_bytes * row['exchanges'] / 1e6:.1f}",
    ]  # fmt: skip


def both_ways(row: Row) -> int:
    """Encoded size of a contribution and of a mean."""
    return int(row["wire_bytes"]) + (int(row.get("mean_bytes", 0)) or int(row["wire_bytes"]))


def sent_bytes(row: Row) -> float:
    """What one peer sends per exchange: (n−1)/n of a contribution and of a mean, as in any all-reduce without waste."""
    peers: int = row["peers"]
    return float((peers - 1) / peers * both_ways(row))


# ---- picture

COLOURS = {
    "float32": "#222222", "float16": "#4c78a8", "int8": "#54a24b", "int4": "#e45756", "sparse": "#72b7b2",
    "one-peer": "#f58518",
    "ddp": "#b279a2", "adamw": "#9d755d",
}  # fmt: skip


def draw(rows: Sequence[Row], path: Path) -> None:
    """Held-out loss over tokens, and the codecs beside float32, as PNG."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    curves, codecs = figure.subplots(1, 2, width_ratios=(3, 2))
    for variant in VARIANTS:
        line = "-" if variant in CODECS else "--"
        draw_curve(curves, [row for row in rows if row["variant"] == variant], variant, COLOURS[variant], line)
    curves.set(xlabel="tokens of all peers together (millions)", ylabel="held-out loss (nats per token)")
    curves.set_title("mean over seeds, band from lowest to highest", fontsize=10)
    curves.legend(frameon=False)
    _draw_ratios(codecs, rows)
    for axes in (curves, codecs):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _draw_ratios(axes: Any, rows: Sequence[Row]) -> None:
    """One dot per codec and seed: its last loss against float32's."""
    lossy = [codec for codec in CODECS[1:] if paired_ratios(rows, codec)]
    for place, codec in enumerate(lossy):
        percents = [100 * (ratio - 1) for ratio in paired_ratios(rows, codec).values()]
        axes.plot([place] * len(percents), percents, "o", color=COLOURS[codec], alpha=0.8)
    limit = 100 * LOSSLESS
    axes.axhspan(-limit, limit, color="#54a24b", alpha=0.08)
    axes.axhline(0, color="#222222", linewidth=1)
    axes.set(xticks=range(len(lossy)), xticklabels=lossy, xlim=(-0.5, max(1, len(lossy)) - 0.5))
    axes.set_ylabel("last loss against float32's, per seed (%)")
    axes.set_title(f"codecs; the green band is ± {limit:g} %", fontsize=10)
