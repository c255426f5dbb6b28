"""`overlap`: how long peers on home links wait, and what a slow one costs the others.

Real processes on this machine: a bootstrap node and four peers, one of them four times slower. A paced device does
nothing but sleep for most of a step, so that a core or two can be a whole swarm; the link caps what a peer sends and
takes in, and every frame is late by the delay of a home line. Everything is said in `overlap_plan.toml`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import tempfile
import time
import tomllib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from peer.schema.events import EventLine, InnerProgressed, RoundCommitted
from peer.schema.spec import RunSpec, dump, load
from peer.testing.process_swarm import RealSwarm
from tests.benchmarks import overlap_report
from tests.benchmarks.join import Load
from tests.benchmarks.overlap_figures import Alone, Measured, OfPeer, OfRound
from tests.benchmarks.record import commit, machine, versions

SPEC = Path(__file__).with_suffix(".toml")
PLAN = Path(__file__).with_name("overlap_plan.toml")
BEGIN_S, ROUND_S = 300.0, 240.0
SETTLED_STEPS = 3
"""Of a peer alone: the first ones are slower."""
ENDLESS = ("round.steps=100000", "round.max_train_s=3600", 'round.overlap="none"', 'round.pace="steps"')
"""A peer alone only trains: no round ends while one looks."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured; see the file."""

    step_s: float
    slower: tuple[float, ...]
    upload_mbps: float
    download_mbps: float
    delay_s: float
    warm_rounds: int
    rounds: int
    alone_s: float
    modes: dict[str, list[str]]
    equals: dict[str, Any]

    @classmethod
    def read(cls, quick: bool) -> Plan:
        """From the file beside this one."""
        table = tomllib.loads(PLAN.read_text())
        short = table.pop("quick")
        if quick:
            table["equals"]["repeats"] = short.pop("repeats")
            chosen = short.pop("modes")
            table["modes"] = {mode: sets for mode, sets in table["modes"].items() if mode in chosen}
            table |= short
        return cls(**table | {"slower": tuple(table["slower"])})

    def settings(self) -> tuple[str, ...]:
        """Of every peer."""
        return (f"upload_mbps={self.upload_mbps}", f"download_mbps={self.download_mbps}", "chain_mb=0")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `overlap` and its options to the command line."""
    parser = commands.add_parser("overlap", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, and a picture beside it")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="keep what the peers write in this new folder")
    parser.add_argument("--quick", action="store_true", help="two rounds of a few runs: shows only that it works")
    parser.add_argument("--modes", nargs="+", metavar="MODE", help="only these of the plan")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the table and a line per bar, write the figures. 0 if all bars are met, or with `--quick`."""
    plan = Plan.read(arguments.quick)
    if arguments.modes:
        plan = dataclasses.replace(plan, modes={mode: plan.modes[mode] for mode in arguments.modes})
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="hf-overlap-"))
    try:
        alone, runs = measure(directory, load(str(SPEC)), plan)
    finally:
        if arguments.dir is None:
            shutil.rmtree(directory)
    table, bars = overlap_report.table(alone, runs), overlap_report.judge(alone, runs)
    print("\n" + table + "\n" + "".join(f"- {bar}\n" for bar in bars), flush=True)
    if arguments.json:
        result = {
            "plan": dataclasses.asdict(plan), "spec": dataclasses.asdict(load(str(SPEC))), "commit": commit(),
            "versions": versions(), "machine": machine(), "bars": [dataclasses.asdict(bar) for bar in bars],
            "alone": [dataclasses.asdict(figures) for figures in alone],
            "runs": [dataclasses.asdict(figures) for figures in runs],
        }  # fmt: skip
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
        overlap_report.draw(alone, runs, arguments.json.with_suffix(".png"))
    return 0 if arguments.quick or all(bar.met for bar in bars) else 1


# ---- measuring ----


def measure(directory: Path, spec: RunSpec, plan: Plan) -> tuple[list[Alone], list[Measured]]:
    """Peers alone, then every mode, then peers of one speed alone, with one more of them, and with a slow one."""
    path = directory / "spec.toml"
    directory.mkdir(exist_ok=True)
    path.write_text(dump(spec))
    alone = [measure_alone(directory / f"alone-{slower:g}", path, plan, slower) for slower in sorted({*plan.slower})]
    runs = [
        measure_run(directory / f"mode-{number}", path, plan, mode, plan.slower)
        for number, mode in enumerate(plan.modes)
    ]
    equals = plan.equals
    shorter = dataclasses.replace(plan, rounds=equals["rounds"])
    without = (1.0,) * equals["peers"]
    for repeat in range(equals["repeats"]):
        for more in equals["more"]:
            slower = (*without, float(more)) if more else without
            where = directory / f"equals-{repeat}-{more}"
            runs.append(measure_run(where, path, shorter, equals["mode"], slower, repeat=repeat))
    return alone, runs


def measure_alone(directory: Path, spec: Path, plan: Plan, slower: float) -> Alone:
    """A run of one peer that only trains."""
    step_s = plan.step_s * slower
    settings = (*plan.settings(), f"min_step_s={step_s}")
    with closing(RealSwarm(directory, 1, spec=str(spec), sets=ENDLESS, settings=settings, paced=True)) as swarm:
        wait_for_steps(swarm, 0, SETTLED_STEPS, within_s=BEGIN_S)
        since = progress_of(swarm.lines(0))[-1][0]
        busy = Busy(swarm)
        steps = max(2, round(plan.alone_s / step_s))
        wait_for_steps(swarm, 0, SETTLED_STEPS + steps, within_s=3 * steps * step_s + BEGIN_S)
        told = [row for row in progress_of(swarm.lines(0)) if row[0] >= since]
        swarm_load, machine_load = busy.shares()
    rate = sum(tokens for _, tokens in told[1:]) / (told[-1][0] - told[0][0])
    say(f"alone, {slower:g} times slower: {rate:.2f} tokens/s, load {machine_load:.0%} (the run {swarm_load:.0%})")
    return Alone(slower=slower, step_s=step_s, tokens_per_s=rate, load=machine_load)


