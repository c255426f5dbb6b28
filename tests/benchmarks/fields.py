"""`python -m tests.benchmarks fields`: a member that lies about one field, for every field, every value and every role.

Every field of all that peers say is set to each of its extremes by one of four peers of the memory swarm: in all
ballots, while it leads, while it follows. A case fails if a round of the others takes more than 1.5 times the usual, if
their bits differ, if they weigh or keep less, if a machine raises, or if its memory grows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.benchmarks.record import commit, machine, versions
from tests.fields.declared import fields
from tests.fields.extremes import lies_about
from tests.fields.field_swarm import SEED
from tests.fields.field_swarm import run as run_lie
from tests.fields.liar import WHEN, Lie

SAY_EVERY_S = 30.0
BATCH = 10
QUICK = 40
"""Every so manieth case."""

Row = dict[str, object]


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command line of this benchmark."""
    parser = commands.add_parser("fields", help=__doc__.partition("\n")[0], description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="fields whose name holds this, as 'Heartbeat'")
    parser.add_argument("--value", default="", help="this value alone")
    parser.add_argument("--when", nargs="+", choices=WHEN, default=list(WHEN))
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--quick", action="store_true", help=f"one case of {QUICK}")
    parser.add_argument("--json", type=Path, help="file for all cases")
    parser.set_defaults(run=run)


def cases(only: str = "", value: str = "", when: Sequence[str] = WHEN) -> list[Lie]:
    """In the order of the declarations."""
    return [
        Lie(field, (name,), role)
        for field in fields() if only in str(field)
        for name in lies_about(field.hint) if value in ("", name)
        for role in when
    ]  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Run the cases; prints each failure as it comes, then a summary. 0 if none failed."""
    lies = cases(arguments.only, arguments.value, arguments.when)[:: QUICK if arguments.quick else 1]
    began_s = said_s = time.monotonic()
    rows: list[Row] = []
    for row in rows_of(lies, arguments.seed, arguments.jobs):
        rows.append(row)
        if row["failures"]:
            print(f"FAILED {row['case']}: {'; '.join(row['failures'])}", flush=True)  # type: ignore[arg-type]
        if time.monotonic() - said_s >= SAY_EVERY_S:
            said_s = time.monotonic()
            print(f"{len(rows)} of {len(lies)}, {len(rows) / (said_s - began_s):.1f}/s", flush=True)
    print(f"\n{summary(rows)}; {time.monotonic() - began_s:.0f} s")
    if arguments.json:
        whole = {"seed": arguments.seed, "commit": commit(), "versions": versions(), "machine": machine(), "rows": rows}
        arguments.json.write_text(json.dumps(whole, indent=1) + "\n")
    return any(row["failures"] for row in rows)


def rows_of(lies: Iterable[Lie], seed: int, processes: int) -> Iterator[Row]:
    """One for each, in their order."""
    if processes == 1:
        yield from (_row(lie, seed) for lie in lies)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        yield from pool.map(partial(_row, seed=seed), lies, chunksize=BATCH)


def _row(lie: Lie, seed: int) -> Row:
    outcome = run_lie(lie, seed)
    return {
        "case": str(lie), "field": str(lie.field), "value": lie.values[0], "when": lie.when,
        "told": sum(outcome.told.values()), "rounds": outcome.rounds, "slowest_s": round(outcome.slowest_s, 1),
        "share": round(outcome.share, 4), "lost": round(outcome.lost, 4), "failures": list(outcome.failures),
    }  # fmt: skip


def summary(rows: Sequence[Row]) -> str:
    """How many cases, how many that made a difference, and the fields that failed, with how many of their cases."""
    failed = Counter(str(row["field"]) for row in rows if row["failures"])
    told = sum(bool(row["told"]) for row in rows)
    lines = (f"- {field}: {count}" for field, count in failed.items())
    table = "\n".join(("failed cases by field:", *lines, "")) if failed else ""
    return f"{table}{len(rows)} cases of {len(fields())} fields, {told} said something else; {failed.total()} failed"
