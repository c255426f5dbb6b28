"""Jobs of a training benchmark: every (variant, seed) has a row of its own in OUT/rows.

An interrupted benchmark goes on where it was: a row that the same code made from the same spec is not made again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from peer.schema.spec import RunSpec
from tests.benchmarks.rows import Row
from tests.benchmarks.variants import Outcome, Point, Report

ROOT = Path(__file__).parents[2]

CODE = (
    "peer/training/data/*.py", "peer/training/model/*.py", "peer/consensus/aggregation/*.py",
    "peer/consensus/protocol/*.py", "peer/consensus/rounds/*.py",
    "peer/node/lifecycle/*.py", "peer/training/train/*.py",
    "peer/consensus/codec/codec.py", "peer/node/store/contributions.py", "peer/network/link/reduction.py",
    "peer/consensus/codec/run_rules.py", "peer/schema/spec*.py", "tests/decided.py", "tests/benchmarks/variants.py",
)  # fmt: skip
"""What the figures of training depend on, beside the spec and the versions of torch and numpy."""

Train = Callable[[str, RunSpec, Report], Outcome]
"""Trains a spec to its last round as the variant of this name. A function of a module: another process calls it."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One variant with one seed."""

    variant: str
    seed: int
    spec: RunSpec
    code: str
    train: Train

    @property
    def key(self) -> Row:
        """What a row must say to be this job's."""
        return {"variant": self.variant, "seed": self.seed, "spec": self.spec.digest().hex(), "code": self.code}

    @property
    def label(self) -> str:
        return f"{self.variant} seed {self.seed}"


def rows_of(jobs: list[Job], out: Path, processes: int) -> list[Row]:
    """One row per job, in order: those in `out`/rows, after making what is missing there."""
    folder = out / "rows"
    folder.mkdir(parents=True, exist_ok=True)
    make_missing(jobs, folder, processes)
    return [row for job in jobs if (row := stored(job, folder)) is not None]


def make_missing(jobs: list[Job], folder: Path, processes: int) -> None:
    """Run the jobs that have no row yet, `processes` at a time."""
    missing = [job for job in jobs if stored(job, folder) is None]
    print(f"{len(jobs)} runs, {len(jobs) - len(missing)} of them already there", flush=True)
    if not missing:
        return
    with pool_of(processes) as pool:
        working: dict[Future[Row], Job] = {pool.submit(make_row, job): job for job in missing}
        for number, done in enumerate(as_completed(working), 1):
            job, row = working[done], done.result()
            path_of(job, folder).write_text(json.dumps(row, indent=1) + "\n")
            print(f"{number} of {len(missing)}: {job.label}: {row['loss']:.4f} in {row['seconds']:.0f} s", flush=True)


def pool_of(processes: int) -> Executor:
    """New processes of one thread each, in which nothing was done before."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, spawn, initializer=torch.set_num_threads, initargs=(1,))


def make_row(job: Job) -> Row:
    """Train one variant, with a line of progress for every measured anchor."""
    began = time.monotonic()

    def report(point: Point) -> None:
        progress = f"{job.label}: round {point.round} of {job.spec.run.rounds}, held-out loss {point.loss:.4f}"
        print(f"{progress}, {time.monotonic() - began:.0f} s", flush=True)

    outcome = job.train(job.variant, job.spec, report)
    last = outcome.points[-1]
    return {
        **job.key, "peers": job.spec.run.founders, "loss": last.loss, "tokens": last.tokens,
        "seconds": round(time.monotonic() - began, 1), **dataclasses.asdict(outcome),
    }  # fmt: skip


def stored(job: Job, folder: Path) -> Row | None:
    """The job's row if it is there and comes from this spec and code."""
    path = path_of(job, folder)
    if not path.exists():
        return None
    row: Row = json.loads(path.read_text())
    return row if row.items() >= job.key.items() else None


def path_of(job: Job, folder: Path) -> Path:
    return folder / f"{job.variant.replace(' ', '-')}-{job.seed}.json"


def code_digest(patterns: Iterable[str]) -> str:
    """BLAKE2b over the files behind the figures and the versions they ran with."""
    state = hashlib.blake2b(f"{torch.__version__} {version('numpy')}".encode(), digest_size=16)
    for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
        state.update(hashlib.blake2b(path.read_bytes()).digest())
    return state.hexdigest()
