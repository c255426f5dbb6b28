"""Climbing ends where no swap helps, and keeps its books right on the way."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.planning.placement.communication_cost import CommunicationCost
from peer.planning.placement.local_search import climbed
from peer.planning.placement.stage_workload import StageWorkload, problem_of
from peer.planning.placement.starting_layouts import random_layouts
from tests.peer.planning.placement.networks import KINDS, random_network

FIXED = settings(derandomize=True, deadline=None, max_examples=60)


@FIXED
@given(
    kind=st.sampled_from(KINDS), devices=st.integers(1, 12), stages=st.integers(1, 5), seed=st.integers(0, 99),
    compute_s=st.sampled_from([0.0, 1.0]),
)  # fmt: skip
def test_no_swap_of_two_devices_is_left_that_helps(
    kind: str, devices: int, stages: int, seed: int, compute_s: float
) -> None:
    """The cost that it tells is that of the layout, and all swaps are scored from nothing here."""
    devices = max(devices, stages)
    rng = np.random.default_rng(seed)
    work = StageWorkload(stages=stages, stage_bytes=5e7, cut_bytes=2e7, compute_s=compute_s, sync_steps=3)
    problem = problem_of(random_network(devices, seed, kind=kind), work, speeds=rng.uniform(0.5, 2, devices).tolist())
    scorer = CommunicationCost(problem)
    start = random_layouts(problem, 1, rng)[0]
    layout, cost_s = climbed(scorer, start, 1_000_000, rng)
    assert sorted(layout) == list(range(devices))
    assert scorer.score(layout[None]).cost_s[0] == pytest.approx(cost_s, rel=1e-12)
    assert cost_s <= scorer.score(start[None]).cost_s[0]
    for one, other in combinations(range(devices), 2):
        neighbour = layout.copy()
        neighbour[[one, other]] = neighbour[[other, one]]
        assert scorer.score(neighbour[None]).cost_s[0] >= cost_s * (1 - 1e-8)


def test_it_stops_when_the_budget_is_spent() -> None:
    scorer = CommunicationCost(
        problem_of(random_network(40, 0), StageWorkload(stages=5, stage_bytes=5e7, cut_bytes=2e7))
    )
    start = random_layouts(scorer.problem, 1, np.random.default_rng(0))[0]
    climbed(scorer, start, 600, np.random.default_rng(0))
    assert 600 <= scorer.scored <= 600 + 256
