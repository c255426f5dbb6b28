"""From measured rounds to coefficients: least squares without negative numbers, on relative errors."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from dht.errors import BadInput
from peer.planning.plan.calibration import LEAST_S, MeasuredRun, expected_of
from peer.planning.plan.coefficients import PHASES, STEPS, Coefficients
from peer.planning.plan.round_cost import predict, step_seconds, stolen_s

SHARINGS = tuple(number / 20 for number in range(21))
CROWDINGS = tuple(number / 20 for number in range(11))
"""Of these those that fit steps best."""

Floats = NDArray[np.float64]


def calibrate(samples: Sequence[MeasuredRun], measured: str) -> Coefficients:
    """The coefficients of all these runs. Raises BadInput if none of them waits for its rounds."""
    waiting = [sample for sample in samples if sample.spec.round.overlap == "none" and sample.timed.phases]
    if not waiting:
        raise BadInput("no run among these waited for its rounds, so that no phase can be told apart")
    steps, sharing, crowding = _fit_crowd([sample for sample in samples if not _streams(sample)])
    flat = Coefficients(
        steps=steps, sharing=sharing, crowding=crowding, measured=measured, figures=len(samples),
        phases={phase: dict.fromkeys(terms, 0.0) for phase, terms in PHASES.items()},
    )  # fmt: skip
    found = replace(flat, phases={phase: _fit_phase(phase, waiting, flat) for phase in PHASES})
    found = replace(found, spread=round(_fit_spread(waiting, found), 4), beside=round(_fit_beside(samples, found), 4))
    return replace(found, residual=round(residual(samples, found), 4))


def _fit_spread(samples: Sequence[MeasuredRun], found: Coefficients) -> float:
    """By what share the slowest of several peers trains longer than their mean; 0 if there are none."""
    shares = [
        (sample.timed.round_s - expected_of(sample, found).total) / (sample.spec.round.steps * sample.timed.step_s) - 1
        for sample in samples if len(sample.swarm) > 1 and sample.spec.round.pace == "steps"
    ]  # fmt: skip
    return max(0.0, median(shares)) if shares else 0.0


def _streams(sample: MeasuredRun) -> bool:
    return sample.spec.round.overlap == "streaming"


def _fit_beside(samples: Sequence[MeasuredRun], found: Coefficients) -> float:
    """What an agreement takes from the steps beside it, see `Coefficients`; 0 where nobody streamed on full cores."""
    one = replace(found, beside=1.0)
    shares = []
    for sample in filter(_streams, samples):
        agreed = expected_of(sample, found)
        unit_s = stolen_s(one, sample.swarm, agreed.submit + agreed.talking)
        step_s = step_seconds(sample.shape, sample.spec, sample.swarm.machines[0], found, sample.swarm)
        if unit_s:
            shares.append((sample.timed.step_s - step_s) * sample.spec.round.steps / unit_s)
    return max(0.0, median(shares)) if shares else 0.0


def _fit_crowd(samples: Sequence[MeasuredRun]) -> tuple[dict[str, float], float, float]:
    """(terms of the inner step, sharing, crowding)."""
    pairs = itertools.product(SHARINGS, CROWDINGS)
    sharing, crowding = min(pairs, key=lambda pair: _fit_steps(samples, *pair)[1])
    return _fit_steps(samples, sharing, crowding)[0], sharing, crowding


def _fit_steps(samples: Sequence[MeasuredRun], sharing: float, crowding: float) -> tuple[dict[str, float], float]:
    """(terms, what is left over) of the inner step."""
    shared = Coefficients(steps={}, phases={}, sharing=sharing, crowding=crowding)
    rows, targets = [], []
    for sample in samples:
        inner, shape, context = sample.spec.inner, sample.shape, sample.spec.model.context
        flops = inner.sequences * inner.accumulation * context * shape.flops_per_token(context)
        crowd = shared.crowd(len(sample.swarm), sample.swarm.cores)
        rows.append([crowd, crowd * shape.blocks * inner.accumulation, crowd * flops, crowd * shape.parameters])
        targets.append(sample.timed.step_s)
    values, left = _least_squares(np.array(rows), np.array(targets))
    return dict(zip(STEPS, values, strict=True)), left


def _fit_phase(phase: str, samples: Sequence[MeasuredRun], flat: Coefficients) -> dict[str, float]:
    """The terms of one phase: what is left of it after the delays."""
    rows, targets = [], []
    several = [sample for sample in samples if len(sample.swarm) > 1]  # alone, a formula charges no exchange
    for sample in several or samples:
        known = getattr(expected_of(sample, flat), phase)
        rows.append([getattr(expected_of(sample, _unit(flat, phase, term)), phase) - known for term in PHASES[phase]])
        targets.append(max(0.0, sample.timed.phases[phase] - known))
    values, _ = _least_squares(np.array(rows), np.array(targets))
    return dict(zip(PHASES[phase], values, strict=True))


def _unit(flat: Coefficients, phase: str, term: str) -> Coefficients:
    """All zero but for one term: the formula itself says what it is multiplied with."""
    return replace(flat, phases={**flat.phases, phase: {**flat.phases[phase], term: 1.0}})


def _least_squares(rows: Floats, targets: Floats) -> tuple[list[float], float]:
    """min Σ ((A x − b)/b)² over x ≥ 0; columns are scaled, since parameters and members are far apart."""
    weights = 1.0 / np.maximum(targets, LEAST_S)
    scaled = rows * weights[:, None]
    sizes = np.maximum(np.linalg.norm(scaled, axis=0), 1e-300)
    found, left = nnls(scaled / sizes, targets * weights)
    return [float(value) for value in found / sizes], float(left)


def residual(samples: Sequence[MeasuredRun], found: Coefficients) -> float:
    """Relative deviation of measured rounds from predicted ones."""
    ratios = [
        math.log(predict(sample.shape, sample.spec, sample.swarm, found).round_s / sample.timed.round_s)
        for sample in samples
    ]  # fmt: skip
    return math.sqrt(fmean(ratio * ratio for ratio in ratios))


def dump(found: Coefficients) -> str:
    """As `peer.planning.plan.coefficients.read` reads them."""
    lines = [f"{key} = {value!r}" for key, value in dataclasses.asdict(found).items() if isinstance(value, int | float)]
    lines.append(f'measured = "{found.measured}"')
    for name, terms in {"steps": found.steps, **found.phases}.items():
        lines += ["", f"[{name}]", *(f"{term} = {value:.4g}" for term, value in terms.items())]
    return "\n".join(lines) + "\n"