def measure_run(
    directory: Path, spec: Path, plan: Plan, mode: str, slower: Sequence[float], repeat: int = 0
) -> Measured:
    """One run in one mode; `slower` says how slow each peer is."""
    own = {peer: (f"min_step_s={plan.step_s * times}",) for peer, times in enumerate(slower)}
    last = plan.warm_rounds + plan.rounds
    with closing(
        RealSwarm(
            directory, len(slower), spec=str(spec), sets=plan.modes[mode], settings=plan.settings(), own=own,
            paced=True, delay_s=plan.delay_s,
        )
    ) as swarm:  # fmt: skip
        swarm.until_round(plan.warm_rounds, within_s=BEGIN_S + plan.warm_rounds * ROUND_S)
        busy = Busy(swarm)
        swarm.until_round(last, within_s=plan.rounds * ROUND_S)
        swarm_load, machine_load = busy.shares()
        for peer in range(len(slower)):
            ended_at = commits_of(swarm.lines(peer))[last].t
            swarm.wait_for(peer, lambda line, t=ended_at: is_progress(line) and line.t > t, within_s=ROUND_S)  # type: ignore[misc]
        swarm.assert_agreement()
        tokens = step_tokens(swarm.spec)
        peers = [
            of_peer(swarm.lines(peer), plan.step_s * times, tokens, plan.warm_rounds, last)
            for peer, times in enumerate(slower)
        ]
        ids = [swarm.id_of(peer) for peer in range(len(slower))]
        rounds = of_rounds(swarm.lines(0), ids, plan.warm_rounds, last)
    measured = Measured(
        mode=mode,
        slower=list(slower),
        repeat=repeat,
        peers=peers,
        rounds=rounds,
        load=machine_load,
        swarm_load=swarm_load,
    )
    say(overlap_report.sentence(measured))
    return measured


def wait_for_steps(swarm: RealSwarm, peer: int, steps: int, *, within_s: float) -> None:
    """Until the peer has said that it made so many steps of its round."""
    swarm.wait_for(
        peer,
        lambda line: isinstance(line.event, InnerProgressed) and line.event.step >= steps,
        within_s=within_s,
    )


class Busy:
    """Processor time since now: of all processes of a swarm, and of everything on this machine."""

    def __init__(self, swarm: RealSwarm) -> None:
        self._swarm, self._before = Load(swarm), psutil.cpu_times()

    def shares(self) -> tuple[float, float]:
        """Both as shares of all cores."""
        now, before = psutil.cpu_times(), self._before
        idle = now.idle + now.iowait - before.idle - before.iowait
        return self._swarm.share(), 1 - idle / (sum(now) - sum(before))


# ---- from lines to figures ----


def is_progress(line: EventLine) -> bool:
    return isinstance(line.event, InnerProgressed)


def progress_of(lines: Sequence[EventLine]) -> list[tuple[float, int]]:
    """(Unix time, tokens since the report before) of every report of inner steps."""
    return [(line.t, line.event.tokens) for line in lines if isinstance(line.event, InnerProgressed)]


def commits_of(lines: Sequence[EventLine]) -> dict[int, EventLine]:
    """The lines that told of commits, by the round."""
    return {line.event.round: line for line in lines if isinstance(line.event, RoundCommitted)}


def of_peer(lines: Sequence[EventLine], step_s: float, step_tokens: int, first: int, last: int) -> OfPeer:
    """What one peer did from its commit of anchor `first` to that of `last`.

    Its tokens are counted from the first report of steps after the one commit to the first after the other, so that
    both ends lie at the same place in a round and at the end of a step.
    """
    commits, told = commits_of(lines), progress_of(lines)
    begin = next(at for at, (t, _) in enumerate(told) if t > commits[first].t)
    end = next(at for at, (t, _) in enumerate(told) if t > commits[last].t)
    made = sum(tokens for _, tokens in told[begin + 1 : end + 1])
    events = [commits[number].event for number in range(first + 1, last + 1)]
    times = [commits[number].t for number in range(first, last + 1)]
    return OfPeer(
        step_s=step_s, step_tokens=step_tokens, tokens=made, made_in_s=told[end][0] - told[begin][0],
        round_s=[round(later - earlier, 3) for earlier, later in pairwise(times)],
        exposed_s=[event.exposed_s for event in events if isinstance(event, RoundCommitted)],
        bytes_sent=[event.bytes_sent for event in events if isinstance(event, RoundCommitted)],
    )  # fmt: skip


def of_rounds(lines: Sequence[EventLine], ids: Sequence[str], first: int, last: int) -> list[OfRound]:
    """What the updates that made anchors `first` + 1 to `last` counted, as one peer tells it."""
    commits = commits_of(lines)
    rounds = []
    for number in range(first + 1, last + 1):
        event = commits[number].event
        assert isinstance(event, RoundCommitted)
        rounds.append(
            OfRound(
                round=number, seconds=round(commits[number].t - commits[number - 1].t, 3), tokens=event.tokens,
                weights=[event.weights.get(peer) for peer in ids], void=event.void,
                penalties=[penalty["code"] for penalty in event.penalties],
            )
        )  # fmt: skip
    return rounds


def step_tokens(spec: RunSpec) -> int:
    """Tokens of an inner step."""
    return spec.inner.accumulation * spec.inner.sequences * spec.model.context


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)
