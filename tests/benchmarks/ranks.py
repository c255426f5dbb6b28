"""`ranks`: how well a step and its memory are foretold where several devices share a model.

Real ranks with FSDP2 over gloo, each a process of one thread on this machine. Some models are measured in every way to
fit a few numbers of `RanksProfile`; the steps of the others are forecast from those, and from what one of their steps
takes in as many processes that share nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy.optimize import nnls

from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.sharding_cost import RanksProfile, ShardedCost, ShardedWork, sharded_cost, sharded_work
from peer.planning.plan.sharding_strategy import strategies_of
from peer.schema.model_layers import FLOAT32_BYTES
from tests.benchmarks.ranks_crew import RanksCase, RanksTimes, measure
from tests.benchmarks.record import commit, machine, say, versions
from tests.benchmarks.rows import Bar, markdown

MOST_ERROR = 0.10
SHOWS = 1.05
"""Times what parameters, gradients and moments take."""
WITHIN_S = 300.0
"""For all that ranks of one number measure."""
FREE = RanksProfile(inside_bytes_per_s=math.inf, between_bytes_per_s=math.inf, gathered_twice=True)
TERMS = {
    "byte_s": replace(FREE, inside_bytes_per_s=1.0, between_bytes_per_s=1.0),
    "collective_s": replace(FREE, collective_s=1.0),
    "hop_s": replace(FREE, hop_s=1.0),
}
"""What is fitted, each as the profile in which nothing else takes time. One machine has one line: bytes within a group
and between groups take as long here."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is trained."""

    width: int
    blocks: int
    sequences: int
    accumulation: int
    context: int
    fits: bool
    """Whether the profile is fitted to it; else it is forecast."""

    def cases(self, ranks: int) -> list[RanksCase]:
        """All ways, and first what computing takes without any. Main memory once: a processor has no other."""
        values = {key: value for key, value in vars(self).items() if key != "fits"} | {"ranks": ranks}
        aside = strategies_of(ranks, offloads=True)[-1:] if ranks == 2 else ()
        ways = [*strategies_of(ranks), *aside]
        return [RanksCase(**values, alone=True)] + [
            RanksCase(**values, kind=way.kind.value, group=way.group, offloads=way.offloads) for way in ways
        ]


