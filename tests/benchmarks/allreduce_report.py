"""The results of the allreduce benchmark for people: a table, the bars, a picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tests.benchmarks.rows import Bar, Row, markdown

OURS, GLOO, HIVEMIND = "ours int4", "gloo float32", "hivemind"
FASTER_THAN_HIVEMIND = 0.6
CPU_NS = 25.0
TIMES_GLOO = 4.0
EXTRA = 1.5
"""Of the update's float32 size."""
FLOAT32_BYTES = 4


def seconds_of(rows: Sequence[Row]) -> float:
    """Median over all rounds of these rows."""
    return statistics.median(round["seconds"] for row in rows for round in row["rounds"])


def cpu_ns_of(rows: Sequence[Row]) -> float:
    """Processor time per parameter and peer; the median."""
    return statistics.median(
        1e9 * round["cpu_s"] / row["parameters"] / row["peers"] for row in rows for round in row["rounds"]
    )


def wire_of(rows: Sequence[Row]) -> float:
    """Bytes per parameter and peer on the loopback device; the median."""
    return statistics.median(
        round["wire_bytes"] / row["parameters"] / row["peers"] for row in rows for round in row["rounds"]
    )


def extra_of(rows: Sequence[Row]) -> float:
    """Peak extra memory of the worst peer as a multiple of the float32 size; the largest."""
    return max(float(row["extra_bytes"]) / row["parameters"] / FLOAT32_BYTES for row in rows)


def select(rows: Sequence[Row], cell: Mapping[str, int], contender: str) -> list[Row]:
    """The measured rows of a contender in a cell."""
    return [
        row for row in rows
        if row["contender"] == contender and "rounds" in row
        and (row["parameters"], row["peers"]) == (cell["parameters"], cell["peers"])
    ]  # fmt: skip


def best_hivemind(rows: Sequence[Row], cell: Mapping[str, int]) -> tuple[str, float] | None:
    """(its fastest codec in a cell, seconds)."""
    names = {row["contender"] for row in rows if row["contender"].startswith(HIVEMIND)}
    found = {name: seconds_of(chosen) for name in sorted(names) if (chosen := select(rows, cell, name))}
    return min(found.items(), key=lambda item: item[1]) if found else None


# ---- bars


def judge(rows: Sequence[Row], cell: Mapping[str, int]) -> list[Bar]:
    """The bars for which there are rows."""
    ours, rival = select(rows, cell, OURS), best_hivemind(rows, cell)
    bars = []
    if ours and rival:
        name, seconds = rival
        bars.append(
            Bar(
                name=f"{of(cell)}: at most {FASTER_THAN_HIVEMIND} x hivemind's best codec",
                met=seconds_of(ours) <= FASTER_THAN_HIVEMIND * seconds,
                figures=f"{seconds_of(ours) / seconds:.2f} x: {seconds_of(ours):.2f} s, {name} {seconds:.2f} s",
            )
        )
    if ours:
        bars.append(
            Bar(
                name=f"{of(cell)}: at most {CPU_NS:g} CPU-ns per parameter and peer",
                met=cpu_ns_of(ours) <= CPU_NS,
                figures=f"{cpu_ns_of(ours):.1f}",
            )
        )
        bars.append(
            Bar(
                name=f"{of(cell)}: peak extra memory at most {EXTRA} x the update in float32",
                met=extra_of(ours) <= EXTRA,
                figures=f"{extra_of(ours):.2f} x",
            )
        )
    return bars


def aims(rows: Sequence[Row], cell: Mapping[str, int]) -> list[Bar]:
    """What is hoped for, and decides nothing."""
    ours, gloo = select(rows, cell, OURS), select(rows, cell, GLOO)
    if not ours or not gloo:
        return []
    times = seconds_of(ours) / seconds_of(gloo)
    return [
        Bar(
            name=f"aim, {of(cell)}: {TIMES_GLOO:g} x gloo's time in float32", met=times <= TIMES_GLOO,
            figures=f"{times:.1f} x: {seconds_of(ours):.2f} s, gloo {seconds_of(gloo):.3f} s",
        )
    ]  # fmt: skip


def of(cell: Mapping[str, int]) -> str:
    """In words."""
    return f"{cell['parameters'] / 1e6:g} M parameters, {cell['peers']} peers"


# ---- table


