"""`attacks`: what one hostile peer of four can do to the other three, attack by attack, on the swarm of real trainers.

Every run has a pair: the same seed with the three honest peers alone, who have the same names and read the same text.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import Any

from peer.schema.events import PenaltyImposed
from peer.schema.spec import RunSpec
from peer.training.train.optimizers import steps_before
from tests.adversaries import ATTACKS
from tests.benchmarks import attacks_report, jobs
from tests.benchmarks.attacks_report import ALONE
from tests.benchmarks.options import add_options, base_spec
from tests.benchmarks.record import write_results
from tests.benchmarks.variants import Outcome, Point, Report
from tests.training_swarm import Role, TrainingPeer, TrainingSwarm, names_of

PEERS = 4
QUICK_ROUNDS = 3
REDUCERS = ("edit", "agreement", "centered-clip", "mean")
BY_DIRECTION = ("sign-flip", "noise")
"""Their norms are those of honest peers: only `agreement` can tell them."""
CODE = (
    "peer/planning/simulate/memory_network.py", "dht/identity.py", "peer/consensus/codec/*.py", "peer/node/store/*.py",
    "peer/network/sync/*.py",
    "peer/network/link/*.py", "peer/training/data/*.py", "peer/consensus/aggregation/*.py", "peer/training/model/*.py",
    "peer/consensus/protocol/*.py", "peer/consensus/rounds/*.py", "peer/node/lifecycle/*.py",
    "peer/training/train/*.py", "peer/schema/spec*.py",
    "peer/node/telemetry/reporter.py", "tests/adversaries.py",
    "tests/training_swarm.py", "tests/benchmarks/attacks.py",
)  # fmt: skip

Blame = dict[str, dict[str, Any]]
"""By code: how many honest peers were told, in which rounds, the smallest factor, and one evidence."""


@dataclass(frozen=True, kw_only=True)
class AttackOutcome(Outcome):
    """What one run gave, as its honest peers saw it."""

    honest: int
    rounds: int
    """Rounds that all of them committed."""
    crash: str
    """What ended the run before its last round; empty if nothing did."""
    differing: list[int]
    """Rounds in which they did not have the same anchor and bits."""
    blamed: Blame
    """What they were told about the attacker."""
    wronged: Blame
    """What they were told about each other."""
    unseen: int
    """How many of them were told nothing about the attacker."""
    bad_frames: int
    virtual_s: float


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `attacks` and its options to the command line."""
    parser = commands.add_parser("attacks", help=__doc__.splitlines()[0], description=__doc__)
    add_options(parser, out="attacks", seeds=3)
    parser.add_argument("--attacks", nargs="+", choices=tuple(ATTACKS), default=list(ATTACKS), metavar="ATTACK")
    parser.add_argument("--reducer", choices=REDUCERS, help="for all; by default what each attack calls for")
    parser.add_argument("--quick", action="store_true", help="one seed, few rounds: shows only that it works")
    parser.set_defaults(run=run, spec="micro", peers=PEERS)


def run(arguments: argparse.Namespace) -> int:
    """Make the missing rows, then the table and attacks.json. 0 if all bars are met."""
    if arguments.quick:
        arguments.seeds, arguments.rounds = arguments.seeds[:1], QUICK_ROUNDS
    base, code = base_spec(arguments), jobs.code_digest(CODE)
    pairs = [(attack, arguments.reducer or reducer_for(attack)) for attack in arguments.attacks]
    alone = [(ALONE, reducer) for reducer in dict.fromkeys(reducer for _, reducer in pairs)]
    wanted = [
        jobs.Job(
            variant=f"{attack} {reducer}", seed=seed, spec=spec_of(attack, reducer, base, seed, arguments.peers),
            code=code, train=train,
        )
        for seed in arguments.seeds
        for attack, reducer in (*alone, *pairs)
    ]  # fmt: skip
    rows = jobs.rows_of(wanted, arguments.out, arguments.jobs)
    table, bars = attacks_report.table(rows), attacks_report.judge(rows)
    return write_results(arguments.out / "attacks", base, table, bars, rows, code=code)


def reducer_for(attack: str) -> str:
    """The reducer that is expected to withstand an attack."""
    return "agreement" if attack in BY_DIRECTION else "edit"


def spec_of(attack: str, reducer: Any, base: RunSpec, seed: int, peers: int) -> RunSpec:
    """The spec of a run of `peers` of which one attacks, or of the others alone."""
    run = dataclasses.replace(base.run, seed=seed, founders=peers - (attack == ALONE))
    return dataclasses.replace(base, run=run, aggregation=dataclasses.replace(base.aggregation, rule=reducer))


def train(variant: str, spec: RunSpec, report: Report) -> AttackOutcome:
    """Run the swarm to its last round, or to what ends it before."""
    attack, founders = variant.split()[0], spec.run.founders
    roles: Mapping[int, Role] = {} if attack == ALONE else {founders - 1: ATTACKS[attack]()}
    readers = names_of(spec.run.seed, founders + (attack == ALONE))
    with tempfile.TemporaryDirectory(prefix="homefires-") as folder:
        swarm = TrainingSwarm(spec, Path(folder), roles, readers)
        crash = ""
        for round in range(spec.run.rounds):
            try:
                swarm.until_round(round + 1)
            except Exception as error:
                at = extract_tb(error.__traceback__)[-1]
                crash = f"{error!r:.300} ({at.filename.rpartition('/')[2]}:{at.lineno})"
                break
            report(point(swarm, round + 1))
        return outcome(swarm, crash)


def point(swarm: TrainingSwarm, round: int) -> Point:
    """The newest loss when all honest peers have committed `round`."""
    tokens = sum(member.tokens for update in swarm.honest[0].updates[:round] for member in update.members)
    measured = max(known for known in swarm.losses if known <= round)
    return Point(round=round, tokens=tokens, loss=swarm.losses[measured])


def outcome(swarm: TrainingSwarm, crash: str) -> AttackOutcome:
    """What is to be known of a swarm that has come to its end."""
    honest, first = swarm.honest, swarm.honest[0]
    names = {peer.name for peer in honest}
    told = {peer.name: {event.about for event in peer.penalties if event.evidence} for peer in honest}
    return AttackOutcome(
        points=[point(swarm, round) for round in sorted(swarm.losses)], crash=crash,
        state=first.trainer.anchor.state_digest().hex(), wire_bytes=0, exchanges=first.trainer.anchor.round,
        parameters=first.trainer.parameters, steps=steps_before(swarm.spec, swarm.spec.run.rounds),
        honest=len(honest), rounds=min(len(peer.history) for peer in honest), differing=swarm.differing(),
        blamed=blame(honest, {peer.name for peer in swarm.peers} - names), wronged=blame(honest, names),
        unseen=sum(not about - names for about in told.values()),
        bad_frames=sum(peer.driver.bad_frames for peer in honest), virtual_s=swarm.now,
    )  # fmt: skip


def blame(honest: Collection[TrainingPeer], about: Collection[str]) -> Blame:
    """What these peers were told about some, by code."""
    found: dict[str, list[tuple[str, int, PenaltyImposed]]] = defaultdict(list)
    for peer in honest:
        for event in peer.penalties:
            if event.about in about:
                found[event.code].append((peer.name, event.until_round, event))
    return {
        code: {
            "peers": len({name for name, _, _ in seen}),
            "until": sorted({until for _, until, _ in seen}),
            "factor": min(event.factor for _, _, event in seen),
            "layer": seen[-1][2].layer,
            "evidence": seen[-1][2].evidence,
        }
        for code, seen in sorted(found.items())
    }
