"""The rows of a training benchmark, and what every benchmark says of them: last losses, pairs by seed, bars, curves."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Something that must hold, whether it does, and the figures."""

    name: str
    met: bool
    figures: str

    def __str__(self) -> str:
        return f"{'PASS' if self.met else 'FAIL'}: {self.name}: {self.figures}"


def losses(rows: Sequence[Row], variant: str) -> dict[int, float]:
    """Last held-out loss by seed."""
    return {row["seed"]: row["loss"] for row in rows if row["variant"] == variant}


def percent(ratio: float) -> str:
    """How far `ratio` is from one."""
    return f"{100 * (ratio - 1):+.2f} %"


def markdown(lines: Iterable[Sequence[str]]) -> str:
    """A table of these cells; the first line holds the titles, and all columns but the first are numbers."""
    titles, *rest = lines
    ruled = [titles, ["---"] + ["---:"] * (len(titles) - 1), *rest]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in ruled)


def draw_curve(axes: Any, rows: Sequence[Row], label: str, colour: str, line: str = "-") -> None:
    """Mean loss over tokens of one variant's rows, with a band from the lowest to the highest.

    The first, untrained point is left out, since it would squeeze the rest together.
    """
    if not rows:
        return
    runs = [[point for point in row["points"] if point["tokens"]] for row in rows]
    tokens = [point["tokens"] / 1e6 for point in runs[0]]
    by_point = [[point["loss"] for point in points] for points in zip(*runs, strict=True)]
    axes.plot(tokens, [statistics.mean(values) for values in by_point], line, color=colour, label=label)
    lowest, highest = [min(values) for values in by_point], [max(values) for values in by_point]
    axes.fill_between(tokens, lowest, highest, color=colour, alpha=0.15, linewidth=0)
