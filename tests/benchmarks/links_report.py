"""The results of the links benchmark for people: a table, the bars, a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tests.benchmarks.links_figures import Ran
from tests.benchmarks.rows import Bar, markdown

BOUND, OURS, BLOCKING = "bound", "ours", "blocking DiLoCo"
SAME_LINES = "ours on the rivals' lines"
MOST_OF_BOUND = 1.05
LEAST_SOONER = 5.0
MOST_EXPOSED = 0.02
MOST_LOAD = 0.6
PACE_SLACK = 0.01
COLOURS = ("#54a24b", "#4c78a8", "#72b7b2", "#e45756", "#f58518", "#b279a2")


def target_of(ran: Sequence[Ran], rounds: int) -> float | None:
    """What the bound has reached after so many rounds; None without it."""
    bound = next((each for each in ran if each.system == BOUND), None)
    return None if bound is None else bound.points[rounds].loss


# ---- bars


def judge(ran: Sequence[Ran], target: float | None) -> list[Bar]:
    """The bars for which there are runs."""
    by_name = {each.system: each for each in ran}
    bars = []
    if target is not None and OURS in by_name:
        bars.append(_to_bound(by_name[BOUND], by_name[OURS], target))
    equals = by_name.get(SAME_LINES) or by_name.get(OURS)
    if target is not None and equals and BLOCKING in by_name:
        bars.append(_sooner(equals, by_name[BLOCKING], target))
    if OURS in by_name:
        bars.append(_exposed(by_name[OURS]))
    return [*bars, _pace(ran), _load(ran)]


def _to_bound(bound: Ran, ours: Ran, target: float) -> Bar:
    bound_s, ours_s = bound.time_to(target), ours.time_to(target)
    speed = ours.tokens_per_s / bound.tokens_per_s
    assert bound_s is not None
    if ours_s is None:
        lowest = min(point.loss for point in ours.points)
        met, figures = False, f"not reached in {ours.points[-1].at_s:.0f} s: {lowest:.4f} of {target:.4f}"
    else:
        met, figures = ours_s <= MOST_OF_BOUND * bound_s, f"{ours_s / bound_s:.3f} × ({ours_s:.1f} s of {bound_s:.1f})"
    return Bar(
        name=f"ours reaches the target within {MOST_OF_BOUND} × the bound's time",
        met=met,
        figures=f"{figures}; {speed:.3f} of its tokens/s; {_shares(ours)}",
    )


def _sooner(ours: Ran, blocking: Ran, target: float) -> Bar:
    ours_s, blocking_s = ours.time_to(target), blocking.time_to(target)
    name = f"ours reaches the target at least {LEAST_SOONER:g} × sooner than the blocking rival"
    if ours_s is None:
        return Bar(name=name, met=False, figures="ours has not reached it")
    if blocking_s is None:
        at_least = blocking.points[-1].at_s / ours_s
        lowest = min(point.loss for point in blocking.points)
        figures = f"the rival has not reached it: {lowest:.4f} of {target:.4f}, {at_least:.2f} × later, still going"
        return Bar(name=name, met=at_least >= LEAST_SOONER, figures=figures)
    return Bar(
        name=name,
        met=blocking_s >= LEAST_SOONER * ours_s,
        figures=f"{blocking_s / ours_s:.2f} × ({ours_s:.1f} s against {blocking_s:.1f}); {_shares(blocking)}",
    )


def _exposed(ours: Ran) -> Bar:
    return Bar(
        name=f"ours: at most {MOST_EXPOSED:.0%} of a round exposed",
        met=ours.shares.settled <= MOST_EXPOSED,
        figures=f"{ours.shares.settled:.2%} once limits are learned, {ours.shares.exposed:.2%} from the first round on",
    )


def _pace(ran: Sequence[Ran]) -> Bar:
    most = max(each.shares.computing for each in ran)
    return Bar(
        name="nobody computes longer than there is time",
        met=most <= 1 + PACE_SLACK,
        figures=f"{most:.4f} of the time at most",
    )


def _load(ran: Sequence[Ran]) -> Bar:
    most = max(ran, key=lambda each: each.load)
    return Bar(
        name=f"load of everything on this machine at most {MOST_LOAD:.0%} of the cores",
        met=most.load <= MOST_LOAD,
        figures=f"{most.load:.0%} at most ({most.system})",
    )


def _shares(ran: Ran) -> str:
    shares = ran.shares
    waiting = "" if shares.waiting is None else f", {shares.waiting:.1%} waiting for slower peers"
    return f"{shares.computing:.1%} computing{waiting}, {shares.communicating:.1%} communicating"


# ---- table


def sentence(ran: Ran) -> str:
    """A run in one line, while the benchmark goes on."""
    last = ran.points[-1]
    return (
        f"{ran.system}: {last.loss:.4f} after {last.at_s:.1f} s, {ran.mean_exchange_s:.2f} s an exchange, "
        f"{_shares(ran)}, {ran.shares.exposed:.2%} exposed, {ran.tokens_per_s:.1f} tokens/s, "
        f"{ran.sent_bytes / 1e6:.2f} MB up, load {ran.load:.0%}"
    )


def table(ran: Sequence[Ran], target: float | None) -> str:
    """Markdown: a line per system, and how each was shaped."""
    titles = [
        "system", "to the target (s)", "× the bound", "tokens/s", "an exchange (s)", "computing", "communicating",
        "waiting", "exposed (s)", "exposed", "MB up each", "MB up to the target", "load",
    ]  # fmt: skip
    bound = next((each for each in ran if each.system == BOUND), None)
    bound_s = None if bound is None or target is None else bound.time_to(target)
    lines = [titles, *(_line(each, target, bound_s) for each in ran)]
    goal = "" if target is None else f"Target: {target:.4f} nats per token.\n\n"
    about = "".join(
        f"- {each.system}: lines: {each.shaper}; bytes: {each.counted_in}{f'; {each.note}' if each.note else ''}\n"
        for each in ran
    )
    return f"{goal}{markdown(lines)}\n{about}"


def _line(ran: Ran, target: float | None, bound_s: float | None) -> list[str]:
    at_s = None if target is None else ran.time_to(target)
    total = None if target is None else ran.bytes_to(target)
    shares = ran.shares
    return [
        ran.system,
        f"{at_s:.1f}" if at_s is not None else f"> {ran.points[-1].at_s:.0f}",
        f"{at_s / bound_s:.2f}" if at_s is not None and bound_s else "–",
        f"{ran.tokens_per_s:.1f}",
        f"{ran.mean_exchange_s:.2f}",
        f"{shares.computing:.1%}",
        f"{shares.communicating:.1%}",
        "–" if shares.waiting is None else f"{shares.waiting:.1%}",
        f"{ran.exposed_s:.2f}",
        f"{shares.exposed:.2%}",
        f"{ran.sent_bytes / 1e6:.2f}",
        "–" if total is None else f"{total / 1e6:.1f}",
        f"{ran.load:.0%}",
    ]


# ---- picture


def draw(ran: Sequence[Ran], target: float | None, path: Path) -> None:
    """Loss over time of each system, and what its time went to, as PNG."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for colour, each in zip(COLOURS, ran, strict=False):
        times = [point.at_s for point in each.points[1:]]
        left.plot(times, [point.loss for point in each.points[1:]], ".-", color=colour, label=each.system)
    if target is not None:
        left.axhline(target, color="#888888", linestyle=":")
    left.set(xscale="log", xlabel="seconds since training began", ylabel="held-out loss (nats per token)")
    left.legend(frameon=False, fontsize=8)
    _draw_shares(right, ran)
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _draw_shares(axes: Any, ran: Sequence[Ran]) -> None:
    for place, each in enumerate(ran):
        shares, first = each.shares, place == 0
        waiting = shares.waiting or 0.0
        parts = [
            ("inner steps", shares.computing, "#54a24b"),
            ("waiting for slower peers", waiting, "#bab0ac"),
            ("other exposed", max(0.0, shares.exposed - waiting), "#e45756"),
        ]
        start = 0.0
        for label, share, colour in parts:
            axes.barh(place, share, left=start, color=colour, label=label if first else None)
            start += share
    axes.set(yticks=range(len(ran)), xlim=(0, 1.05), xlabel="share of the time, mean over peers")
    axes.set_yticklabels([each.system for each in ran], fontsize=8)
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
