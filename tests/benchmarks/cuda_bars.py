"""The CUDA bars, and the jobs that measure their figures. A later bar is one more entry here.

A job is a process of its own with a budget of time: what hangs in one, or loses the device, costs no other. It says
figures by name as it goes; a bar looks at one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from tests.benchmarks import cuda_alone, cuda_swarms

Say = Callable[[str, float], None]
"""Hears a figure and its name."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where a job is done."""

    device: torch.device
    folder: Path
    """Empty, and removed afterwards."""
    smoke: bool
    """Tiny models and no steps more than it takes: shows only that the code works."""


@dataclass(frozen=True, kw_only=True)
class CudaBar:
    """The most that a figure may be."""

    name: str
    issue: int
    what: str
    limit: float
    unit: str


@dataclass(frozen=True, kw_only=True)
class CudaJob:
    """Measures the figures of some bars, each under the bar's name; other figures are for information."""

    name: str
    budget_s: float
    do: Callable[[Setting, Say], None]
    bars: tuple[CudaBar, ...]


def _bar(name: str, what: str, limit: float, unit: str = "%", issue: int = 41) -> CudaBar:
    return CudaBar(name=name, issue=issue, what=what, limit=limit, unit=unit)


def _share(model: str, limit: float) -> CudaBar:
    return _bar(f"share {model}", "submit and apply, of 100 steps", limit)


JOBS = (
    CudaJob(
        name="demo", budget_s=40, do=cuda_swarms.demo,
        bars=(_bar("demo", "exit code of `homefires demo` on this device", 0, "", issue=53),),
    ),
    CudaJob(
        name="bits", budget_s=45, do=cuda_alone.same_bits,
        bars=(_bar("bits", "operations of a round whose bits are not the golden ones, over 2,000 layers", 0, ""),),
    ),
    CudaJob(name="134m", budget_s=30, do=partial(cuda_alone.round_cost, "134 M"), bars=(_share("134 M", 2),)),
    CudaJob(name="401m", budget_s=40, do=partial(cuda_alone.round_cost, "401 M"), bars=(_share("401 M", 2),)),
    CudaJob(
        name="mixed", budget_s=45, do=cuda_swarms.beside_a_processor,
        bars=(_bar("mixed bits", "rounds that differ between this device and a processor, in one swarm", 0, ""),),
    ),
    CudaJob(
        name="two", budget_s=80, do=cuda_swarms.two_on_one_device,
        bars=(
            _bar("two bits", "rounds that differ between two peers on one device, 134 M, H = 60", 0, ""),
            _bar("two exposed", "of their rounds, time without inner steps", 2),
        ),
    ),
    CudaJob(
        name="1b-rounds", budget_s=105, do=cuda_swarms.rounds_of_a_billion,
        bars=(_bar("1.1 B exposed", "of rounds of 40 steps that a peer of 1.1 B commits, time without steps", 5),),
    ),
    CudaJob(
        name="1b", budget_s=155, do=cuda_alone.life_of_a_billion,
        bars=(
            _share("1.1 B", 3),
            _bar("memory", "of main memory that cannot be reclaimed, at 1.1 B", 8, "bytes per parameter"),
            *(
                _bar(f"leave {phase}", f"until a peer of 1.1 B has left, {where}", 5, "s")
                for phase, where in cuda_alone.PHASES.items()
            ),
            _bar("checkpoint", "of training, what checkpoints hold up", 1),
            _bar("snapshot", "of training, what snapshots hold up", 1),
        ),
    ),
)  # fmt: skip
"""What a person does first comes first, and then the cheap ones; all of them within nine minutes."""
MOST_S = 540.0


def jobs_of(names: Mapping[str, object] | tuple[str, ...] | list[str]) -> tuple[CudaJob, ...]:
    """Those that measure any of these bars, or that are called so; all without a name. KeyError for another name."""
    if not names:
        return JOBS
    known = {name for job in JOBS for name in (job.name, *(bar.name for bar in job.bars))}
    for name in names:
        if name not in known:
            raise KeyError(name)
    return tuple(job for job in JOBS if job.name in names or any(bar.name in names for bar in job.bars))
