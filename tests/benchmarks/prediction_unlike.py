"""`prediction_unlike`: how well a plan foretells the rounds of peers that are not alike.

Real processes whose steps and lines are known: a device is busy for as long as `min_step_s` says, and lines are capped.
The plan is told no more than a file of peers would tell it, its coefficients are the shipped ones, and nothing of these
swarms was used to fit them.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from peer.planning.plan.coefficients import shipped
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import Machine, PeerSet, swarm_of
from peer.planning.plan.planning_problem import PlanningProblem
from peer.planning.plan.strategy_search import as_it_stands
from peer.schema.events import RoundCommitted
from peer.schema.spec import RunSpec
from peer.testing.process_swarm import RealSwarm
from tests.benchmarks.prediction import DOWNLOADS, ROUND_S, SPEC
from tests.benchmarks.record import say
from tests.benchmarks.rows import Bar

DELAY_S = 0.01
WARM_ROUNDS = 8
"""Not looked at: deadlines are learned from as many."""
MOST_OFF = 0.1


@dataclass(frozen=True, kw_only=True)
class UnlikeSwarm:
    """Peers of unlike devices and lines, and the rounds that they make."""

    name: str
    sets: tuple[str, ...]
    step_s: tuple[float, ...]
    """Seconds of an inner step, by peer."""
    upload_mbps: tuple[float, ...]
    """0: no cap."""

    def own(self) -> dict[int, tuple[str, ...]]:
        """The settings of each peer."""
        return {
            peer: (f"min_step_s={step_s}", f"upload_mbps={line}", f"download_mbps={DOWNLOADS * line}")
            for peer, (step_s, line) in enumerate(zip(self.step_s, self.upload_mbps, strict=True))
        }

    def peers(self) -> PeerSet:
        """The same peers as a plan sees them."""
        machines = [
            Machine(name=f"peer-{peer}", step_s=step_s, upload_mbps=line, download_mbps=DOWNLOADS * line)
            for peer, (step_s, line) in enumerate(zip(self.step_s, self.upload_mbps, strict=True))
        ]
        return swarm_of(machines, otherwise_s=DELAY_S)


SWARMS = (
    UnlikeSwarm(
        name="H steps each, one peer five times slower",
        sets=("round.steps=20", "round.gather_s=60", "round.keep_rounds=8"),
        step_s=(0.25, 0.25, 0.3, 0.4, 1.25), upload_mbps=(0, 0, 0, 0, 0),
    ),
    UnlikeSwarm(
        name="steps by speed, streaming, home lines",
        sets=("round.steps=30", 'round.pace="speed"', 'round.overlap="streaming"', 'codec.wire="int8"'),
        step_s=(0.2, 0.3, 0.45, 0.8), upload_mbps=(20, 8, 8, 4),
    ),
)  # fmt: skip


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("prediction_unlike", help=__doc__.splitlines()[0] + " 8 minutes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="rounds that are measured")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """0 if every swarm's rounds last as long as a plan says, to a tenth."""
    bars = []
    for unlike in SWARMS:
        with tempfile.TemporaryDirectory(prefix="hf-unlike-") as folder:
            spec, took_s = measure(unlike, Path(folder), options.rounds)
        bars.append(judge(unlike, foretold_s(spec, unlike.peers()), median(took_s)))
        say(f"{bars[-1]}; rounds of {', '.join(f'{each:.1f}' for each in took_s)} s")
    return 0 if all(bar.met for bar in bars) else 1


def measure(unlike: UnlikeSwarm, folder: Path, rounds: int) -> tuple[RunSpec, list[float]]:
    """The spec of the run, and the seconds of its rounds as its first peer saw them."""
    last = WARM_ROUNDS + rounds
    swarm = RealSwarm(
        folder, len(unlike.step_s), spec=str(SPEC), sets=unlike.sets, settings=("chain_mb=0",), own=unlike.own(),
        paced=True, delay_s=DELAY_S,
    )  # fmt: skip
    with closing(swarm):
        swarm.until_round(last, within_s=last * ROUND_S, by=(0,))
        ends = [line.t for line in swarm.lines(0) if isinstance(line.event, RoundCommitted)]
        return swarm.spec, [after - before for before, after in pairwise(ends[WARM_ROUNDS - 1 : last])]


def foretold_s(spec: RunSpec, peers: PeerSet) -> float:
    """The length of a round by `homefires plan`, of the spec as it stands."""
    question = PlanningProblem(spec=spec, shape=shape_of(spec), swarm=peers, given=shipped())
    return as_it_stands(question).cost.round_s


def judge(unlike: UnlikeSwarm, foretold_s: float, took_s: float) -> Bar:
    off = foretold_s / took_s - 1
    return Bar(
        name=f"{unlike.name}: planned within a tenth", met=abs(off) <= MOST_OFF,
        figures=f"planned {foretold_s:.2f} s, took {took_s:.2f} s ({off:+.1%})",
    )  # fmt: skip
