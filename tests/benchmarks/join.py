"""`join`: how soon a newcomer to a run of 50 M parameters is in step, and what that costs the others.

Real processes on this machine, with gentle peers. Three founders make some rounds, then a fourth peer joins
by snapshot. It leaves, and another one joins while one of its three donors lies about every chunk and another
is killed in the middle.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.schema.events import (
    AlertRaised,
    CheckpointWritten,
    EventLine,
    PeerStarted,
    RoundCommitted,
    RoundStarted,
    TransferProgressed,
)  # fmt: skip
from peer.testing.child_process import processes_of
from peer.testing.faulty_link import LIES
from peer.testing.process_swarm import RealSwarm
from tests.benchmarks.record import machine, versions
from tests.benchmarks.rows import Bar, percent

SPEC = Path(__file__).with_suffix(".toml")
STEP_S = 3.5
"""What an inner step takes, declared: a tenth of it is arithmetic."""
BEGIN_S = 400.0
ROUND_S = 240.0
JOIN_S = 400.0
FOUNDERS = (0, 1, 2)
WARM_ROUND = 4
"""Until here the rounds are short, and what is learned from past rounds is not settled."""
ROUNDS_BEFORE = 4

MOST_ROUNDS = 1.5
MOST_SLOWER = 1.10
MOST_LOAD = 0.6


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `join` and its options to the command line."""
    parser = commands.add_parser("join", help="how a newcomer gets in step with 50 M parameters", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="keep what the peers write in this new folder")
    parser.add_argument("--step-s", type=float, default=STEP_S, help="what an inner step takes at least")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print a line per bar, write the figures. 0 if all bars are met."""
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="hf-join-"))
    try:
        figures = measure(directory / "swarm", arguments.step_s)
    finally:
        if arguments.dir is None:
            shutil.rmtree(directory)
    bars = judge(figures)
    print("".join(f"{bar}\n" for bar in bars), flush=True)
    if arguments.json:
        about = {"step_s": arguments.step_s, "versions": versions(), "machine": machine()}
        result = about | dataclasses.asdict(figures) | {"bars": [dataclasses.asdict(bar) for bar in bars]}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(bar.met for bar in bars) else 1


# ---- figures ----


@dataclass(kw_only=True)
class Joined:
    """One newcomer."""

    seconds: float
    """From the start of its process to its first inner step, in step with the others."""
    snapshot_bytes: int
    bytes_received: int
    """In frames, up to its first commit with others; a snapshot comes on streams of its own."""
    others_round_s: list[float]
    """The rounds of the others that were made while it joined."""
    load: float | None
    """Processor time of everything in the run, as a share of all cores; None if a process was killed meanwhile."""
    counted_after_rounds: int
    """Rounds from the one being made when it was in step to the first in which it counts."""
    left_out: list[str]
    """What it said of donors that it asks no more."""
    killed_at: float | None = None
    """The share of the snapshot that had arrived when a donor was killed."""


@dataclass(kw_only=True)
class Figures:
    """All that is measured."""

    parameters: int
    round_s: list[float]
    """Of the founders before anybody joins."""
    load: float
    join: Joined
    join_with_faults: Joined
    history: list[dict[str, Any]] = field(default_factory=list)
    """Every commit and every checkpoint of every peer, in seconds since the start."""

    @property
    def usual_round_s(self) -> float:
        return statistics.fmean(self.round_s)


def judge(figures: Figures) -> list[Bar]:
    """Issue 4's bars for a joiner."""
    usual_s, join, faults = figures.usual_round_s, figures.join, figures.join_with_faults
    rounds, slower = join.seconds / usual_s, statistics.fmean(join.others_round_s) / usual_s
    assert join.load is not None
    load = max(figures.load, join.load)
    return [
        Bar(
            name=f"in step within {MOST_ROUNDS} rounds",
            met=rounds <= MOST_ROUNDS,
            figures=f"{join.seconds:.1f} s are {rounds:.2f} rounds of {usual_s:.1f} s",
        ),
        Bar(
            name=f"the others' rounds take at most {100 * (MOST_SLOWER - 1):.0f} % longer meanwhile",
            met=slower <= MOST_SLOWER,
            figures=f"{percent(slower)} ({_seconds(join.others_round_s)}; before {_seconds(figures.round_s)})",
        ),
        Bar(
            name=f"load of at most {100 * MOST_LOAD:.0f} % of the cores",
            met=load <= MOST_LOAD,
            figures=f"{100 * figures.load:.0f} % before, {100 * join.load:.0f} % while it joins",
        ),
        Bar(
            name="succeeds with one donor killed and one that lies",
            met=faults.counted_after_rounds >= 0 and faults.killed_at is not None and faults.killed_at < 1,
            figures=f"in step after {faults.seconds:.1f} s, {faults.seconds / usual_s:.2f} rounds; killed when "
            f"{100 * (faults.killed_at or 0):.0f} % had arrived; it said: {'; '.join(faults.left_out)}",
        ),
    ]


