"""`honest`: what judging costs those who need no judge, in held-out loss and in time.

All peers are honest. The runs of a seed start from the same parameters and read the same text in the same order; only
the reducer differs. In `iid` every peer reads a bit of everything, in `non-iid` whole folders of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from peer.schema.spec import RunSpec
from tests.benchmarks import honest_report, jobs
from tests.benchmarks.honest_report import SHARDS
from tests.benchmarks.options import add_options, base_spec
from tests.benchmarks.record import write_results
from tests.benchmarks.unlike import dealt
from tests.benchmarks.variants import Outcome, Report, names_of, train_diloco

CODE = (*jobs.CODE, "tests/benchmarks/unlike.py", "tests/benchmarks/honest.py")
ROUNDS = 24
SEQUENCES, EVERY = 512, 4
"""Evaluated, and the rounds between evaluations: with few sequences the differences would be those of the text."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `honest` and its options to the command line."""
    parser = commands.add_parser("honest", help=__doc__.splitlines()[0], description=__doc__)
    add_options(parser, out="honest", seeds=5)
    parser.add_argument("--reducer", default="edit", help="what is compared with mean")
    parser.add_argument("--shards", nargs="+", choices=SHARDS, default=list(SHARDS))
    parser.set_defaults(run=run, spec="micro", rounds=ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    """Make the missing rows, then the table, honest.json and honest.png. 0 if all bars are met."""
    base, peers, out, ours = base_spec(arguments), arguments.peers, arguments.out, arguments.reducer
    code = jobs.code_digest(CODE)
    wanted = [
        jobs.Job(variant=variant, seed=seed, spec=spec_of(variant, base, seed, peers), code=code, train=train)
        for seed in arguments.seeds
        for shards in arguments.shards
        for variant in (f"{ours} {shards}", f"mean {shards}")
    ]
    rows = jobs.rows_of(wanted, out, arguments.jobs)
    honest_report.draw(rows, out / "honest.png", ours)
    table, bars = honest_report.table(rows, ours), honest_report.judge(rows, ours)
    return write_results(out / "honest", base, table, bars, rows, code=code, peers=peers)


def spec_of(variant: str, base: RunSpec, seed: int, peers: int) -> RunSpec:
    """The spec of a variant (`REDUCER SHARDS`), evaluated on more text than others."""
    reducer: Any = variant.split()[0]
    sequences = max(SEQUENCES, base.data.eval_sequences)
    return dataclasses.replace(
        base,
        run=dataclasses.replace(base.run, seed=seed, founders=peers),
        data=dataclasses.replace(base.data, eval_sequences=sequences, eval_every=EVERY),
        aggregation=dataclasses.replace(base.aggregation, rule=reducer),
    )


def train(variant: str, spec: RunSpec, report: Report) -> Outcome:
    """Train `spec`, as `spec_of` gave it, to its last round on the shards that the variant names."""
    if variant.split()[1] == "iid":
        return train_diloco(spec, report)
    with tempfile.TemporaryDirectory(prefix="homefires-text-") as folder:
        return train_diloco(dealt(spec, names_of(spec), Path(folder)), report)
