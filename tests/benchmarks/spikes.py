"""`spikes`: how far up one peer pushes the held-out loss that learns from random labels for three rounds.

EDiT's own test of its penalty (arXiv:2412.07210). The runs of a seed are the same bit by bit until that peer begins,
except for what their reducers make of honest contributions.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from peer.schema.spec import RunSpec
from peer.training.train.trainer import LocalTrainer
from tests.benchmarks import jobs, spikes_report
from tests.benchmarks.mislabelled import Mislabelled
from tests.benchmarks.options import add_options, base_spec
from tests.benchmarks.record import write_results
from tests.benchmarks.variants import CPU, Outcome, Report, names_of, plain, train_diloco

CODE = (*jobs.CODE, "tests/benchmarks/mislabelled.py", "tests/benchmarks/spikes.py")
REDUCERS = ("edit", "mean", "centered-clip", "agreement")
ROUNDS = 24
BEGINS = 12
"""The anchor from which the first spoilt round starts."""
SPOILT = 3


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `spikes` and its options to the command line."""
    parser = commands.add_parser("spikes", help=__doc__.splitlines()[0], description=__doc__)
    add_options(parser, out="spikes", seeds=3)
    parser.add_argument("--reducers", nargs="+", choices=REDUCERS, default=["edit", "mean"])
    parser.set_defaults(run=run, spec="micro", rounds=ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    """Make the missing rows, then the table, spikes.json and spikes.png. 0 if all bars are met."""
    base, peers, out = base_spec(arguments), arguments.peers, arguments.out
    if base.aggregation.warmup_rounds >= BEGINS or base.run.rounds < BEGINS + SPOILT:
        raise SystemExit(
            f"rounds {BEGINS} to {BEGINS + SPOILT} are spoilt: after aggregation.warmup_rounds, before the end"
        )
    code = jobs.code_digest(CODE)
    wanted = [
        jobs.Job(variant=reducer, seed=seed, spec=spec_of(reducer, base, seed, peers), code=code, train=train)
        for seed in arguments.seeds
        for reducer in arguments.reducers
    ]
    rows = jobs.rows_of(wanted, out, arguments.jobs)
    spikes_report.draw(rows, out / "spikes.png", BEGINS, SPOILT)
    table, bars = spikes_report.table(rows, BEGINS), spikes_report.judge(rows, BEGINS)
    return write_results(out / "spikes", base, table, bars, rows, code=code, peers=peers, begins=BEGINS, spoilt=SPOILT)


def spec_of(reducer: str, base: RunSpec, seed: int, peers: int) -> RunSpec:
    """The spec that a reducer is tried with: every anchor is evaluated."""
    kind: Any = reducer
    return dataclasses.replace(
        base,
        run=dataclasses.replace(base.run, seed=seed, founders=peers),
        data=dataclasses.replace(base.data, eval_every=1),
        aggregation=dataclasses.replace(base.aggregation, rule=kind),
    )


def train(variant: str, spec: RunSpec, report: Report) -> Outcome:
    """Train `spec`, as `spec_of` gave it, to its last round. Its last peer learns from random labels for a while."""
    return train_diloco(spec, report, make=trainer)


def trainer(spec: RunSpec, name: str, folder: Path) -> LocalTrainer:
    """A trainer of the product, but for the last peer's."""
    if name != names_of(spec)[-1]:
        return plain(spec, name, folder)
    return Mislabelled(spec, name, folder, CPU, range(BEGINS, BEGINS + SPOILT))