def _seconds(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values) + " s"


# ---- measuring ----


def measure(directory: Path, step_s: float) -> Figures:
    """Run it all once; some ten minutes."""
    # No more of the chain than must stay, as in an old run: else a newcomer replays the few rounds there are.
    settings = (f"min_step_s={step_s}", "chain_mb=0")
    with closing(RealSwarm(directory, len(FOUNDERS), spec=str(SPEC), settings=settings)) as swarm:
        swarm.until_round(WARM_ROUND, within_s=BEGIN_S)
        _say(swarm, f"round {WARM_ROUND} is made; measuring {ROUNDS_BEFORE} rounds before anybody joins")
        clock = Load(swarm)
        swarm.until_round(WARM_ROUND + ROUNDS_BEFORE, within_s=ROUNDS_BEFORE * ROUND_S)
        load = clock.share()
        before = round_seconds(swarm, FOUNDERS[0], WARM_ROUND + 1, WARM_ROUND + ROUNDS_BEFORE)
        first = join(swarm)
        _say(swarm, f"a newcomer was in step after {first.seconds:.1f} s; it leaves, and another one comes")
        assert swarm.stop(len(FOUNDERS)) == 0
        swarm.until_round(newest(swarm) + 2, by=FOUNDERS, within_s=2 * ROUND_S)
        second = join(swarm, liar=0, dies=1)
        _say(swarm, f"with faults, a newcomer was in step after {second.seconds:.1f} s")
        swarm.assert_agreement()
        return Figures(
            parameters=parameters(swarm), round_s=before, load=load, join=first, join_with_faults=second,
            history=history(swarm),
        )  # fmt: skip


