"""The results of the methods benchmark for people: a table per group, and a picture of each."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tests.benchmarks.quality_report import paired_ratios, sent_bytes
from tests.benchmarks.rows import Row, draw_curve, losses, markdown, percent

Groups = Mapping[str, Sequence[str]]
"""Titles and the names of their methods."""
OURS, RIVAL = "edit", "ddp"
"""What every other method is compared with; both are drawn in every picture."""


def table(rows: Sequence[Row], groups: Groups) -> str:
    """Markdown: a title and a table per group that has rows."""
    seeds = sorted({row["seed"] for row in rows})
    titles = ["method", "held-out loss", *(f"seed {seed}" for seed in seeds), f"to {RIVAL}", f"to {OURS}", "peers",
              "tokens", "rounds", "MB up"]  # fmt: skip
    return "\n".join(
        f"**{title}**\n\n" + markdown([titles, *(_line(rows, name, seeds) for name in names if losses(rows, name))])
        for title, names in groups.items()
        if any(losses(rows, name) for name in names)
    )


def _line(rows: Sequence[Row], name: str, seeds: Sequence[int]) -> list[str]:
    by_seed = losses(rows, name)
    values = list(by_seed.values())
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    row = next(row for row in rows if row["variant"] == name)
    return [
        name, f"{statistics.mean(values):.4f}{spread}",
        *(f"{by_seed[seed]:.4f}" if seed in by_seed else "–" for seed in seeds),
        _to(rows, name, RIVAL), _to(rows, name, OURS), str(row["peers"]), f"{row['tokens'] / 1e6:.2f} M",
        str(row["exchanges"]), f"{sent_bytes(row) * row['exchanges'] / 1e6:.1f}",
    ]  # fmt: skip


def _to(rows: Sequence[Row], name: str, other: str) -> str:
    """Mean of the paired ratios, less one, and its standard error."""
    ratios = list(paired_ratios(rows, name, to=other).values())
    if not ratios or name == other:
        return "–"
    if len(ratios) == 1:
        return percent(ratios[0])
    error = 100 * statistics.stdev(ratios) / len(ratios) ** 0.5
    return f"{percent(statistics.mean(ratios)).removesuffix(' %')} ± {error:.2f} %"


def draw(rows: Sequence[Row], groups: Groups, path: Path) -> None:
    """Held-out loss over tokens, a picture per group, as PNG."""
    shown = [(title, names) for title, names in groups.items() if any(losses(rows, name) for name in names)]
    figure = Figure(figsize=(7, 4 * len(shown)), layout="constrained")
    for axes, (title, names) in zip(figure.subplots(len(shown), 1, squeeze=False)[:, 0], shown, strict=True):
        for name, colour in ((RIVAL, "#222222"), (OURS, "#e45756")):
            draw_curve(axes, [row for row in rows if row["variant"] == name], name, colour, "--")
        others = [name for name in names if name not in (RIVAL, OURS)]
        for place, name in enumerate(others):
            colour = to_hex(colormaps["tab20"](place))
            draw_curve(axes, [row for row in rows if row["variant"] == name], name, colour)
        axes.set(xlabel="tokens of all peers together (millions)", ylabel="held-out loss (nats per token)")
        axes.set_title(title, fontsize=10)
        axes.legend(frameon=False, fontsize=7, ncols=2)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90)
