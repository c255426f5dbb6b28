"""The results of the attacks for people: a table with a line per attack, and its bars."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tests.benchmarks.rows import Bar, Row, losses, markdown, percent

ALONE = "alone"
"""The three honest peers without the attacker."""
WORST = 0.03
"""What an attack may add to the held-out loss of the three alone, in each seed."""


def attacked(rows: Sequence[Row]) -> list[str]:
    """The variants with an attacker, in the order of the rows."""
    return [name for name in dict.fromkeys(row["variant"] for row in rows) if name.split()[0] != ALONE]


def ratios(rows: Sequence[Row], variant: str) -> dict[int, float]:
    """Last loss over that of the three alone with the same reducer, by seed, where both were run."""
    ours, theirs = losses(rows, variant), losses(rows, f"{ALONE} {variant.split()[1]}")
    return {seed: ours[seed] / theirs[seed] for seed in ours if seed in theirs}


def faults(rows: Sequence[Row], variant: str) -> list[str]:
    """Which bars an attack breaks, in words; none if it meets all."""
    mine = [row for row in rows if row["variant"] == variant]
    found = [f"seed {row['seed']} ended early: {row['crash']}" for row in mine if row["crash"]]
    apart = [str(row["seed"]) for row in mine if row["differing"]]
    unseen = [str(row["seed"]) for row in mine if row["unseen"]]
    found += [f"digests differ (seed {', '.join(apart)})"] if apart else []
    # Written so that a loss that is no number breaks it, too.
    if not all(ratio <= 1 + WORST for ratio in ratios(rows, variant).values()):
        found.append("loss")
    found += [f"no penalty on every honest peer (seed {', '.join(unseen)})"] if unseen else []
    return found


def judge(rows: Sequence[Row]) -> list[Bar]:
    """A bar for each attack, and one for the honest, whom no attack may have punished for anything but lateness."""
    bars = []
    for variant in attacked(rows):
        broken = faults(rows, variant)
        name = f"{variant}: no crash, one digest, loss within {WORST:.0%}, penalty on every honest peer"
        bars.append(Bar(name=name, met=not broken, figures="; ".join(broken) or _loss(rows, variant)))
    return bars


def table(rows: Sequence[Row]) -> str:
    """Markdown: one line per attack, then what was said of the attacker, with one evidence per code."""
    titles = [
        "attack", "reducer", "loss to the three alone", *(f"seed {seed}" for seed in _seeds(rows)), "digests equal",
        "penalties on every honest peer", "of the honest", "bars",
    ]  # fmt: skip
    lines = [_line(rows, variant) for variant in attacked(rows)]
    return markdown([titles, *lines]) + "\n" + "".join(_evidence(rows, variant) for variant in attacked(rows))


def _seeds(rows: Sequence[Row]) -> list[int]:
    return sorted({row["seed"] for row in rows})


def _line(rows: Sequence[Row], variant: str) -> list[str]:
    mine = [row for row in rows if row["variant"] == variant]
    found = ratios(rows, variant)
    attack, reducer = variant.split()
    return [
        attack, reducer, _loss(rows, variant),
        *(percent(found[seed]) if seed in found else "–" for seed in _seeds(rows)),
        "no" if any(row["differing"] for row in mine) else "yes",
        ", ".join(codes_seen_by_all(mine)) or "none",
        ", ".join(sorted({code for row in mine for code in row["wronged"]})) or "none",
        "missed" if faults(rows, variant) else "met",
    ]  # fmt: skip


def codes_seen_by_all(rows: Sequence[Row]) -> list[str]:
    """The codes that every honest peer was told of the attacker, in all of these rows."""
    seen = [{code for code, item in row["blamed"].items() if item["peers"] == row["honest"]} for row in rows]
    return sorted(set.intersection(*seen)) if seen else []


def _loss(rows: Sequence[Row], variant: str) -> str:
    values = [ratio for ratio in ratios(rows, variant).values() if math.isfinite(ratio)]
    return percent(statistics.mean(values)) if len(values) == len(ratios(rows, variant)) > 0 else "not a number"


def _evidence(rows: Sequence[Row], variant: str) -> str:
    """For each code one evidence, from the first seed that has it."""
    found: dict[str, str] = {}
    for row in rows:
        if row["variant"] == variant:
            for code, item in row["blamed"].items():
                where = f"layer {item['layer']}, " if item["layer"] else ""
                found.setdefault(code, f"{where}factor {item['factor']:g}: {item['evidence']}")
    said = "; ".join(f"{code} ({text})" for code, text in sorted(found.items())) or "nothing"
    return f"- {variant}: {said}\n"
