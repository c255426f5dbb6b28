"""`drops`: what it costs, in held-out perplexity, when rounds leave out half of the contributions.

A contribution that was frozen and signed is in no part of the update, with probability 1/2, drawn for every
peer and round on its own and the same in all variants of a seed. A round that leaves everybody out is as
drawn: its update is void in every part, which leaves momentum's step.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
from collections.abc import Collection
from functools import partial

from peer.schema.spec import RunSpec
from tests.benchmarks import drops_report, jobs
from tests.benchmarks.options import add_options, base_spec
from tests.benchmarks.record import write_results
from tests.benchmarks.variants import Outcome, Report, names_of, train_diloco

CODE = (*jobs.CODE, "tests/benchmarks/drops.py")
DROPPED = 0.5
"""Probability that a round goes without a peer's contribution: the most that DiLoCo was tried with."""
QUICK_ROUNDS = 6

JUDGED = ("carry", "no-drops")
"""What the bar is about: made first, seed by seed."""
BESIDE = ("no-carry",)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `drops` and its options to the command line."""
    parser = commands.add_parser("drops", help=__doc__.splitlines()[0], description=__doc__)
    add_options(parser, out="drops", seeds=5)
    parser.add_argument("--quick", action="store_true", help="one seed, few rounds: shows only that it works")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make the missing rows, then the table, drops.json and drops.png. 0 if all bars are met."""
    if arguments.quick:
        arguments.seeds, arguments.rounds = arguments.seeds[:1], QUICK_ROUNDS
    base, peers, out = base_spec(arguments), arguments.peers, arguments.out
    code = jobs.code_digest(CODE)
    wanted = [
        jobs.Job(variant=variant, seed=seed, spec=spec_of(variant, base, seed, peers), code=code, train=train)
        for variants in (JUDGED, BESIDE)
        for seed in arguments.seeds
        for variant in variants
    ]
    rows = jobs.rows_of(wanted, out, arguments.jobs)
    drops_report.draw(rows, out / "drops.png")
    table, bars = drops_report.table(rows), drops_report.judge(rows)
    return write_results(out / "drops", base, table, bars, rows, code=code, peers=peers, dropped=DROPPED)


def spec_of(variant: str, base: RunSpec, seed: int, peers: int) -> RunSpec:
    """The spec that `variant` trains. A discount of zero throws away what a round missed."""
    gamma = 0.0 if variant == "no-carry" else base.round.gamma
    run = dataclasses.replace(base.run, seed=seed, founders=peers)
    return dataclasses.replace(base, run=run, round=dataclasses.replace(base.round, gamma=gamma))


def train(variant: str, spec: RunSpec, report: Report) -> Outcome:
    """Train `spec`, as `spec_of` gave it, to its last round."""
    if variant == "no-drops":
        return train_diloco(spec, report)
    return train_diloco(spec, report, partial(dropped, spec.run.seed, names_of(spec)))


def dropped(seed: int, names: Collection[str], round: int) -> frozenset[str]:
    """Whose contributions to the anchor of `round` are lost: each with probability `DROPPED`, on its own."""
    return frozenset(name for name in names if random.Random(f"drops {seed} {round} {name}").random() < DROPPED)