TITLES = ["contender", "seconds", "to gloo", "to hivemind's best", "CPU s", "CPU-ns per parameter and peer",
          "peak extra memory", "bytes per parameter and peer"]  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Markdown: a table per cell."""
    cells = dict.fromkeys((row["parameters"], row["peers"]) for row in rows)
    return "\n".join(_of_cell(rows, {"parameters": size, "peers": peers}) for size, peers in cells)


def _of_cell(rows: Sequence[Row], cell: Mapping[str, int]) -> str:
    here = [row for row in rows if (row["parameters"], row["peers"]) == (cell["parameters"], cell["peers"])]
    names = dict.fromkeys(row["contender"] for row in here)
    skipped = {row["contender"]: row["skipped"] for row in here if "skipped" in row}
    lines = [_line(here, cell, name) for name in names if select(here, cell, name)]
    notes = "".join(f"\n{name}: not measured, {why}.\n" for name, why in skipped.items())
    return f"{of(cell)}\n\n{markdown([TITLES, *lines])}{notes}"


def _line(rows: Sequence[Row], cell: Mapping[str, int], name: str) -> list[str]:
    chosen, gloo, rival = select(rows, cell, name), select(rows, cell, GLOO), best_hivemind(rows, cell)
    seconds, cpu_ns = seconds_of(chosen), cpu_ns_of(chosen)
    return [
        name, f"{seconds:.3f}", f"{seconds / seconds_of(gloo):.1f} x" if gloo else "–",
        f"{seconds / rival[1]:.2f} x" if rival else "–",
        f"{cpu_ns * cell['parameters'] * cell['peers'] / 1e9:.2f}", f"{cpu_ns:.1f}", f"{extra_of(chosen):.2f} x",
        f"{wire_of(chosen):.2f}",
    ]  # fmt: skip


def sentence(row: Row) -> str:
    """One row in words."""
    cell = of(row)
    if "skipped" in row:
        return f"{row['contender']}, {cell}: not measured, {row['skipped']}"
    return (
        f"{row['contender']}, {cell}: {seconds_of([row]):.3f} s, {cpu_ns_of([row]):.1f} CPU-ns per parameter and peer, "
        f"{extra_of([row]):.2f} x peak extra memory, {wire_of([row]):.2f} bytes per parameter and peer"
        + _doubt(row)
        + _profile(row)
    )


def _doubt(row: Row) -> str:
    """What was not averaged as it should: beyond what a codec rounds."""
    error = max((words.get("error", 0.0) for round in row["rounds"] for words in round["said"]), default=0.0)
    return f", mean off by {error:.3f} of the spread" if error else ""


def _profile(row: Row) -> str:
    """Where the processor time of ours went, in ns per parameter; the mean over peers and rounds."""
    laps = [words["phases"] for round in row["rounds"] for words in round["said"] if "phases" in words]
    if not laps:
        return ""
    return "; " + ", ".join(f"{phase} {_shares(laps, phase, row['parameters'])}" for phase in laps[0])


def _shares(laps: Sequence[Mapping[str, Mapping[str, float]]], phase: str, parameters: int) -> str:
    wall = statistics.fmean(lap[phase]["wall"] for lap in laps)
    each = {
        name: 1e9 * statistics.fmean(lap[phase][name] for lap in laps) / parameters
        for name in laps[0][phase] if name != "wall"
    }  # fmt: skip
    return f"{wall:.2f} s (" + ", ".join(f"{name} {ns:.1f}" for name, ns in each.items()) + ")"


# ---- picture


COLOURS = {"ours": "#e45756", "gloo": "#222222", "hivemind": "#4c78a8"}


def draw(rows: Sequence[Row], cell: Mapping[str, int], path: Path) -> None:
    """Seconds and processor time of everybody in the bars' cell, and seconds over parameters, as PNG."""
    figure = Figure(figsize=(13, 4.5), layout="constrained")
    time, cpu, sizes = figure.subplots(1, 3)
    names = [name for name in dict.fromkeys(row["contender"] for row in rows) if select(rows, cell, name)]
    for axes, measure, label in ((time, seconds_of, "seconds"), (cpu, cpu_ns_of, "CPU-ns per parameter and peer")):
        values = [measure(select(rows, cell, name)) for name in names]
        bars = axes.barh(names, values, color=[COLOURS[name.split()[0]] for name in names])
        axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=8)
        axes.invert_yaxis()
        axes.set(xlabel=label, title=of(cell))
    _draw_sizes(sizes, rows)
    for axes in (time, cpu, sizes):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _draw_sizes(axes: Any, rows: Sequence[Row]) -> None:
    """Seconds over parameters for each number of peers: ours, gloo, hivemind without a codec."""
    lines = {OURS: "-", GLOO: "--", f"{HIVEMIND} none": ":"}
    peers = sorted({row["peers"] for row in rows})
    for name, line in lines.items():
        for place, number in enumerate(peers):
            sizes = sorted({row["parameters"] for row in rows if row["peers"] == number and row["contender"] == name})
            points = [(size, chosen) for size in sizes
                      if (chosen := select(rows, {"parameters": size, "peers": number}, name))]  # fmt: skip
            if points:
                axes.plot(
                    [size / 1e6 for size, _ in points], [seconds_of(chosen) for _, chosen in points], line,
                    marker="os^D"[place % 4], color=COLOURS[name.split()[0]], label=f"{name}, {number} peers",
                )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="parameters (millions)", ylabel="seconds")
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
