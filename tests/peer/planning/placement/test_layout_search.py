"""The search finds the best of all where all can be looked at, and is the same every time."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dht.errors import BadInput
from peer.planning.placement.communication_cost import CommunicationCost
from peer.planning.placement.layout_search import Effort, search
from peer.planning.placement.pairwise_network import preset
from peer.planning.placement.stage_workload import StageWorkload, problem_of
from peer.planning.placement.starting_layouts import block, by_regions, striped
from tests.peer.planning.placement import oracle
from tests.peer.planning.placement.every_layout import partitions
from tests.peer.planning.placement.networks import KINDS, random_network
from tests.peer.planning.placement.paper import PAPER, best_of_all

SMALL = Effort(patience=60, evaluations=20_000, seeded=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stages", [2, 4])
def test_the_optimum_of_eight_devices(stages: int, kind: str) -> None:
    """On 4 instances for each kind of links and number of stages, 40 in all, from random starts."""
    work = StageWorkload(stages=stages, stage_bytes=5e7, cut_bytes=2e7)
    for seed in range(4):
        problem = problem_of(random_network(8, seed, kind=kind), work)
        _, least = best_of_all(problem)
        assert search(problem, SMALL, seed).cost_s == pytest.approx(least, rel=1e-9), f"instance {seed}"


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("kind", ["any", "ties"])
def test_the_best_of_all_is_that_of_the_equations(stages: int, kind: str) -> None:
    """Seven devices: every choice of who is left out, and every partition of the others."""
    network, work = random_network(7, stages, kind=kind), StageWorkload(stages=stages, stage_bytes=5e7, cut_bytes=2e7)
    problem = problem_of(network, work)
    layout, least = best_of_all(problem)
    size = 7 // stages
    subsets = combinations(range(7), size * stages)
    every = [groups for peers in subsets for groups in oracle.partitions(peers, size)]
    assert partitions(problem) == len(every)
    assert least == pytest.approx(min(oracle.comm_s(network, work, groups) for groups in every))
    assert CommunicationCost(problem).score(layout[None]).cost_s[0] == least


def test_too_many_partitions_to_look_at() -> None:
    with pytest.raises(BadInput, match="64 devices have"):
        best_of_all(problem_of(preset("case5_worldwide").network(), PAPER))


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=15)
@given(
    kind=st.sampled_from(KINDS), devices=st.integers(1, 14), stages=st.integers(1, 14), seed=st.integers(0, 99),
    seeded=st.booleans(),
)  # fmt: skip
def test_any_sizes_any_links_any_search(kind: str, devices: int, stages: int, seed: int, seeded: bool) -> None:
    """A layout comes out whose cost is what is said, and the same again with the same seed."""
    work = StageWorkload(stages=stages, stage_bytes=5e7, cut_bytes=2e7)
    problem = problem_of(random_network(max(devices, stages), seed, kind=kind), work)
    effort = replace(SMALL, patience=3, seeded=seeded)
    found, again = search(problem, effort, seed), search(problem, effort, seed)
    assert sorted(found.layout) == list(range(len(problem)))
    assert CommunicationCost(problem).score(found.layout[None]).cost_s[0] == pytest.approx(found.cost_s, rel=1e-12)
    assert found.cost_s == again.cost_s
    assert (found.layout == again.layout).all()
    assert found.history[-1][1] == found.cost_s


def test_the_budget_bounds_the_search() -> None:
    problem = problem_of(preset("case5_worldwide").network(), PAPER)
    found = search(problem, Effort(evaluations=3_000, seeded=False), 0)
    assert 3_000 <= found.evaluations < 4_000


def test_regions_are_seen_in_the_links() -> None:
    """Whatever the order of the peers: a block holds one region, and a stripe one device of each."""
    network = preset("case5_worldwide").network()
    order = np.random.default_rng(0).permutation(64)
    problem = problem_of(network.only(order.tolist()), PAPER)
    place = order // 8
    found = by_regions(problem)
    for layout, different in ((block(problem, found), 1), (striped(problem, found), 8)):
        assert [len(set(place[stage])) for stage in layout.reshape(8, 8)] == [different] * 8