def join(swarm: RealSwarm, liar: int | None = None, dies: int | None = None) -> Joined:
    """One newcomer comes right after a commit. Donor `liar` gives wrong chunks, `dies` is killed meanwhile."""
    swarm.until_first(newest(swarm) + 1, within_s=ROUND_S)
    made, donors = newest(swarm), [peer for peer in FOUNDERS if peer != dies]
    if liar is not None:
        (swarm.directory_of(liar) / LIES).touch()
    clock, began_at = Load(swarm), time.time()
    peer = swarm.join()
    killed_at = None
    if dies is not None:
        chunk = swarm.wait_for(peer, is_chunk, within_s=JOIN_S).event
        assert isinstance(chunk, TransferProgressed)
        swarm.kill(dies)
        killed_at = chunk.bytes_done / chunk.bytes_total
    in_step = swarm.wait_for(peer, lambda line: isinstance(line.event, RoundStarted), within_s=JOIN_S)
    assert isinstance(in_step.event, RoundStarted)
    load = clock.share() if dies is None else None
    said = [line for line in swarm.lines(peer) if line.t <= in_step.t]
    chunks = [line.event for line in said if isinstance(line.event, TransferProgressed) and is_chunk(line)]
    assert chunks, "it did not take a snapshot"
    left_out = [line.event.text for line in said if isinstance(line.event, AlertRaised) and line.event.code == "DONOR"]
    assert liar is None or any(swarm.id_of(liar) in text and "wrong bytes" in text for text in left_out), left_out
    counted = swarm.wait_for(peer, lambda line: counts(line, swarm.id_of(peer)), within_s=3 * ROUND_S).event
    assert isinstance(counted, RoundCommitted)
    swarm.until_round(counted.round, by=donors, within_s=ROUND_S)
    ends = [event for line in swarm.lines(peer) if isinstance(event := line.event, RoundCommitted)]
    last = min(commit.round for commit in swarm.committed(donors[-1]) if swarm.began_at + commit.at_s >= in_step.t)
    return Joined(
        seconds=in_step.t - began_at,
        snapshot_bytes=chunks[-1].bytes_done,
        bytes_received=sum(event.bytes_received for event in ends if event.round <= counted.round),
        others_round_s=round_seconds(swarm, donors[-1], made + 1, last),
        load=load,
        counted_after_rounds=counted.round - in_step.event.round,
        left_out=left_out,
        killed_at=killed_at,
    )


class Load:
    """Processor time of all processes of a swarm since now."""

    def __init__(self, swarm: RealSwarm) -> None:
        self._swarm = swarm
        self._began_at, self._before = time.monotonic(), self._seconds()

    def share(self) -> float:
        """As a share of all cores. Of a process that has ended nothing counts."""
        now = self._seconds()
        used = sum(seconds - self._before.get(pid, 0.0) for pid, seconds in now.items())
        return used / (time.monotonic() - self._began_at) / len(os.sched_getaffinity(0))

    def _seconds(self) -> dict[int, float]:
        times = {process.pid: process.cpu_times() for process in processes_of(self._swarm.directory)}
        return {pid: spent.user + spent.system for pid, spent in times.items()}


def round_seconds(swarm: RealSwarm, peer: int, first: int, last: int) -> list[float]:
    """From commit to commit at one peer, for the rounds that made anchors `first` to `last`."""
    at_s = {commit.round: commit.at_s for commit in swarm.committed(peer)}
    return [round(at_s[made] - at_s[made - 1], 2) for made in range(first, last + 1)]


def newest(swarm: RealSwarm) -> int:
    return max(commits[-1].round for peer in range(swarm.size) if (commits := swarm.committed(peer)))


def parameters(swarm: RealSwarm) -> int:
    (count,) = {line.event.parameters for line in swarm.lines(0) if isinstance(line.event, PeerStarted)}
    return count


def history(swarm: RealSwarm) -> list[dict[str, Any]]:
    """What may explain an odd figure."""
    told: list[dict[str, Any]] = []
    for peer in range(swarm.size):
        for line in swarm.lines(peer):
            at: dict[str, Any] = {"peer": peer, "at_s": round(line.t - swarm.began_at, 1)}
            match line.event:
                case RoundCommitted(round=made, round_s=round_s, exposed_s=exposed_s, group=group, void=void):
                    told.append(
                        at | {"round": made, "round_s": round_s, "exposed_s": exposed_s, "void": void, "n": len(group)}
                    )
                case CheckpointWritten(round=made, bytes=size_bytes):
                    told.append(at | {"checkpoint": made, "bytes": size_bytes})
    return sorted(told, key=lambda row: row["at_s"])


def is_chunk(line: EventLine) -> bool:
    return isinstance(line.event, TransferProgressed) and line.event.what == "snapshot"


def counts(line: EventLine, peer: str) -> bool:
    return isinstance(line.event, RoundCommitted) and line.event.weights.get(peer, 0) > 0


def _say(swarm: RealSwarm, text: str) -> None:
    print(f"{time.time() - swarm.began_at:6.0f} s  {text}", flush=True)
