"""Our own swarm in the links benchmark: run it, and make figures of what its peers told."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil

from peer.schema.events import EventLine, InnerProgressed, PhaseEntered, RoundCommitted, RoundStarted
from peer.schema.spec import RunSpec
from tests.benchmarks.anchors import HeldOut
from tests.benchmarks.links_figures import Point, Ran, Shares
from tests.benchmarks.links_plan import Plan, machine_share
from tests.benchmarks.placed import PlacedSwarm
from tests.benchmarks.rivals.lines import Lines, open_lines

BEGIN_S, ROUND_S = 300.0, 240.0
SHAPERS = {
    "free": "none: loopback",
    "own": "the link's own: caps by token bucket, every frame late by the delay",
}


def measure_ours(directory: Path, spec: Path, plan: Plan, name: str, system: dict[str, Any], rounds: int) -> Ran:
    """A swarm of ours for so many rounds, on the lines that `system` names."""
    kind = system["lines"]
    with ExitStack() as stack:
        lines: Lines | None = None
        if kind == "shared":
            lines = stack.enter_context(closing(open_lines(directory / "lines", plan.mbps, plan.delay_s)))
        swarm = PlacedSwarm(
            directory / "swarm", len(plan.slower), str(spec), system["sets"], plan.caps if kind != "free" else (),
            own=plan.paces, delay_s=plan.delay_s if kind == "own" else 0.0, places=lines.places if lines else (),
        )  # fmt: skip
        stack.enter_context(closing(swarm))
        swarm.until_first(1, within_s=BEGIN_S + ROUND_S)
        before = psutil.cpu_times()
        swarm.until_round(rounds, within_s=rounds * ROUND_S)
        load_share = machine_share(before)
        swarm.assert_agreement()
        peers = [swarm.lines(peer) for peer in range(len(plan.slower))]
        began, ends = times_of(peers, rounds)
        sent, counted_in = _sent(peers, lines, began, ends)
    losses = HeldOut(swarm.spec).of_chain(swarm.directory / "peer-0", swarm.spec)
    times = [began, *ends]
    return Ran(
        system=name, shaper=lines.shaper + "; and the link's own caps" if lines else SHAPERS[kind],
        points=[
            Point(at_s=at - began, exchanges=number, loss=loss)
            for number, (at, loss) in enumerate(zip(times, losses, strict=False))
        ],
        exchange_s=[round(later - earlier, 3) for earlier, later in zip(times, ends, strict=False)],
        tokens_per_s=sum(tokens_between(told, began, ends[-1]) for told in peers) / (ends[-1] - began),
        shares=shares_of(peers, plan, began, ends, step_tokens(swarm.spec)), sent_bytes=sent, counted_in=counted_in,
        load=load_share,
    )  # fmt: skip


def _sent(
    peers: Sequence[Sequence[EventLine]], lines: Lines | None, began: float, ends: Sequence[float]
) -> tuple[float, str]:
    """(bytes per peer and round, what was counted)."""
    if lines is not None:
        packets = [lines.sent_bytes(peer, began, ends[-1]) for peer in range(len(peers))]
        known = [count for count in packets if count is not None]
        if known:
            return statistics.fmean(known) / len(ends), "IP packets"
    return statistics.fmean(event.bytes_sent for told in peers for event in committed(told, len(ends))), "frames"


# ---- from lines to figures ----


def step_tokens(spec: RunSpec) -> int:
    """Tokens of an inner step."""
    return spec.inner.accumulation * spec.inner.sequences * spec.model.context


def commits_of(told: Sequence[EventLine]) -> dict[int, EventLine]:
    """The lines that told of commits, by the round."""
    return {line.event.round: line for line in told if isinstance(line.event, RoundCommitted)}


def times_of(peers: Sequence[Sequence[EventLine]], rounds: int) -> tuple[float, list[float]]:
    """(when training began, when the last peer had each anchor), Unix times."""
    began = min(line.t for told in peers for line in told if isinstance(line.event, RoundStarted))
    commits = [commits_of(told) for told in peers]
    return began, [max(each[number].t for each in commits) for number in range(1, rounds + 1)]


def committed(told: Sequence[EventLine], rounds: int) -> list[RoundCommitted]:
    """What one peer told of its first so many rounds."""
    commits = commits_of(told)
    events = [commits[number].event for number in range(1, rounds + 1)]
    return [event for event in events if isinstance(event, RoundCommitted)]


def tokens_between(told: Sequence[EventLine], since: float, until: float) -> int:
    """Of the inner steps that one peer reported in this time."""
    return sum(
        line.event.tokens for line in told if isinstance(line.event, InnerProgressed) and since < line.t <= until
    )


def shares_of(
    peers: Sequence[Sequence[EventLine]], plan: Plan, began: float, ends: Sequence[float], tokens_in_step: int
) -> Shares:
    """Means over the peers of one run."""
    rounds, total_s = len(ends), ends[-1] - began
    warm = min(plan.warm_rounds, rounds - 1)
    since = ends[warm - 1] if warm else began
    computing, communicating, exposed, settled = [], [], [], []
    for told, times in zip(peers, plan.slower, strict=True):
        steps = tokens_between(told, began, ends[-1]) / tokens_in_step
        computing.append(steps * plan.step_s * times / total_s)
        communicating.append(exchanging_s(told, rounds) / total_s)
        exposed_s = [event.exposed_s for event in committed(told, rounds)]
        exposed.append(sum(exposed_s) / total_s)
        settled.append(sum(exposed_s[warm:]) / (ends[-1] - since))
    return Shares(
        computing=statistics.fmean(computing), communicating=statistics.fmean(communicating), waiting=None,
        exposed=statistics.fmean(exposed), settled=statistics.fmean(settled),
    )  # fmt: skip


def exchanging_s(told: Sequence[EventLine], rounds: int) -> float:
    """Seconds from a peer's freeze to its commit, over its first so many rounds."""
    frozen: dict[int, float] = {}
    for line in told:
        if isinstance(line.event, PhaseEntered) and line.event.phase == "submit":
            frozen.setdefault(line.event.round, line.t)
    commits = commits_of(told)
    return sum(commits[number].t - frozen[number - 1] for number in range(1, rounds + 1) if number - 1 in frozen)
