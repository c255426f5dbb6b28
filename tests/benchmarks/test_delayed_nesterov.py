"""N pushes of delayed Nesterov are one Nesterov step on their mean; what it is good for where machines are unequal."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peer.node.lifecycle.pace import steps_at
from tests.benchmarks.delayed_nesterov import DelayedNesterov
from tests.outer_step import outer_step

SIZE = 33


def draws(count: int, seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(SIZE, generator=generator, dtype=dtype) for _ in range(count)]


def dyadic(count: int, seed: int) -> list[Tensor]:
    """Multiples of 1/16 below 1: sums and halves of a few of them are exact."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-15, 16, (SIZE,), generator=generator).float() / 16 for _ in range(count)]


@pytest.mark.parametrize("period", [1, 2, 4, 8])
def test_n_pushes_are_one_nesterov_step_on_their_mean_exactly(period: int) -> None:
    """With numbers of few binary digits nothing is rounded: bits are equal, θ and momentum, three periods in a row."""
    theta, *pushed = dyadic(1 + 3 * period, seed=period)
    delayed = DelayedNesterov(theta.clone(), period=period, learning_rate=0.5, factor=0.5)
    momentum = torch.zeros(SIZE)
    for start in range(0, 3 * period, period):
        batch = pushed[start : start + period]
        for gradient in batch:
            delayed.push(gradient)
        outer_step(theta, momentum, sum(batch, torch.zeros(SIZE)) / period, 0.5, 0.5)
        assert torch.equal(delayed.theta, theta)
        assert torch.equal(delayed.momentum, momentum)


@settings(deadline=None, max_examples=50)
@given(
    period=st.integers(1, 9), rounds=st.integers(1, 4), rate=st.floats(0.01, 2.0), factor=st.floats(0.0, 0.99),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_the_identity_holds_to_rounding(period: int, rounds: int, rate: float, factor: float, seed: int) -> None:
    """Any numbers, in float64, against torch's SGD on the means."""
    start, *pushed = draws(1 + rounds * period, seed, torch.float64)
    delayed = DelayedNesterov(start.clone(), period=period, learning_rate=rate, factor=factor)
    whole = start.clone().requires_grad_()
    sgd = torch.optim.SGD([whole], lr=rate, momentum=factor, nesterov=factor > 0)
    for number, gradient in enumerate(pushed):
        delayed.push(gradient)
        if (number + 1) % period == 0:
            whole.grad = torch.stack(pushed[number + 1 - period : number + 1]).mean(0)
            sgd.step()
    assert torch.allclose(delayed.theta, whole.detach(), rtol=1e-9, atol=1e-9)


def test_between_the_pushes_of_a_period_it_is_plain_descent() -> None:
    """Momentum neither moves θ nor changes before the last."""
    theta, first, second = dyadic(3, seed=0)
    delayed = DelayedNesterov(theta.clone(), period=3, learning_rate=0.5, factor=0.5)
    delayed.push(first)
    delayed.push(second)
    assert torch.allclose(delayed.theta, theta - 0.5 * (first + second) / 3)
    assert not delayed.momentum.any()


def test_with_period_one_it_is_the_outer_step() -> None:
    """And torch's own, at every push."""
    theta, *pushed = draws(11, seed=1)
    delayed = DelayedNesterov(theta.clone(), period=1, learning_rate=0.7, factor=0.9)
    ours, momentum, theirs = theta.clone(), torch.zeros(SIZE), theta.clone().requires_grad_()
    sgd = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True)
    for gradient in pushed:
        delayed.push(gradient)
        outer_step(ours, momentum, gradient, 0.7, 0.9)
        theirs.grad = gradient
        sgd.step()
        assert torch.allclose(delayed.theta, ours, atol=1e-6)
        assert torch.allclose(delayed.theta, theirs.detach(), atol=1e-5)


# ---- the toy cluster of the paper (algorithms of asynchronous local SGD, arXiv:2401.09135) ----

STEP_S = (0.58, 0.75, 1.51, 3.33)
STEPS = 20
WORKERS = len(STEP_S)
INNER_RATE = 0.0005


