"""Delayed Nesterov without rounds, on a quadratic: the identity, and what waiting for nobody gains in time."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.pushes import DelayedNesterov, Problem, in_rounds, one_by_one, time_to

STEP_S = (0.58, 0.75, 1.51, 3.33)
"""Seconds per step of the four workers of the paper's own toy (arXiv:2401.09135)."""
STEPS = 20
OUTER = (0.7, 0.5)
PROBLEM = Problem(workers=4, curvature_P=np.linspace(0.05, 1.0, 16), apart=0.1)


def test_n_pushes_are_one_nesterov_step_on_their_mean() -> None:
    """v ← μ v + ḡ, θ ← θ − lr (ḡ + μ v)."""
    gradients = np.random.default_rng(1).normal(size=(3, 4, 5))
    state = DelayedNesterov(np.ones(5), 4, 0.7, 0.9)
    theta_P, momentum_P = np.ones(5), np.zeros(5)
    for pushes in gradients:
        for gradient_P in pushes:
            state.push(gradient_P)
        mean_P = pushes.mean(axis=0)
        momentum_P = 0.9 * momentum_P + mean_P
        theta_P = theta_P - 0.7 * (mean_P + 0.9 * momentum_P)
        assert state.theta_P == pytest.approx(theta_P)
        assert state.momentum_P == pytest.approx(momentum_P)


def test_it_is_the_outer_step_that_peers_take_where_they_wait() -> None:
    """With one push per step it is plain Nesterov, as in rounds."""
    state, gradient_P = DelayedNesterov(np.zeros(1), 1, 1.0, 0.5), np.ones(1)
    state.push(gradient_P)
    assert state.theta_P == pytest.approx(-1.5)
    state.push(gradient_P)
    assert state.theta_P == pytest.approx(-1.5 - (1.0 + 0.5 * 1.5))


def test_by_speed_and_delayed_is_faster_in_time_than_waiting_for_the_slowest() -> None:
    """The paper's claim for unequal workers, to a two-hundredth of the loss of the beginning."""
    rounds = in_rounds(PROBLEM, STEP_S, STEPS, 1500.0, OUTER)
    pushes = one_by_one(PROBLEM, STEP_S, STEPS, 1500.0, OUTER)
    loss = rounds[0][1] / 200
    assert time_to(pushes, loss) < 0.5 * time_to(rounds, loss)


def test_without_delay_momentum_runs_away() -> None:
    """Each push with momentum of its own acts as often as there are workers: the paper's reason for the delay."""
    delayed = one_by_one(PROBLEM, STEP_S, STEPS, 800.0, (0.7, 0.9))
    plain = one_by_one(PROBLEM, STEP_S, STEPS, 800.0, (0.7, 0.9), period=1)
    assert np.mean([loss for _, loss in delayed[-20:]]) < np.mean([loss for _, loss in plain[-20:]])
