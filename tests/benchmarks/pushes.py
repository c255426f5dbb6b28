"""Training where nobody waits for anybody: each push moves the model at once (arXiv:2401.09135), to compare with.

A quadratic stands for the loss: worker w would like parameters c_w, the curvature differs between directions, and
gradients are noisy. It shows what depends on time and order alone; it says nothing about language models.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEAST_STEPS = 5
"""Of the smallest part with DyLU."""


@dataclass
class DelayedNesterov:
    """Momentum is renewed once in `period` pushes, from the mean of their pseudo-gradients.

    As `delayed_nesterov`, for arrays of numpy.
    """

    theta_P: Floats
    period: int
    learning_rate: float
    factor: float
    momentum_P: Floats = field(init=False)
    _buffer_P: Floats = field(init=False)
    _pushes: int = 0

    def __post_init__(self) -> None:
        self.momentum_P, self._buffer_P = np.zeros_like(self.theta_P), np.zeros_like(self.theta_P)

    def push(self, gradient_P: Floats) -> None:
        """One pseudo-gradient (before − after)."""
        self._pushes += 1
        self._buffer_P = self._buffer_P + gradient_P
        move_P = gradient_P / self.period
        if self._pushes % self.period == 0:
            self.momentum_P = self.factor * self.momentum_P + self._buffer_P / self.period
            self._buffer_P = np.zeros_like(self.theta_P)
            move_P = move_P + self.factor * self.momentum_P
        self.theta_P = self.theta_P - self.learning_rate * move_P


@dataclass(frozen=True, kw_only=True)
class Problem:
    """f(x) = ½ Σ aⱼ (xⱼ − x*ⱼ)², of which worker w sees one that is `apart` away, with noise."""

    workers: int
    curvature_P: Floats
    apart: float = 0.3
    noise: float = 0.05
    inner_rate: float = 0.05
    seed: int = 0

    def loss(self, theta_P: Floats) -> float:
        """Of all workers together, less the least there is."""
        return float(0.5 * (self.curvature_P * theta_P**2).sum())

    def start(self) -> Floats:
        """Where all begin."""
        return np.ones_like(self.curvature_P)

    def optima(self) -> Floats:
        """Shape (workers, P): where each would like to be; their mean is zero."""
        found = np.random.default_rng(self.seed).normal(0.0, self.apart, (self.workers, len(self.curvature_P)))
        return np.asarray(found - found.mean(axis=0))

    def trained(self, theta_P: Floats, optimum_P: Floats, steps: int, noise: np.random.Generator) -> Floats:
        """After inner steps of plain gradient descent."""
        for _ in range(steps):
            gradient_P = self.curvature_P * (theta_P - optimum_P) + noise.normal(0.0, self.noise, theta_P.shape)
            theta_P = theta_P - self.inner_rate * gradient_P
        return theta_P


Curve = list[tuple[float, float]]
"""(virtual seconds, loss), after each outer step or push."""


def in_rounds(
    problem: Problem, step_s: Sequence[float], steps: int, until_s: float, outer: tuple[float, float]
) -> Curve:
    """DiLoCo: all make H steps, wait for the slowest, and take one Nesterov step on the mean."""
    state = DelayedNesterov(problem.start(), 1, *outer)
    noise, optima = np.random.default_rng(problem.seed + 1), problem.optima()
    curve: Curve = [(0.0, problem.loss(state.theta_P))]
    while curve[-1][0] < until_s:
        moved = [state.theta_P - problem.trained(state.theta_P, optimum, steps, noise) for optimum in optima]
        state.push(np.asarray(np.mean(moved, axis=0)))
        curve.append((curve[-1][0] + max(step_s) * steps, problem.loss(state.theta_P)))
    return curve


def one_by_one(
    problem: Problem, step_s: Sequence[float], steps: int, until_s: float, outer: tuple[float, float],
    *, period: int = 0, by_speed: bool = True,
) -> Curve:  # fmt: skip
    """Each worker pushes when it is done and goes on from what is there then.

    `period` of delayed Nesterov: as many pushes as there are workers unless it is said. `by_speed` (DyLU): worker w
    makes ⌊v_w / max v · H⌋ steps, so that all push about equally often.
    """
    state = DelayedNesterov(problem.start(), period or problem.workers, *outer)
    noise, optima = np.random.default_rng(problem.seed + 1), problem.optima()
    parts = [max(LEAST_STEPS, int(min(step_s) / each * steps)) if by_speed else steps for each in step_s]
    queue = [(parts[worker] * step_s[worker], worker, state.theta_P) for worker in range(problem.workers)]
    heap = [(at, worker) for at, worker, _ in queue]
    began = {worker: theta_P for _, worker, theta_P in queue}
    heapq.heapify(heap)
    curve: Curve = [(0.0, problem.loss(state.theta_P))]
    while heap[0][0] < until_s:
        at, worker = heapq.heappop(heap)
        state.push(began[worker] - problem.trained(began[worker], optima[worker], parts[worker], noise))
        began[worker] = state.theta_P
        heapq.heappush(heap, (at + parts[worker] * step_s[worker], worker))
        curve.append((at, problem.loss(state.theta_P)))
    return curve


def time_to(curve: Curve, loss: float) -> float:
    """When a curve is at a loss for the first time; infinity if it never is."""
    return next((at for at, value in curve if value <= loss), float("inf"))
