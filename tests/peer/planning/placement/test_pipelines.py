"""Pipelines of given groups, against all that can be made of them."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.planning.placement.communication_cost import CommunicationCost
from peer.planning.placement.pipelines import best_of, composed, perturbed
from peer.planning.placement.stage_workload import StageWorkload, problem_of
from peer.planning.placement.starting_layouts import random_layouts
from tests.peer.planning.placement import oracle
from tests.peer.planning.placement.networks import KINDS, random_network


def unlike(
    kind: str, devices: int, stages: int, seed: int, sync_steps: int
) -> tuple[CommunicationCost, list[float], StageWorkload]:
    speeds = np.random.default_rng(seed).uniform(0.2, 2, devices).tolist()
    work = StageWorkload(
        stages=stages, stage_bytes=5e7, cut_bytes=2e7, sync_steps=sync_steps, compute_s=2.0, micro_batches=3
    )
    return CommunicationCost(problem_of(random_network(devices, seed, kind=kind), work, speeds=speeds)), speeds, work


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(KINDS), sizes=st.sampled_from([(6, 2), (8, 2), (6, 3), (9, 3), (8, 4), (4, 4)]),
    seed=st.integers(0, 99), sync_steps=st.sampled_from([1, 5]), ordered=st.booleans(),
)  # fmt: skip
def test_pipelines_of_these_groups_cost_little_more_than_the_best_there_are(
    kind: str, sizes: tuple[int, int], seed: int, sync_steps: int, ordered: bool
) -> None:
    """In the order of the stages that is given, or in any; what they cost is what is said."""
    scorer, speeds, work = unlike(kind, *sizes, seed, sync_steps)
    network = random_network(sizes[0], seed, kind=kind)
    groups_KM = scorer.groups(random_layouts(scorer.problem, 1, np.random.default_rng(seed)))[0]
    found = composed(scorer, groups_KM, ordered=ordered)
    first, *others = groups_KM.tolist()
    least_s = min(
        oracle.step_s(network, work, speeds, list(zip(*stages, strict=True)))
        for columns in product([tuple(first)], *(permutations(group) for group in others))
        for stages in ([columns] if ordered else permutations(columns))
    )  # fmt: skip
    assert least_s * (1 - 1e-9) <= found.cost_s <= 1.15 * least_s
    assert oracle.step_s(network, work, speeds, found.stages_KM.T.tolist()) == pytest.approx(found.cost_s)
    if ordered:
        assert np.sort(found.stages_KM, axis=1).tolist() == np.sort(groups_KM, axis=1).tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("devices", "stages"), [(24, 3), (24, 8), (45, 15)])
def test_pipelines_of_devices_alike_cost_their_score(kind: str, devices: int, stages: int) -> None:
    """Or less, where more paths are looked at than for a score."""
    work = StageWorkload(stages=stages, stage_bytes=5e7, cut_bytes=2e7, compute_s=1.0)
    scorer = CommunicationCost(problem_of(random_network(devices, 1, kind=kind), work))
    layouts = random_layouts(scorer.problem, 20, np.random.default_rng(1))
    scores_s = scorer.score(layouts).cost_s
    found = best_of(scorer, layouts, scores_s, 20)
    assert found.cost_s <= scores_s.min() * (1 + 1e-12)
    if stages < 15:
        assert found.cost_s == pytest.approx(scores_s.min())


@pytest.mark.parametrize("sync_steps", [1, 50])
def test_shaking_finds_better_ones(sync_steps: int) -> None:
    """Of 24 devices and a spare that settled somewhere; and never worse ones."""
    scorer, _, _ = unlike("any", 25, 4, 5, sync_steps)
    layouts = random_layouts(scorer.problem, 1, np.random.default_rng(0))
    settled = best_of(scorer, layouts, scorer.score(layouts).cost_s, 1)
    costs = [perturbed(scorer, settled, times, np.random.default_rng(2)).cost_s for times in (0, 2, 20)]
    assert costs[0] == settled.cost_s
    assert costs[0] >= costs[1] >= costs[2]
    assert costs[2] < 0.97 * costs[0]
