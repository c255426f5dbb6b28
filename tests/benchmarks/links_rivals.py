"""The rivals in the links benchmark: run them, and make figures of what their peers told."""

from __future__ import annotations

import dataclasses
import statistics
from contextlib import closing
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from peer.schema.spec import RunSpec, load
from tests.benchmarks.anchors import HeldOut
from tests.benchmarks.links_figures import Point, Ran, Shares
from tests.benchmarks.links_plan import Plan, machine_share
from tests.benchmarks.placed import identity_of
from tests.benchmarks.rivals.group import RivalGroup, Row, lacking, told
from tests.benchmarks.rivals.lines import Lines, open_lines
from tests.benchmarks.rivals.trainee import LAST, Orders

BEGIN_S, ROUND_S = 240.0, 240.0
FLOAT_BYTES, HALF_BYTES = 4, 2
MEASURED_TWICE = 1e-3
"""The steps of DDP that are made without waiting begin with those that were made on the lines: so far may the
parameters be apart, as a share of how far they have moved, or it is not the same training."""


def measure_diloco(directory: Path, spec: Path, plan: Plan, name: str) -> Ran:
    """The blocking rival, for as many rounds as the bound makes."""
    with (
        closing(open_lines(directory / "lines", plan.mbps, plan.delay_s)) as lines,
        RivalGroup("tests.benchmarks.rivals.open_diloco", directory, lines) as group,
    ):
        meet = group.open_meeting_place(within_s=BEGIN_S)
        for orders in orders_of(spec, plan, lines, plan.rounds, meet):
            group.add(orders)
        load_share = _run(group, "round", plan.rounds, within_s=BEGIN_S + plan.rounds * ROUND_S)
        return diloco_figures(group, load(str(spec)), plan, name, load_share)


def measure_ddp(directory: Path, spec: Path, plan: Plan, name: str, target: float | None) -> Ran:
    """Some steps of DDP on the lines, and what the others would come to."""
    with (
        closing(open_lines(directory / "lines", plan.mbps, plan.delay_s)) as lines,
        RivalGroup("tests.benchmarks.rivals.ddp", directory, lines) as group,
    ):
        first, *others = orders_of(spec, plan, lines, plan.ddp_steps, "")
        member = group.add(first)
        (row,) = group.wait(lambda: list(told(member, "meet")), "rank 0 does not say where to meet", within_s=BEGIN_S)
        for orders in others:
            group.add(dataclasses.replace(orders, meet=row["where"]))
        load_share = _run(group, "step", plan.ddp_steps, within_s=BEGIN_S + plan.ddp_steps * ROUND_S)
        rows = [list(told(each, "step")) for each in group.members]
        figures = ddp_figures(plan, name, lines, rows, load_share)
    return project(figures, directory, load(str(spec)), plan, target)


def orders_of(spec: Path, plan: Plan, lines: Lines, rounds: int, meet: str) -> list[Orders]:
    """Of every founder."""
    names = tuple(identity_of(number).peer_id for number in range(len(plan.slower)))
    return [
        Orders(
            spec=str(spec), peers=names, me=names[number], founder=number, step_s=plan.step_s * times, rounds=rounds,
            address=lines.places[number].address, device=lines.places[number].device, floor_bps=lines.floor_bps,
            meet=meet,
        )
        for number, times in enumerate(plan.slower)
    ]  # fmt: skip


def _run(group: RivalGroup, what: str, times: int, *, within_s: float) -> float:
    """Let all begin once all are ready, until each has told of `what` so often; the machine's load meanwhile."""
    group.until_all_told("ready", within_s=BEGIN_S)
    before = psutil.cpu_times()
    group.go()
    group.until_all_told(what, times, within_s=within_s)
    share = machine_share(before)
    group.until_all_told("done", within_s=ROUND_S)
    return share


# ---- from what the rivals told to figures ----


def diloco_figures(group: RivalGroup, spec: RunSpec, plan: Plan, name: str, load_share: float) -> Ran:
    """All peers have told of the same rounds."""
    rows = [list(told(member, "round")) for member in group.members]
    began = min(peer[0]["began"] for peer in rows)
    ends = [max(row["t"] for row in together) for together in zip(*rows, strict=True)]
    held_out = HeldOut(spec)
    paths = [group.members[0].folder / f"theta-{number:04d}.npy" for number in range(1, len(ends) + 1)]
    losses = [held_out.of_initial(), *held_out.of_vectors(paths)]
    points = [
        Point(at_s=end - began, exchanges=number, loss=loss)
        for number, (end, loss) in enumerate(zip([began, *ends], losses, strict=True))
    ]
    sent, counted_in = _sent(group.lines, len(rows), began, ends[-1], len(ends), HALF_BYTES * held_out.parameters)
    return Ran(
        system=name, shaper=group.lines.shaper, points=points, exchange_s=_differences([began, *ends]),
        tokens_per_s=sum(row["tokens"] for peer in rows for row in peer) / (ends[-1] - began),
        shares=blocking_shares(rows, [began, *ends], spec.round.steps, plan), sent_bytes=sent, counted_in=counted_in,
        load=load_share, note=_apart(group, len(ends)),
    )  # fmt: skip


