"""One-peer exponential gossip, and the runtime model that compares it with averaging all with all."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.gossip import (
    all_reduce_ends_s,
    consensus_distance,
    gossip_ends_s,
    mix,
    partners,
    period,
    rounds_ends_s,
)


@pytest.mark.parametrize("peers", [2, 4, 8, 64])
def test_log2_n_iterations_give_everybody_the_exact_mean(peers: int) -> None:
    """Integers whose mean has a finite binary fraction: not a bit is lost."""
    x_NP = np.random.default_rng(peers).integers(-1000, 1000, (peers, 3)).astype(float)
    mean_P = x_NP.mean(axis=0)
    for iteration in range(period(peers)):
        x_NP = mix(x_NP, iteration)
    assert (x_NP == mean_P).all()
    assert consensus_distance(x_NP) == 0.0


@pytest.mark.parametrize("peers", [3, 6, 20])
def test_other_sizes_come_nearer_and_keep_the_mean(peers: int) -> None:
    """No size in between is exact, and none loses anything."""
    x_NP = np.random.default_rng(1).normal(size=(peers, 4))
    mean_P, distances = x_NP.mean(axis=0), [consensus_distance(x_NP)]
    for iteration in range(4 * period(peers)):
        x_NP = mix(x_NP, iteration)
        distances.append(consensus_distance(x_NP))
    assert x_NP.mean(axis=0) == pytest.approx(mean_P)
    assert 0 < distances[-1] < 0.1 * distances[0]


def test_each_is_heard_by_one() -> None:
    """In every iteration: a permutation without fixed points."""
    for iteration in range(6):
        heard = partners(8, iteration)
        assert sorted(heard) == list(range(8))
        assert (heard != np.arange(8)).all()


def test_gossip_that_is_shorter_than_a_step_costs_nothing() -> None:
    """Alike peers: each iteration takes max(compute, gossip)."""
    compute_KN = np.full((10, 8), 1.0)
    assert gossip_ends_s(compute_KN, 0.5)[-1] == pytest.approx(10.0)
    assert gossip_ends_s(compute_KN, 2.0)[-1] == pytest.approx(20.0)
    assert all_reduce_ends_s(compute_KN, 0.5)[-1] == pytest.approx(15.0)


def test_each_waits_for_what_its_own_partner_sends() -> None:
    """Of four one has a thin line: whoever hears it is late, and then whoever hears that one."""
    gossip_TN = np.full((2, 4), 0.1)
    gossip_TN[0, 1] = 3.0
    assert gossip_ends_s(np.ones((2, 4)), gossip_TN) == pytest.approx([3.0, 4.0])
    assert gossip_ends_s(np.ones((1, 4)), gossip_TN[:, ::-1])[-1] == pytest.approx(3.0)


def test_jitter_and_latency_decide_which_is_faster() -> None:
    """The crossover of arXiv:2410.11998: on a fast network alike peers lose nothing to an all-reduce that is hidden;
    with jitter it is better to wait for neighbours alone, or for all once in many steps."""
    dice = np.random.default_rng(0)
    even, uneven = np.full((200, 32), 1.0), dice.lognormal(0.0, 0.4, (200, 32))
    assert all_reduce_ends_s(even, 0.01)[-1] < gossip_ends_s(even, 1.2)[-1]
    assert gossip_ends_s(uneven, 0.3)[-1] < 0.9 * all_reduce_ends_s(uneven, 0.3)[-1]
    assert rounds_ends_s(uneven, 50, 5.0)[-1] < 0.7 * all_reduce_ends_s(uneven, 0.1)[-1]
