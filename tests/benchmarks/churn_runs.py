"""One system under one schedule of churn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

from peer.schema.events import AlertRaised, RoundCommitted, RoundStarted
from peer.schema.spec import RunSpec, load
from tests.benchmarks.anchors import HeldOut
from tests.benchmarks.churn_figures import Act, Kept, peer_seconds
from tests.benchmarks.links_ours import BEGIN_S, SHAPERS, commits_of, step_tokens, times_of, tokens_between
from tests.benchmarks.links_plan import machine_share
from tests.benchmarks.placed import PlacedSwarm, identity_of
from tests.benchmarks.rivals.group import RivalGroup, told
from tests.benchmarks.rivals.lines import Lines, open_lines
from tests.benchmarks.rivals.trainee import Orders

if TYPE_CHECKING:
    from tests.benchmarks.churn import Plan

STREAMING = ('round.overlap="streaming"', 'round.pace="speed"')
LATE_S = 60.0
"""A schedule whose next act is due may wait so long for the one before."""
TOLD_MOST = 5
"""Things that went wrong of which each is told."""


def strike(acts: Sequence[Act], seconds: float, wait: Callable[[float], None], do: Callable[[Act], None]) -> list[Act]:
    """Do all acts in their time, `wait(at_s)` between them and until the end; when each was done."""
    began, done = time.monotonic(), []
    for act in acts:
        wait(act.at_s)
        done.append(Act(at_s=round(time.monotonic() - began, 1), peer=act.peer, what=act.what))
        do(act)
    wait(seconds)
    return done


# ---- ours ----


def run_ours(directory: Path, spec: Path, plan: Plan, name: str, acts: Sequence[Act]) -> Kept:
    """Our own swarm; peers' names are the same in every run."""
    settings = (f"upload_mbps={plan.upload_mbps}", f"download_mbps={plan.download_mbps}", f"min_step_s={plan.step_s}")
    swarm = PlacedSwarm(
        directory, plan.founders, str(spec), STREAMING, settings, own={}, delay_s=plan.delay_s
    )  # fmt: skip
    with closing(swarm):
        for peer in range(plan.founders):
            swarm.wait_for(peer, lambda line: isinstance(line.event, RoundStarted), within_s=BEGIN_S)
        began = time.time()
        before = psutil.cpu_times()

        def wait(at_s: float) -> None:
            swarm.until(lambda: time.time() >= began + at_s, "the time is not over", within_s=plan.seconds + LATE_S)

        done = strike(acts, plan.seconds, wait, lambda act: _do_ours(swarm, act))
        load_share = machine_share(before)
        end = began + plan.seconds
        swarm.assert_agreement()
        peers = [swarm.lines(peer) for peer in range(swarm.size)]
    commits = [commits_of(lines) for lines in peers]
    rounds = sorted({number for each in commits for number, line in each.items() if line.t <= end})
    firsts = {number: min((each[number] for each in commits if number in each), key=lambda line: line.t)
              for number in rounds}  # fmt: skip
    counted = [line.event.tokens for line in firsts.values() if isinstance(line.event, RoundCommitted)]
    first_began, _ = times_of(peers, 0)
    longest = max(range(plan.founders), key=lambda peer: len(commits[peer]))
    held_out = HeldOut(swarm.spec)
    losses = held_out.of_chain(swarm.directory / f"peer-{longest}", swarm.spec)
    tokens_in_step = step_tokens(swarm.spec)
    return Kept(
        system=name, churn=bool(acts), shaper=SHAPERS["own"], seconds=plan.seconds,
        peer_seconds=peer_seconds(done, plan.founders, plan.seconds), step_tokens_per_s=tokens_in_step / plan.step_s,
        commits_s=[round(firsts[number].t - began, 2) for number in rounds], tokens=sum(counted),
        made=sum(tokens_between(lines, first_began, end) for lines in peers), loss=losses[len(rounds)],
        losses=[losses[len(rounds)]], load=load_share, acts=done,
        notes=_alerts([line.event for lines in peers for line in lines if line.t <= end]),
    )  # fmt: skip


def _do_ours(swarm: PlacedSwarm, act: Act) -> None:
    match act.what:
        case "join":
            peer = swarm.join()
            assert peer == act.peer, f"peers are counted in order of joining: {peer} is not {act.peer}"
        case "leave":
            swarm.stop(act.peer)
        case "kill":
            swarm.kill(act.peer)
        case "back":
            swarm.restart(act.peer)
        case "halt":
            swarm.halt(act.peer)
        case "go on":
            swarm.go_on(act.peer)