MODELS = (
    Model(width=128, blocks=2, sequences=4, accumulation=1, context=64, fits=True),
    Model(width=256, blocks=3, sequences=1, accumulation=1, context=64, fits=True),
    Model(width=192, blocks=2, sequences=2, accumulation=2, context=32, fits=True),
    Model(width=160, blocks=4, sequences=2, accumulation=1, context=64, fits=False),
    Model(width=224, blocks=3, sequences=2, accumulation=1, context=48, fits=False),
    Model(width=320, blocks=2, sequences=1, accumulation=1, context=64, fits=False),
    Model(width=160, blocks=2, sequences=2, accumulation=2, context=48, fits=False),
)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Of one case, beside what was measured."""

    name: str
    way: str
    ranks: int
    fitted: bool
    measured_s: float
    """The shortest: what else ran on these cores made the others longer."""
    median_s: float
    predicted_s: float
    measured_bytes: float
    predicted_bytes: float

    @property
    def step_error(self) -> float:
        return abs(self.predicted_s / self.measured_s - 1)

    @property
    def memory_error(self) -> float:
        return abs(self.predicted_bytes / self.measured_bytes - 1)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `ranks` and its options to the command line."""
    parser = commands.add_parser("ranks", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("ranks.json"), metavar="FILE", help="where figures go")
    parser.add_argument("--repeats", type=int, default=10, help="turns of two ranks, of two steps each (default 10)")
    parser.add_argument("--quick", action="store_true", help="two models on two ranks: shows only that it works")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, fit, forecast, print. 0 if all bars are met, or with `--quick`."""
    quick = arguments.quick
    models = [MODELS[0], MODELS[3]] if quick else list(MODELS)
    forecasts: list[Forecast] = []
    profiles: dict[int, RanksProfile] = {}
    began_load = os.getloadavg()[0]
    for ranks in (2,) if quick else (2, 4):
        cases = [[case for case in model.cases(ranks)] for model in models]
        turns = 1 if quick else max(1, arguments.repeats * 2 // ranks)
        told = measure([case for each in cases for case in each], turns, WITHIN_S)
        rows = {each.name: each for each in told}
        fitting = [case for model, each in zip(models, cases, strict=True) if model.fits for case in each]
        profiles[ranks] = fit(fitting, rows)
        for model, each in zip(models, cases, strict=True):
            forecasts += [forecast(case, each[0], rows, profiles[ranks], fitted=model.fits) for case in each[1:]]
        say(f"{ranks} ranks: {describe(profiles[ranks])}")
    bars = judge(forecasts)
    text = table(forecasts)
    print("\n" + text + "\n" + "".join(f"- {bar}\n" for bar in bars), flush=True)
    result = {
        "commit": commit(), "versions": versions(), "machine": machine(), "load": [began_load, os.getloadavg()[0]],
        "profiles": {ranks: describe(profile) for ranks, profile in profiles.items()},
        "bars": [dataclasses.asdict(bar) for bar in bars], "rows": [dataclasses.asdict(each) for each in forecasts],
    }  # fmt: skip
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if quick or all(bar.met for bar in bars) else 1


# ---- fitting ----


def fit(cases: Sequence[RanksCase], rows: dict[str, RanksTimes]) -> RanksProfile:
    """Least squares on relative errors, no number negative, of what steps take beyond those of ranks that share
    nothing."""
    alone = {case.model: rows[case.name] for case in cases if case.alone}
    shared = [case for case in cases if not case.alone]
    columns = np.array([[cost_of(case, unit).step_s for unit in TERMS.values()] for case in shared])
    beyond_s = np.array([min(rows[case.name].steps_s) - min(alone[case.model].steps_s) for case in shared])
    weights = np.array([1 / min(rows[case.name].steps_s) for case in shared])
    sizes = np.linalg.norm(columns * weights[:, None], axis=0)
    found, _ = nnls(columns * weights[:, None] / sizes, np.maximum(0.0, beyond_s) * weights)
    byte_s, collective_s, hop_s = (float(value) for value in found / sizes)
    rate = 1 / byte_s if byte_s else math.inf
    ratios = [_activations(case, rows[case.name]) for case in cases if case.alone]
    ratios = [ratio for ratio in ratios if ratio]
    return replace(
        FREE, inside_bytes_per_s=rate, between_bytes_per_s=rate, collective_s=collective_s, hop_s=hop_s,
        activations=fmean(ratios),
    )  # fmt: skip


def _activations(case: RanksCase, told: RanksTimes) -> float:
    """What activations of a rank that shares nothing take, of the estimate; 0 where the optimizer's step takes more, so
    that they do not show."""
    work = work_of(case)
    begun = work.state_bytes - (0 if work.micro_batches > 1 else FLOAT32_BYTES * work.parameters)
    if told.peak_bytes < SHOWS * work.state_bytes:
        return 0.0
    left = told.peak_bytes - begun - work.logit_bytes[0]
    return left / (case.sequences * work.activation_bytes)


def work_of(case: RanksCase, step_s: float = 0.0) -> ShardedWork:
    """`step_s` of a rank that shares nothing."""
    each_s = step_s / case.accumulation / case.sequences
    return sharded_work(shape_of(case.spec), case.spec, [case.sequences] * case.ranks, [each_s] * case.ranks)


def cost_of(case: RanksCase, given: RanksProfile, step_s: float = 0.0) -> ShardedCost:
    return sharded_cost(work_of(case, step_s), case.strategy, given)


def forecast(
    case: RanksCase, alone: RanksCase, rows: dict[str, RanksTimes], given: RanksProfile, *, fitted: bool
) -> Forecast:  # fmt: skip
    """A processor has no memory beside the main one: what `offloads` puts aside is as it would be without it."""
    cost, told = cost_of(case, given, min(rows[alone.name].steps_s)), rows[case.name]
    held = cost_of(replace(case, offloads=False), given)
    return Forecast(
        name=case.name, way=str(case.strategy), ranks=case.ranks, fitted=fitted, measured_s=min(told.steps_s),
        median_s=float(np.median(told.steps_s)), predicted_s=cost.step_s, measured_bytes=told.peak_bytes,
        predicted_bytes=max(held.device_bytes),
    )  # fmt: skip


def describe(given: RanksProfile) -> str:
    return (
        f"{given.inside_bytes_per_s / 1e6:.0f} MB/s, {1000 * given.collective_s:.2f} ms a collective, "
        f"{1000 * given.hop_s:.2f} ms a hop, activations {given.activations:.2f} times"
    )


# ---- judging ----


def judge(forecasts: Sequence[Forecast]) -> list[Bar]:
    """Of those that fitted nothing."""
    held_out = [each for each in forecasts if not each.fitted]
    bars = []
    for what, errors in (
        ("seconds of a step", [each.step_error for each in held_out]),
        ("bytes of a rank", [each.memory_error for each in held_out]),
    ):
        figures = f"{fmean(errors):.1%}, worst {max(errors):.1%}"
        bars.append(Bar(name=f"{what} within 10 % in the mean", met=fmean(errors) <= MOST_ERROR, figures=figures))
    return bars


def table(forecasts: Sequence[Forecast]) -> str:
    """Mean errors by ranks and way, of what fitted nothing."""
    lines = [("ranks, way", "cases", "step: mean error", "worst", "memory: mean error", "worst")]
    held_out = [each for each in forecasts if not each.fitted]
    for group in dict.fromkeys((each.ranks, each.way) for each in held_out):
        rows = [each for each in held_out if (each.ranks, each.way) == group]
        steps, bytes_ = [each.step_error for each in rows], [each.memory_error for each in rows]
        lines.append((
            f"{group[0]}, {group[1]}", str(len(rows)), f"{fmean(steps):.1%}", f"{max(steps):.1%}",
            f"{fmean(bytes_):.1%}", f"{max(bytes_):.1%}",
        ))  # fmt: skip
    return markdown(lines)
