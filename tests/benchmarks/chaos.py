"""`python -m tests.benchmarks chaos`: more schedules of faults on the memory swarm than the test suite has time for.

Of every hundred schedules 70 are of the chaos matrix (each fault in each phase of a round, with more seeds),
10 random, 10 by the targeted adversary, each with restarts on and off in turn and with latecomers, and 10 in
which the network falls apart for long. A schedule is known by its plan and number, whatever else is run: a
failure is replayed by `--replay PLAN NUMBER`. With `--clusters` some members of every schedule are several homes, with
`--liars` one of four peers lies beside the faults.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

from tests.plans import PLANS, Job, Result, run_all, run_one, summary, table

SHARES = {"matrix": 70, "random": 10, "targeted": 10, "splits": 10}
QUICK = 500
SAY_EVERY_S = 30.0


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command line of this benchmark."""
    parser = commands.add_parser("chaos", help=__doc__.partition("\n")[0], description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="begin with this one; to go on where a run was ended")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} schedules")
    parser.add_argument("--clusters", action="store_true", help="schedules in which some members are several homes")
    parser.add_argument("--liars", action="store_true", help="schedules in which one of four peers lies")
    parser.add_argument("--json", type=Path, help="file for the counts and the failures")
    parser.add_argument("--replay", nargs=2, metavar=("PLAN", "NUMBER"), help=f"one schedule of {', '.join(PLANS)}")
    parser.set_defaults(run=run)


def jobs(first: int, schedules: int) -> Iterator[Job]:
    """Schedules `first`, `first` + 1, … of the mixture."""
    for number in range(first, first + schedules):
        hundred, place = divmod(number, 100)
        for plan, share in SHARES.items():
            if place < share:
                yield plan, hundred * share + place
                break
            place -= share


def run(arguments: argparse.Namespace) -> int:
    """Run them; prints each failure as it comes, then a table. 0 if none failed."""
    if arguments.replay:
        plan, number = arguments.replay
        result = run_one(plan, int(number))
        print(f"{result}\n{dict(result.counts)}")
        return bool(result.failure)
    count = QUICK if arguments.quick else arguments.schedules
    began_s = said_s = time.monotonic()
    results: list[Result] = []
    chosen = jobs(arguments.first, count)
    if arguments.clusters or arguments.liars:
        plan = "clusters" if arguments.clusters else "liars"
        chosen = ((plan, number) for number in range(arguments.first, arguments.first + count))
    for result in run_all(chosen, arguments.jobs):
        results.append(result)
        if result.failure:
            print(f"FAILED {result}", flush=True)
        if time.monotonic() - said_s >= SAY_EVERY_S:
            said_s = time.monotonic()
            print(f"{len(results)} of {count}, {len(results) / (said_s - began_s):.0f}/s", flush=True)
    took_s = time.monotonic() - began_s
    print(f"{table(results)}\n\n{summary(results)}; {took_s:.0f} s, {count / took_s:.0f}/s")
    if arguments.json:
        arguments.json.write_text(json.dumps(_as_json(results, arguments.first, took_s), indent=1) + "\n")
    return any(result.failure for result in results)


def _as_json(results: list[Result], first: int, took_s: float) -> dict[str, object]:
    by_row: dict[str, dict[str, int]] = {}
    for result in results:
        row = by_row.setdefault(result.about, {"schedules": 0, "failed": 0})
        for what, count in {"schedules": 1, "failed": bool(result.failure), **result.counts}.items():
            row[what] = row.get(what, 0) + count
    failures = [[result.plan, result.number, result.failure] for result in results if result.failure]
    return {"first": first, "seconds": round(took_s), "rows": by_row, "failures": failures}