class Problem:
    """A noisy quadratic of condition number 30 in 32 dimensions; its least loss is 0."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._curvature = torch.logspace(0, 1.5, 32, dtype=torch.float64)
        self.start = torch.ones(32, dtype=torch.float64)

    def loss(self, theta: Tensor) -> float:
        return float((self._curvature * theta**2).sum() / 2)

    def descend(self, theta: Tensor, steps: int) -> Tensor:
        """The pseudo-gradient of so many inner steps from `theta`."""
        local = theta.clone()
        for _ in range(steps):
            noise = torch.randn(32, generator=self._generator, dtype=torch.float64)
            local -= INNER_RATE * (self._curvature * local + 0.3 * noise)
        return theta - local


@dataclass
class Outcome:
    """Loss after each update; and when that was."""

    losses: list[float] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)

    def tail(self) -> float:
        """Mean of the last quarter."""
        last = self.losses[-len(self.losses) // 4 :]
        return sum(last) / len(last)

    def reaches(self, loss: float) -> float:
        """Seconds after which it stays below `loss` in the mean of four updates."""
        means = [sum(self.losses[i : i + 4]) / 4 for i in range(len(self.losses) - 3)]
        return next(at_s for mean, at_s in zip(means, self.at_s[3:], strict=True) if mean < loss)


def synchronous(problem: Problem, updates: int) -> Outcome:
    """All make H steps; one outer step on their mean counts as one update per worker."""
    theta, momentum, found = problem.start.clone(), torch.zeros(32, dtype=torch.float64), Outcome()
    for number in range(updates // WORKERS):
        mean = torch.stack([problem.descend(theta, STEPS) for _ in range(WORKERS)]).mean(0)
        momentum = 0.9 * momentum + mean
        theta = theta - 0.7 * (mean + 0.9 * momentum)
        found.losses += [problem.loss(theta)] * WORKERS
        found.at_s += [(number + 1) * STEPS * max(STEP_S)] * WORKERS
    return found


def asynchronous(
    problem: Problem, updates: int, push: Callable[[Tensor], None], theta: Tensor, steps: tuple[int, ...]
) -> Outcome:
    """Each worker pushes what it has when it has it, and goes on from what there is then."""
    found = Outcome()
    under_way = [(steps[w] * STEP_S[w], w, problem.descend(theta, steps[w])) for w in range(WORKERS)]
    heapq.heapify(under_way)
    while len(found.losses) < updates:
        now_s, worker, gradient = heapq.heappop(under_way)
        push(gradient)
        found.losses.append(problem.loss(theta))
        found.at_s.append(now_s)
        again = problem.descend(theta, steps[worker])
        heapq.heappush(under_way, (now_s + steps[worker] * STEP_S[worker], worker, again))
    return found


def delayed_and_paced(problem: Problem, updates: int, *, period: int = WORKERS, paced: bool = True) -> Outcome:
    """DN with DyLU as in the paper: 20, 15, 7 and 3 steps (45 where all make 80), by shares of the fastest's speed."""
    theta = problem.start.clone()
    speeds = [round(1000 / step_s) for step_s in STEP_S]
    steps = tuple(steps_at(speed, max(speeds), STEPS) if paced else STEPS for speed in speeds)
    delayed = DelayedNesterov(theta, period=period, learning_rate=0.7, factor=0.9)
    return asynchronous(problem, updates, delayed.push, theta, steps)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_delayed_and_paced_work_is_worth_as_much_as_synchronous_work_and_done_sooner(seed: int) -> None:
    """After as many inner steps in all the loss is the same, to noise; the slowest of the four holds nobody up."""
    updates = 400
    sync, ours = synchronous(Problem(seed), updates), delayed_and_paced(Problem(seed), updates * 80 // 45)
    assert ours.tail() <= 1.1 * sync.tail()
    assert ours.at_s[-1] < 0.3 * sync.at_s[-1]
    for level in (1.0, 0.1, 0.01):
        assert ours.reaches(level) < 0.3 * sync.reaches(level)


def test_momentum_at_every_push_diverges() -> None:
    """What the delay is for: with a period of 1, momentum grows with every push, and each push is stale."""
    assert delayed_and_paced(Problem(0), 400).tail() < 0.01
    assert delayed_and_paced(Problem(0), 400, period=1, paced=False).tail() > 1e3
