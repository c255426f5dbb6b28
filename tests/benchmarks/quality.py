"""`quality`: what training apart costs and what the codecs cost, in held-out loss, over several seeds.

Every (variant, seed) is a job with a row of its own in OUT/rows, so that an interrupted benchmark goes on
where it was: a row that the same code made from the same spec is not made again.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import multiprocessing
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from peer.spec import RunSpec
from tests.benchmarks import quality_report
from tests.benchmarks.variants import CODECS, SINGLE, VARIANTS, Point, run_variant, spec_of
from tui.choose import choose_spec

ROOT = Path(__file__).parents[2]

CODE = (
    "peer/data/*.py", "peer/model/*.py", "peer/rounds/*.py", "peer/train/*.py", "peer/averaging/codec.py",
    "peer/averaging/contribution.py", "peer/spec.py", "tests/decided.py", "tests/benchmarks/variants.py",
)  # fmt: skip
"""What the figures depend on, beside the spec and the versions of torch and numpy."""

URGENT = ("int4", "float32", "one-peer", "ddp")
"""Variants behind the bars: they come first, seed by seed."""

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One variant with one seed."""

    variant: str
    seed: int
    spec: RunSpec
    code: str

    @property
    def key(self) -> Row:
        """What a row must say to be this job's."""
        return {"variant": self.variant, "seed": self.seed, "spec": self.spec.digest().hex(), "code": self.code}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `quality` and its options to the command line."""
    parser = commands.add_parser("quality", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--spec", default="tiny", help="a shipped spec or a TOML file")
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="TABLE.KEY=VALUE")
    parser.add_argument("--rounds", type=int, help="rounds; all of the spec's by default")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=list(CODECS))
    rivals = [variant for variant in VARIANTS if variant not in CODECS]
    parser.add_argument("--rivals", nargs="*", choices=rivals, default=rivals)
    parser.add_argument("--out", type=Path, default=Path("quality"), help="folder for rows and results")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make the missing rows, then the table, quality.json and quality.png. 0 if all bars are met."""
    fixed = {} if arguments.rounds is None else {"run.rounds": arguments.rounds}
    base = choose_spec(arguments.spec, sets=arguments.sets, fixed=fixed)
    if base.run.rounds == 0:
        raise SystemExit(f"{arguments.spec} has no last round; say how many with --rounds")
    chosen = [variant for variant in VARIANTS if variant in (*arguments.codecs, *arguments.rivals)]
    code = code_digest()
    jobs = [
        Job(variant=variant, seed=seed, spec=spec_of(variant, base, seed, arguments.peers), code=code)
        for variant, seed in in_order(chosen, arguments.seeds)
    ]
    rows_folder: Path = arguments.out / "rows"
    rows_folder.mkdir(parents=True, exist_ok=True)
    make_missing(jobs, rows_folder, arguments.jobs)
    rows = [row for job in jobs if (row := stored(job, rows_folder)) is not None]
    return write_results(rows, base, arguments.peers, arguments.out)


def in_order(variants: list[str], seeds: list[int]) -> Iterator[tuple[str, int]]:
    """What the bars need first, seed by seed, so that a glance at an unfinished benchmark tells most."""
    for urgent in (True, False):
        for seed in seeds:
            group = sorted(variants, key=lambda name: URGENT.index(name) if name in URGENT else len(URGENT))
            yield from ((variant, seed) for variant in group if (variant in URGENT) == urgent)


# ---- jobs


def make_missing(jobs: list[Job], folder: Path, processes: int) -> None:
    """Run the jobs that have no row yet, `processes` at a time."""
    missing = [job for job in jobs if stored(job, folder) is None]
    print(f"{len(jobs)} runs, {len(jobs) - len(missing)} of them already there", flush=True)
    if not missing:
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawn, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        working: dict[Future[Row], Job] = {pool.submit(make_row, job): job for job in missing}
        for number, done in enumerate(as_completed(working), 1):
            job, row = working[done], done.result()
            path_of(job, folder).write_text(json.dumps(row, indent=1) + "\n")
            print(f"{number} of {len(missing)}: {label(job)}: {row['loss']:.4f} in {row['seconds']:.0f} s", flush=True)


def make_row(job: Job) -> Row:
    """Train one variant, with a line of progress for every measured anchor."""
    began = time.monotonic()

    def report(point: Point) -> None:
        progress = f"{label(job)}: round {point.round} of {job.spec.run.rounds}, held-out loss {point.loss:.4f}"
        print(f"{progress}, {time.monotonic() - began:.0f} s", flush=True)

    outcome = run_variant(job.variant, job.spec, report)
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
    return folder / f"{job.variant}-{job.seed}.json"


def label(job: Job) -> str:
    return f"{job.variant} seed {job.seed}"


# ---- results


def write_results(rows: list[Row], base: RunSpec, peers: int, out: Path) -> int:
    """Print the table and the bars; write them to `out`. 0 if all bars are met."""
    bars = quality_report.judge(rows)
    text = quality_report.table(rows) + "\n" + "".join(f"- {bar}\n" for bar in bars)
    print("\n" + text, flush=True)
    (out / "quality.md").write_text(text)
    result = {
        "spec": {"name": base.run.name, "digest": base.digest().hex(), **dataclasses.asdict(base)},
        "peers": peers, "single": list(SINGLE), "commit": commit(), "code": code_digest(), "versions": versions(),
        "machine": machine(), "bars": [dataclasses.asdict(bar) for bar in bars], "rows": rows,
    }  # fmt: skip
    (out / "quality.json").write_text(json.dumps(result, indent=1) + "\n")
    if not quality_report.draw(rows, out / "quality.png"):
        print("no picture: matplotlib is missing; pip install -e '.[bench]'", flush=True)
    return 0 if all(bar.met for bar in bars) else 1


def code_digest() -> str:
    """BLAKE2b over the files behind the figures and the versions they ran with."""
    state = hashlib.blake2b(f"{torch.__version__} {version('numpy')}".encode(), digest_size=16)
    for path in sorted(path for pattern in CODE for path in ROOT.glob(pattern)):
        state.update(hashlib.blake2b(path.read_bytes()).digest())
    return state.hexdigest()


def commit() -> str:
    """The commit of the working tree, `-dirty` if files differ from it; empty outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    return told.stdout.strip()


def versions() -> dict[str, str]:
    """Versions of what computes."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("torch", "numpy", "transformers")}


def machine() -> dict[str, str | int]:
    """The processor, by kind and not by name."""
    names = [platform.processor() or platform.machine()]
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"cpu": names[-1], "cores": os.cpu_count() or 1, "system": platform.system()}
