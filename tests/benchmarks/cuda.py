"""`cuda`: every bar that takes a CUDA device, by name, within nine minutes on one card.

Each job is a process of its own, ended when its budget is over. It needs this source tree and the libraries, no
installed package and no network. A bar that could not run says why, and is not counted as met.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pynvml
import torch

from peer.testing.child_process import processes_of
from tests.benchmarks.cuda_bars import MOST_S, CudaBar, CudaJob, jobs_of
from tests.benchmarks.jobs import ROOT
from tests.benchmarks.record import commit, machine, versions

RESULTS = ROOT / "results" / "cuda.json"
MET, MISSED, NOT_RUN = "MET", "MISSED", "NOT RUN"
END_S = 10.0
"""A job that was asked to end is killed after this long."""
NO_DEVICE = "no CUDA device"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of one bar."""

    name: str
    issue: int
    what: str
    limit: float
    unit: str
    figure: float | None
    verdict: str
    why: str
    job: str
    job_s: float

    def __str__(self) -> str:
        said = f"{self.verdict}: {self.why}" if self.why else self.verdict
        figure = "-" if self.figure is None else f"{self.figure:.3g}"
        return f"{self.name:<18} {figure:>8}  at most {self.limit:g} {self.unit:<20} {said}"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `cuda` and its options to the command line."""
    parser = commands.add_parser("cuda", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="the jobs of these bars, or these jobs")
    parser.add_argument("--list", action="store_true", help="say which bars there are, and run none")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="default: results/cuda.json")
    parser.add_argument("--device", default="cuda", help="another device: shows only that it works")
    parser.add_argument("--smoke", action="store_true", help="tiny models, few steps: shows only that it works")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print a line per bar, write the figures. 0 only if all bars that were picked ran and were met."""
    try:
        jobs = jobs_of(tuple(arguments.only))
    except KeyError as error:
        print(f"there is no bar and no job {error}; see --list")
        return 1
    if arguments.list:
        _list(jobs)
        return 0
    outcomes, figures = list[Outcome](), dict[str, dict[str, float]]()
    began_at = time.monotonic()
    with _environment() as environment:
        for job in jobs:
            figures[job.name], why, seconds = _done(job, arguments, environment, MOST_S - time.monotonic() + began_at)
            for bar in job.bars:
                outcomes.append(_judged(job, bar, figures[job.name].get(bar.name), why, seconds))
                print(outcomes[-1], flush=True)
    told = {
        "device": arguments.device, "smoke": arguments.smoke, **_card(), "versions": versions(), "machine": machine(),
        "commit": commit(), "source": _source_digest(), "seconds": time.monotonic() - began_at, "figures": figures,
        "bars": [dataclasses.asdict(outcome) for outcome in outcomes],
    }  # fmt: skip
    arguments.json.parent.mkdir(exist_ok=True)
    arguments.json.write_text(json.dumps(told, indent=1) + "\n")
    met = sum(outcome.verdict == MET for outcome in outcomes)
    print(f"{met} of {len(outcomes)} bars met, in {told['seconds']:.0f} s; {arguments.json}", flush=True)
    return 0 if met == len(outcomes) else 1


def _list(jobs: Sequence[CudaJob]) -> None:
    for job in jobs:
        print(f"{job.name}, {job.budget_s:g} s")
        for bar in job.bars:
            print(f"  {bar.name:<18} at most {bar.limit:g} {bar.unit}: {bar.what} (issue {bar.issue})")


# ---- one job


def _done(
    job: CudaJob, arguments: argparse.Namespace, environment: Mapping[str, str], left_s: float
) -> tuple[dict[str, float], str, float]:
    """Its figures, why there are no more of them, and its seconds."""
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        return {}, NO_DEVICE, 0.0
    if left_s < job.budget_s / 2:
        return {}, f"the others took all of {MOST_S:.0f} s", 0.0
    began_at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hf-cuda-", ignore_cleanup_errors=True) as folder:
        figures, why = _child(job, arguments, environment, Path(folder), min(job.budget_s, left_s))
    return figures, why, time.monotonic() - began_at


def _child(
    job: CudaJob, arguments: argparse.Namespace, environment: Mapping[str, str], folder: Path, budget_s: float
) -> tuple[dict[str, float], str]:
    words = [sys.executable, "-m", "tests.benchmarks.cuda_child", job.name, arguments.device, str(folder)]
    words += ["smoke"] if arguments.smoke else []
    log = folder / "log.txt"
    with log.open("w") as errors:
        child = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        said, _ = child.communicate(timeout=budget_s)
        why = "" if child.returncode == 0 else _last_words(log, child.returncode)
    except subprocess.TimeoutExpired:
        said, why = _ended(child), f"not within {budget_s:.0f} s"
    finally:
        for process in processes_of(folder):
            process.kill()
    lines = (json.loads(line) for line in said.splitlines() if line.startswith("{"))
    return {line["name"]: line["figure"] for line in lines}, why


def _ended(child: subprocess.Popen[str]) -> str:
    """What it has said, once it is no more."""
    child.terminate()
    try:
        return child.communicate(timeout=END_S)[0]
    except subprocess.TimeoutExpired:
        child.kill()
        return child.communicate(timeout=END_S)[0]


def _last_words(log: Path, code: int) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"exit code {code}: {lines[-1][:300] if lines else 'without a word'}"


def _judged(job: CudaJob, bar: CudaBar, figure: float | None, why: str, seconds: float) -> Outcome:
    """A figure that was measured before its job failed counts."""
    if figure is None:
        verdict, why = NOT_RUN, why or "its job did not say the figure"
    else:
        verdict, why = MET if figure <= bar.limit else MISSED, ""
    return Outcome(**dataclasses.asdict(bar), figure=figure, verdict=verdict, why=why, job=job.name, job_s=seconds)


# ---- where it runs


@contextmanager
def _environment() -> Iterator[dict[str, str]]:
    """Of the children: this tree first, nothing from the Hub, and a version where the package is not installed."""
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        paths = [str(ROOT), *(_told_version(Path(folder))), *filter(None, [os.environ.get("PYTHONPATH")])]
        yield {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}


def _told_version(folder: Path) -> list[str]:
    """Where `importlib.metadata` finds the version of an unpacked tree; nothing where it knows one."""
    try:
        version("homefires")
    except PackageNotFoundError:
        number = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        room = folder / f"homefires-{number}.dist-info"
        room.mkdir()
        (room / "METADATA").write_text(f"Metadata-Version: 2.1\nName: homefires\nVersion: {number}\n")
        return [str(folder)]
    return []


def _card() -> dict[str, Any]:
    """The first card that the driver has, and the driver."""
    try:
        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        return {"card": str(name), "driver": str(pynvml.nvmlSystemGetDriverVersion())}
    except pynvml.NVMLError:
        return {"card": None, "driver": None}


def _source_digest() -> str:
    """Of all Python below this tree's packages: an unpacked tree has no commit."""
    found = hashlib.blake2b(digest_size=16)
    for room in ("dht", "peer", "tests/benchmarks"):
        for path in sorted((ROOT / room).rglob("*.py")):
            found.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()
