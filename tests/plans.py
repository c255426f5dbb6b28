"""Schedules of faults by plan and number, on as many processes as asked for.

`test_chaos.py` and `python -m tests.benchmarks chaos` run them; `run_one("splits", 17)` runs one again.
"""

from __future__ import annotations

import gc
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import starmap
from multiprocessing import get_context
from traceback import extract_tb

from tests import chaos
from tests.fields.trust import schedules as liars
from tests.model_swarm import RESTART_S, run_schedule

KINDS = ("random", "targeted", "splits")
PLANS = ("matrix", *KINDS, "clusters", "liars")
"""The chaos matrix, the three kinds of `run_schedule`, and these in turn where some members are several homes, or where
one of four lies."""
IN_TURN = ("clusters", "liars")
BATCH = 20
"""Schedules that a process does at a time."""
COUNTED = ("commits", "later ballot", "proposed again", "restarted", "repairs", "void parts", "resynced")

Job = tuple[str, int]
"""A plan and a number."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one schedule."""

    plan: str
    number: int
    about: str
    """The line of the table it is counted in."""
    counts: Counter[str]
    failure: str = ""

    def __str__(self) -> str:
        return f"{self.plan} {self.number} ({self.about}): {self.failure or 'passed'}"


def run_one(plan: str, number: int) -> Result:
    """Run a schedule. Whatever goes wrong in it, also an error of the code, is its failure."""
    about = _about(plan, number)
    try:
        counts = chaos.run(chaos.case(number)) if plan == "matrix" else _run_schedule(plan, number)
    except Exception as error:
        at = extract_tb(error.__traceback__)[-1]
        failure = f"{error!r:.400} ({at.filename.rpartition('/')[2]}:{at.lineno})"
        return Result(plan=plan, number=number, about=about, counts=Counter(), failure=failure)
    return Result(plan=plan, number=number, about=about, counts=counts)


def run_all(jobs: Iterable[Job], processes: int | None = None) -> Iterator[Result]:
    """Run them all, on all cores by default; results come in the order of `jobs`."""
    processes = processes or len(os.sched_getaffinity(0))
    # Nothing is inherited: a test run has loaded torch and has threads.
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_collect_seldom) as pool:
        yield from pool.map(_run_job, jobs, chunksize=BATCH)


def summary(results: Iterable[Result]) -> str:
    """One line: how many schedules, what happened in them, how many failed."""
    schedules, failed, counts = 0, 0, Counter[str]()
    for result in results:
        schedules, failed, counts = schedules + 1, failed + bool(result.failure), counts + result.counts
    return f"{schedules} schedules, {', '.join(f'{counts[what]} {what}' for what in COUNTED)}; {failed} failed"


def table(results: Iterable[Result]) -> str:
    """One row for each fault and phase, or kind of schedule."""
    rows: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        rows[result.about].append(result)
    head = f"| | schedules | {' | '.join(COUNTED)} | failed |\n|{' --- |' * (len(COUNTED) + 3)}\n"
    return head + "\n".join(starmap(_row, sorted(rows.items())))


def _row(about: str, results: list[Result]) -> str:
    counts = sum((result.counts for result in results), Counter[str]())
    failed = sum(bool(result.failure) for result in results)
    return f"| {about} | {len(results)} | {' | '.join(str(counts[what]) for what in COUNTED)} | {failed} |"


def _collect_seldom() -> None:
    """A schedule makes many objects and few cycles: to look for those as often as usual takes a tenth of the time."""
    gc.set_threshold(100_000, 20, 20)


def _run_job(job: Job) -> Result:
    return run_one(*job)


def _about(plan: str, number: int) -> str:
    if plan == "matrix":
        case = chaos.case(number)
        return f"{case.phase} {case.kind}"
    named = f"{plan}, {_kind(number)}" if plan in IN_TURN else plan
    return f"{named}, {'restarts' if _restart_s(plan, number) else 'no restarts'}"


def _restart_s(plan: str, number: int) -> float:
    """In every other schedule the organiser restarts rounds; of those that part the network on purpose in all."""
    kind = _kind(number) if plan in IN_TURN else plan
    return RESTART_S if kind == "splits" or number % 2 else 0.0


def _kind(number: int) -> str:
    return KINDS[number % len(KINDS)]


def _run_schedule(plan: str, number: int) -> Counter[str]:
    kind, restart_s = _kind(number) if plan in IN_TURN else plan, _restart_s(plan, number)
    if plan == "liars":
        return chaos.tally(liars.run(number, kind, restart_s))
    return chaos.tally(run_schedule(number, kind, restart_s=restart_s, clusters=plan == "clusters"))