def _alerts(events: Sequence[object]) -> list[str]:
    texts = [f"{event.code}: {event.text}" for event in events if isinstance(event, AlertRaised)]
    errors = [text for text in dict.fromkeys(texts) if not text.startswith("INFO")]
    return errors[:TOLD_MOST]


# ---- the rival ----


def run_rival(directory: Path, spec: Path, plan: Plan, name: str, acts: Sequence[Act]) -> Kept:
    """The blocking rival. Who comes back, or anew, loads the state of another."""
    mbps = [(plan.upload_mbps, plan.download_mbps)] * plan.most_peers + [(0.0, 0.0)]
    with (
        closing(open_lines(directory / "lines", mbps, plan.delay_s)) as lines,
        RivalGroup("tests.benchmarks.rivals.open_diloco", directory, lines, lenient=True) as group,
    ):
        meet = group.open_meeting_place(within_s=BEGIN_S)
        for number in range(plan.founders):
            group.add(_orders(spec, plan, lines, number, meet))
        group.until_all_told("ready", within_s=BEGIN_S)
        before = psutil.cpu_times()
        group.go()
        began, began_at = time.time(), time.monotonic()

        def wait(at_s: float) -> None:
            group.listen(began_at + at_s - time.monotonic())

        def do(act: Act) -> None:
            if act.what == "join":
                group.add(_orders(spec, plan, lines, act.peer, meet))
                return
            member = group.members[act.peer]
            if act.what == "back":
                group.start(member, founder=None)
                return
            {"leave": group.leave, "kill": group.kill, "halt": group.halt, "go on": group.go_on}[act.what](member)

        done = strike(acts, plan.seconds, wait, do)
        load_share = machine_share(before)
    return rival_figures(group, load(str(spec)), plan, name, lines.shaper, began, done, load_share)


def _orders(spec: Path, plan: Plan, lines: Lines, number: int, meet: str) -> Orders:
    names = tuple(identity_of(founder).peer_id for founder in range(plan.founders))
    return Orders(
        spec=str(spec), peers=names, me=identity_of(number).peer_id,
        founder=number if number < plan.founders else None, step_s=plan.step_s, rounds=0,
        address=lines.places[number].address, device=lines.places[number].device, floor_bps=lines.floor_bps, meet=meet,
        most=plan.most_peers,
    )  # fmt: skip


def rival_figures(
    group: RivalGroup, spec: RunSpec, plan: Plan, name: str, shaper: str, began: float, done: list[Act], load: float
) -> Kept:
    """A round counts what those brought to it who averaged with somebody."""
    end = began + plan.seconds
    rows = [[row for row in told(member, "round") if row["t"] <= end] for member in group.members]
    together = [row for peer in rows for row in peer if row["group"] > 1]
    ends = {row["number"]: row["t"] for row in sorted(together, key=lambda row: -row["t"])}
    newest = max((row["number"] for peer in rows for row in peer), default=0)
    held_out = HeldOut(spec)
    paths = [member.folder / f"theta-{newest:04d}.npy" for member in group.members]
    there = [path for path in paths if newest and path.exists()]
    losses = held_out.of_vectors(there) if there else [held_out.of_initial()]
    failed = [row for member in group.members for row in told(member, "failed") if row["t"] <= end]
    notes = [f"round {row['number']}: {row['why']}" for row in failed]
    notes = [f"{len(notes)} failures", *notes[:TOLD_MOST]] if notes else []
    return Kept(
        system=name, churn=bool(done), shaper=shaper, seconds=plan.seconds,
        peer_seconds=peer_seconds(done, plan.founders, plan.seconds),
        step_tokens_per_s=step_tokens(spec) / plan.step_s,
        commits_s=sorted(round(t - began, 2) for t in ends.values()), tokens=sum(row["tokens"] for row in together),
        made=sum(row["tokens"] for peer in rows for row in peer), loss=statistics.fmean(losses), losses=losses,
        load=load, acts=done, notes=[*notes, *group.failures, *_apart(there)],
    )  # fmt: skip


def _apart(paths: Sequence[Path]) -> list[str]:
    """How far peers of the same round are from each other."""
    vectors = [np.load(path) for path in paths]
    most = max((float(np.abs(vector - vectors[0]).max()) for vector in vectors[1:]), default=0.0)
    return [f"peers of the newest round are up to {most:.1e} apart in a parameter"] if most else []
