"""The results of the churn benchmark for people: a table, the bars, a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from tests.benchmarks.churn_figures import Kept
from tests.benchmarks.rows import Bar, markdown

MOST_LOAD = 0.6
COLOURS = {"ours": "#4c78a8"}
OTHER = "#e45756"


def name_of(kept: Kept) -> str:
    return f"{kept.system}{'' if kept.churn else ', nobody comes or goes'}"


def calm_of(kept: Kept, all_kept: Sequence[Kept]) -> Kept | None:
    """The same system without churn."""
    return next((each for each in all_kept if each.system == kept.system and not each.churn), None)


def judge(all_kept: Sequence[Kept]) -> list[Bar]:
    """There is no bar on what is kept: only that the figures can be believed."""
    most = max(all_kept, key=lambda each: each.load)
    return [
        Bar(
            name=f"load of everything on this machine at most {MOST_LOAD:.0%} of the cores",
            met=most.load <= MOST_LOAD,
            figures=f"{most.load:.0%} at most ({name_of(most)})",
        )
    ]


def sentence(kept: Kept) -> str:
    """A run in one line, while the benchmark goes on."""
    return (
        f"{name_of(kept)}: {len(kept.commits_s)} rounds in {kept.seconds:.0f} s, {kept.tokens_per_s:.1f} tokens/s "
        f"counted, {kept.of_present:.3f} of what the peers that were there could make, loss {kept.loss:.4f}, "
        f"{kept.longest_s:.1f} s without a round at most, load {kept.load:.0%}"
    )


def table(all_kept: Sequence[Kept]) -> str:
    """Markdown: a line per run, then what was done when, and what went wrong."""
    titles = [
        "system", "rounds", "tokens/s counted", "to nobody coming or going", "peers there", "of what they could make",
        "longest without a round (s)", "held-out loss", "load",
    ]  # fmt: skip
    lines = [titles]
    for kept in all_kept:
        calm = calm_of(kept, all_kept)
        ratio = f"{kept.tokens_per_s / calm.tokens_per_s:.3f}" if kept.churn and calm and calm.tokens else "–"
        spread = f" ± {(max(kept.losses) - min(kept.losses)) / 2:.4f}" if len(kept.losses) > 1 else ""
        lines.append([
            name_of(kept), str(len(kept.commits_s)), f"{kept.tokens_per_s:.1f}", ratio,
            f"{kept.peer_seconds / kept.seconds:.2f}", f"{kept.of_present:.3f}", f"{kept.longest_s:.1f}",
            f"{kept.loss:.4f}{spread}", f"{kept.load:.0%}",
        ])  # fmt: skip
    return markdown(lines) + "\n" + "".join(_about(kept) for kept in all_kept)


def _about(kept: Kept) -> str:
    acts = ", ".join(f"{act.at_s:.0f} s {act.what} {act.peer}" for act in kept.acts)
    notes = "".join(f"  - {note}\n" for note in kept.notes)
    return f"- {name_of(kept)}: lines: {kept.shaper}{f'; {acts}' if acts else ''}\n{notes}"


def draw(all_kept: Sequence[Kept], path: Path) -> None:
    """Rounds over time of each system, without churn and with it, as PNG."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for kept in all_kept:
        times = [0.0, *kept.commits_s, kept.seconds]
        counts = [*range(len(kept.commits_s) + 1), len(kept.commits_s)]
        line = "-" if kept.churn else ":"
        axes.step(times, counts, line, where="post", color=COLOURS.get(kept.system, OTHER), label=name_of(kept))
    struck = next((kept for kept in all_kept if kept.churn), None)
    for act in struck.acts if struck else ():
        axes.axvline(act.at_s, color="#bbbbbb", linewidth=0.7)
        axes.text(act.at_s, axes.get_ylim()[1], f" {act.what} {act.peer}", rotation=90, va="top", fontsize=7)
    axes.set(xlabel="seconds since training began", ylabel="rounds")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