def blocking_shares(rows: list[list[Row]], ends: list[float], steps: int, plan: Plan) -> Shares:
    """Who is done waits for the last; from then on all of them exchange."""
    total_s = ends[-1] - ends[0]
    waited_s, talked_s, settled = [], [], []
    for peer in rows:
        waited, talked = 0.0, 0.0
        for place, row in enumerate(peer):
            last_trained = max(other[place]["trained"] for other in rows)
            waited += last_trained - row["trained"]
            talked += ends[place + 1] - last_trained
        waited_s.append(waited)
        talked_s.append(talked)
        warm = min(plan.warm_rounds, len(peer) - 1)
        exposed = sum(ends[place + 1] - row["trained"] for place, row in enumerate(peer) if place >= warm)
        settled.append(exposed / (ends[-1] - ends[warm]))
    computing = [len(rows[0]) * steps * plan.step_s * times / total_s for times in plan.slower]
    waiting, communicating = statistics.fmean(waited_s) / total_s, statistics.fmean(talked_s) / total_s
    return Shares(
        computing=statistics.fmean(computing), communicating=communicating, waiting=waiting,
        exposed=waiting + communicating, settled=statistics.fmean(settled),
    )  # fmt: skip


def ddp_figures(plan: Plan, name: str, lines: Lines, rows: list[list[Row]], load_share: float) -> Ran:
    """Without losses yet. What of a step is not arithmetic is communication, or waiting for others in it."""
    began = min(peer[0]["began"] for peer in rows)
    ends = [max(row["t"] for row in together) for together in zip(*rows, strict=True)]
    each_s = _differences([began, *ends])
    step_s = statistics.fmean(each_s)
    computing = statistics.fmean(min(1.0, plan.step_s * times / step_s) for times in plan.slower)
    shares = Shares(
        computing=computing, communicating=1 - computing, waiting=None, exposed=1 - computing, settled=1 - computing
    )  # fmt: skip
    sent, counted_in = _sent(lines, len(rows), began, ends[-1], len(ends), 0)
    return Ran(
        system=name, shaper=lines.shaper, points=[], exchange_s=each_s,
        tokens_per_s=sum(row["tokens"] for peer in rows for row in peer) / (ends[-1] - began), shares=shares,
        sent_bytes=sent, counted_in=counted_in, load=load_share,
    )  # fmt: skip


def project(ran: Ran, directory: Path, spec: RunSpec, plan: Plan, target: float | None) -> Ran:
    """The losses of DDP: the same steps in one process, up to the target, at the mean time of those made.

    Checked against the parameters that the ranks left after the last step that they made.
    """
    names = [identity_of(number).peer_id for number in range(len(plan.slower))]
    held_out, step_s = HeldOut(spec), ran.mean_exchange_s
    first = held_out.of_initial()
    measured = np.load(directory / "peer-0" / LAST)
    (_, _, made), = islice(held_out.of_synchronous(spec, names, plan.ddp_steps), 1)  # fmt: skip
    apart = _share_apart(made, measured, held_out)
    assert apart < MEASURED_TWICE, f"the steps made again differ by {apart:.2%} of how far the parameters have moved"
    points = [Point(at_s=0.0, exchanges=0, loss=first)]
    for steps, loss, _ in held_out.of_synchronous(spec, names, plan.ddp_every):
        points.append(Point(at_s=steps * step_s, exchanges=steps, loss=loss))
        if steps >= plan.ddp_most_steps or (target is not None and loss <= target):
            break
    sent = ran.sent_bytes
    if not sent:
        many = len(plan.slower)
        sent = 2 * (many - 1) / many * FLOAT_BYTES * held_out.parameters
    note = f"{plan.ddp_steps} steps on the lines; the others, made in one process, cost the mean time of these"
    return dataclasses.replace(ran, points=points, sent_bytes=sent, note=note)


def _share_apart(made: Any, measured: Any, held_out: HeldOut) -> float:
    moved = float(np.linalg.norm(measured - held_out.initial))
    return float(np.linalg.norm(made - measured)) / moved


def _sent(lines: Lines, many: int, since: float, until: float, exchanges: int, payload: int) -> tuple[float, str]:
    """(bytes per peer and exchange, what was counted)."""
    counts = [lines.sent_bytes(number, since, until) for number in range(many)]
    known = [count for count in counts if count is not None]
    if known:
        return statistics.fmean(known) / exchanges, "IP packets"
    return 2 * (many - 1) / many * payload, "formula"


def _apart(group: RivalGroup, rounds: int) -> str:
    """How far the peers' outer parameters are from each other in the end, though all averaged the same, and why."""
    last = [np.load(member.folder / f"theta-{rounds:04d}.npy") for member in group.members]
    most = max((float(np.abs(vector - last[0]).max()) for vector in last[1:]), default=0.0)
    short = sum(lacking(member) for member in group.members)
    whole = sum(row["group"] == len(last) for member in group.members for row in told(member, "round"))
    why = f"; in {short} of {len(last) * rounds} averagings a peer lacked parts and kept its own, which only a log says"
    met = f"{whole} of {len(last) * rounds} averagings were of all peers"
    return f"{met}; peers end up to {most:.1e} apart in a parameter{why if short else ''}"


def _differences(times: list[float]) -> list[float]:
    return [round(later - earlier, 3) for earlier, later in pairwise(times)]
