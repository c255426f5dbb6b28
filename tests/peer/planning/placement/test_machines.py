"""Homes with several cards: the published clusters at the best known cost, mixed homes at the optimum, and small ones
against all layouts."""

from __future__ import annotations

import numpy as np
import pytest

from peer.planning.placement.layout_search import Effort, search, usual
from peer.planning.placement.pairwise_network import Network, preset
from peer.planning.placement.place import place
from peer.planning.placement.stage_workload import StageWorkload, problem_of
from peer.planning.placement.starting_layouts import seeds
from tests.night import by_day
from tests.peer.planning.placement.networks import KINDS, random_network
from tests.peer.planning.placement.paper import PAPER, best_of_all

BEST_KNOWN_S = {
    "case1_datacenter": 3.44, "case2_spot": 31.634, "case3_two_sites": 16.087, "case4_us_regional": 34.802,
    "case5_worldwide": 49.218,
}  # fmt: skip
INSIDE_BPS = 1e11


def shuffled(network: Network, seed: int) -> Network:
    """The same devices in another order, which must not matter."""
    return network.only(np.random.default_rng(seed).permutation(len(network)).tolist())


def homes(cards: list[int], seed: int, kind: str) -> Network:
    """Homes with so many cards each, between which links are of this kind; their cards in any order."""
    between = random_network(len(cards), seed, kind=kind)
    home = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(cards)), cards))
    pick, same = np.ix_(home, home), home[:, None] == home[None]
    return Network(
        names=tuple(f"home{at}-{number}" for number, at in enumerate(home)),
        delay_s=np.where(same, 0.0, between.delay_s[pick]),
        bandwidth_bps=np.where(same, INSIDE_BPS, between.bandwidth_bps[pick]),
    )


@pytest.mark.parametrize("scenario", BEST_KNOWN_S)
def test_a_published_cluster_is_placed_at_the_best_known_cost(scenario: str) -> None:
    """By the layouts with which a search begins, whatever the order of the devices."""
    for seed in range(10):
        problem = problem_of(shuffled(preset(scenario).network(), seed), PAPER)
        assert search(problem, Effort(evaluations=1), seed).cost_s <= BEST_KNOWN_S[scenario] + 5e-4, f"seed {seed}"


@pytest.mark.parametrize(("singles", "stages"), [(8, 4), (8, 8), (16, 6), (16, 8), (16, 12)])
def test_mixed_homes_reach_the_optimum(singles: int, stages: int) -> None:
    """Four homes with two cards, and others with one, on lines alike. A cut is fast only if all M pipelines cross it
    within a home: M homes with two cards make one such cut, and averaging is as slow as a stage with any single."""
    network = homes([2] * 4 + [1] * singles, singles, "equal")
    pipelines = len(network) // stages
    work = StageWorkload(stages=stages, stage_bytes=5e7, cut_bytes=2e7)
    fast_cuts = min(4 // pipelines, stages // 2)
    line_s, inside_s = 2 * (0.02 + 2e7 * 8 / 1e9), 2 * 2e7 * 8 / INSIDE_BPS
    averaging_s = (pipelines - 1) * 2 * (0.02 + 5e7 / pipelines * 8 / 1e9)
    least_s = averaging_s + (stages - 1 - fast_cuts) * line_s + fast_cuts * inside_s
    assert place(network, work).cost_s == pytest.approx(least_s)


@pytest.mark.slow
@pytest.mark.parametrize("group", by_day(range(8), 4))
def test_few_devices_are_placed_as_if_all_layouts_were_tried(group: int) -> None:
    """8 to 12 devices, homes with one or two cards, all kinds of links: 40 instances in all."""
    for seed in range(5_000 + 5 * group, 5_005 + 5 * group):
        rng = np.random.default_rng(seed)
        devices, stages = int(rng.integers(8, 13)), int(rng.choice([2, 3, 4]))
        doubles = int(rng.integers(1, devices // 2 + 1))
        network = homes([2] * doubles + [1] * (devices - 2 * doubles), seed, KINDS[seed % len(KINDS)])
        problem = problem_of(network, StageWorkload(stages=stages, stage_bytes=5e7, cut_bytes=2e7))
        _, least_s = best_of_all(problem)
        assert search(problem, usual(problem), seed).cost_s == pytest.approx(least_s, rel=1e-9), f"instance {seed}"


@pytest.mark.parametrize("cards", [[1] * 9, [9], [4, 3, 2], [2, 2, 2, 2, 1], [1]])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_first_layout_holds_every_device_once(cards: list[int], stages: int) -> None:
    network = homes(cards, 1, "any")
    problem = problem_of(network, StageWorkload(stages=min(stages, len(network)), stage_bytes=1e7, cut_bytes=1e7))
    layouts = seeds(problem)
    assert (np.sort(layouts, axis=1) == np.arange(len(problem))).all()
    assert len(np.unique(layouts, axis=0)) == len(layouts)
