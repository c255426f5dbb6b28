"""The cost model against the paper's equations, and what must not change it."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.planning.placement.communication_cost import CommunicationCost, pace_s
from peer.planning.placement.pairwise_network import Network
from peer.planning.placement.stage_workload import (
    Indices,
    PlacementProblem,
    StageWorkload,
    problem_of,
)
from peer.planning.placement.starting_layouts import random_layouts
from tests.peer.planning.placement import oracle
from tests.peer.planning.placement.networks import KINDS, random_network
from tests.pipeline_step import Stage, pipeline_step_s

FIXED = settings(derandomize=True, deadline=None, max_examples=60)


def work_of(stages: int, sync_steps: int = 1) -> StageWorkload:
    return StageWorkload(stages=stages, stage_bytes=5e7, cut_bytes=2e7, sync_steps=sync_steps)


def groups_of(problem: PlacementProblem, layout: Indices) -> list[tuple[int, ...]]:
    """The groups, as peers of the network."""
    placed = problem.peers[layout[: problem.placed]].reshape(problem.stages, problem.pipelines)
    return [tuple(group) for group in placed.tolist()]


@FIXED
@given(
    kind=st.sampled_from(KINDS), devices=st.integers(1, 10), stages=st.integers(1, 5), seed=st.integers(0, 99),
    sync_steps=st.sampled_from([1, 7]),
)  # fmt: skip
def test_the_papers_equations(kind: str, devices: int, stages: int, seed: int, sync_steps: int) -> None:
    network, work = random_network(max(devices, stages), seed, kind=kind), work_of(stages, sync_steps)
    problem = problem_of(network, work)
    layouts = random_layouts(problem, 3, np.random.default_rng(seed))
    found = CommunicationCost(problem).score(layouts)
    for at, layout in enumerate(layouts):
        groups = groups_of(problem, layout)
        assert found.cost_s[at] == pytest.approx(oracle.comm_s(network, work, groups))
        data_parallel_s = oracle.data_parallel_s(network, work, groups) / sync_steps
        assert found.exchanges_BK[at].max() == pytest.approx(data_parallel_s)


@FIXED
@given(kind=st.sampled_from(KINDS), stages=st.integers(1, 6), pipelines=st.integers(1, 4), seed=st.integers(0, 99))
def test_names_of_groups_and_devices_mean_nothing(kind: str, stages: int, pipelines: int, seed: int) -> None:
    """Another order of the groups, of the devices in one, or of the peers in the network costs the same."""
    rng = np.random.default_rng(seed)
    network, work = random_network(stages * pipelines, seed, kind=kind), work_of(stages)
    problem = problem_of(network, work)
    layout = random_layouts(problem, 1, rng)[0]
    groups = layout.reshape(stages, pipelines)
    shuffled = rng.permuted(groups[rng.permutation(stages)], axis=1).ravel()
    order = rng.permutation(len(network))
    elsewhere = problem_of(network.only(order.tolist()), work)
    cost = CommunicationCost(problem).score(layout[None]).cost_s[0]
    assert CommunicationCost(problem).score(shuffled[None]).cost_s[0] == pytest.approx(cost)
    assert CommunicationCost(elsewhere).score(np.argsort(order)[layout][None]).cost_s[0] == pytest.approx(cost)


@FIXED
@given(stages=st.integers(2, 5), pipelines=st.integers(2, 4), seed=st.integers(0, 99))
def test_devices_with_the_same_links_can_change_places(stages: int, pipelines: int, seed: int) -> None:
    network = random_network(stages * pipelines, seed)
    delay_s, speed_bps = network.delay_s.copy(), network.bandwidth_bps.copy()
    for matrix in (delay_s, speed_bps):
        matrix[1], matrix[:, 1] = matrix[0], matrix[:, 0]
        matrix[0, 1] = matrix[1, 0] = matrix[0, 2]
    twins = Network(names=network.names, delay_s=delay_s, bandwidth_bps=speed_bps)
    scorer = CommunicationCost(problem_of(twins, work_of(stages)))
    layout = random_layouts(scorer.problem, 1, np.random.default_rng(seed))[0]
    swapped = np.select([layout == 0, layout == 1], [1, 0], layout)
    costs = scorer.score(np.stack([layout, swapped])).cost_s
    assert costs[0] == pytest.approx(costs[1])


def test_where_all_links_are_alike_all_layouts_are() -> None:
    scorer = CommunicationCost(problem_of(random_network(24, 0, kind="equal"), work_of(4)))
    costs = scorer.score(random_layouts(scorer.problem, 50, np.random.default_rng(0))).cost_s
    assert costs.max() == pytest.approx(costs.min())


@FIXED
@given(seed=st.integers(0, 99), factor=st.floats(1.0, 10.0))
def test_a_slower_link_never_helps(seed: int, factor: float) -> None:
    network, rng = random_network(12, seed), np.random.default_rng(seed)
    one, other = rng.choice(12, 2, replace=False)
    speed_bps = network.bandwidth_bps.copy()
    speed_bps[one, other] /= factor
    speed_bps[other, one] /= factor
    slower = Network(names=network.names, delay_s=network.delay_s, bandwidth_bps=speed_bps)
    before, after = (CommunicationCost(problem_of(links, work_of(3))) for links in (network, slower))
    layouts = random_layouts(before.problem, 20, rng)
    assert (after.score(layouts).cost_s >= before.score(layouts).cost_s * (1 - 1e-12)).all()


def test_a_pipeline_of_fast_devices_does_not_wait_for_a_slow_one_between_averages() -> None:
    """Two stages of a fast and a slow device each: in step the slow one rules, else the paces add up."""
    network = random_network(4, 0, kind="equal")
    speeds = [1.0, 0.25, 1.0, 0.25]
    layout = np.array([[0, 1, 2, 3]])
    for sync_steps, compute_s in ((1, 8.0), (1_000_000, 2 / (1 / 2 + 1 / 8))):
        work = StageWorkload(
            stages=2, stage_bytes=0, cut_bytes=0, sync_steps=sync_steps, compute_s=2.0, micro_batches=1_000
        )
        scorer = CommunicationCost(problem_of(network, work, speeds=speeds))
        assert scorer.score(layout).cost_s[0] == pytest.approx(compute_s, rel=0.05)


@FIXED
@given(stages=st.integers(1, 6), pipelines=st.integers(1, 4), micro_batches=st.integers(1, 9), seed=st.integers(0, 99))
def test_computing_is_that_of_a_pipeline_that_fills(stages: int, pipelines: int, micro_batches: int, seed: int) -> None:
    """As `peer/planning/plan/cluster_cost.py` has it, of each column."""
    rng = np.random.default_rng(seed)
    work = replace(work_of(stages), compute_s=3.0, micro_batches=micro_batches)
    problem = problem_of(random_network(stages * pipelines, seed), work)
    compute_KM = rng.uniform(0.1, 5, (stages, pipelines))
    pieces_KM, no_cuts = compute_KM / micro_batches, [0.0] * (stages - 1)
    expected = [
        pipeline_step_s([Stage(blocks=1, micro_s=each) for each in column], no_cuts, micro_batches)
        for column in pieces_KM.T
    ]  # fmt: skip
    assert problem.computing_s(compute_KM[None])[0] == pytest.approx(expected)


@FIXED
@given(
    kind=st.sampled_from(KINDS), sizes=st.sampled_from([(4, 2), (6, 2), (6, 3), (8, 4), (4, 4), (3, 1)]),
    seed=st.integers(0, 99), sync_steps=st.sampled_from([1, 7]), micro_batches=st.sampled_from([1, 4]),
    compute_s=st.sampled_from([0.1, 1.0, 20.0]),
)  # fmt: skip
def test_no_pipelines_of_these_groups_cost_less_than_the_score(
    kind: str, sizes: tuple[int, int], seed: int, sync_steps: int, micro_batches: int, compute_s: float
) -> None:
    """And where links are alike and nobody waits for the slowest pipeline, some cost as little."""
    (devices, stages), rng = sizes, np.random.default_rng(seed)
    network, speeds = random_network(devices, seed, kind=kind), rng.uniform(0.2, 2, devices).tolist()
    work = replace(work_of(stages, sync_steps), compute_s=compute_s, micro_batches=micro_batches)
    problem = problem_of(network, work, speeds=speeds)
    layout = random_layouts(problem, 1, rng)[0]
    first, *others = groups_of(problem, layout)
    least = min(
        oracle.step_s(network, work, speeds, list(zip(*order, strict=True)))
        for columns in product([first], *(permutations(group) for group in others)) for order in permutations(columns)
    )  # fmt: skip
    score = CommunicationCost(problem).score(layout[None]).cost_s[0]
    assert score <= least * (1 + 1e-9)
    if kind == "equal" and sync_steps > 1:
        assert score == pytest.approx(least)


@pytest.mark.parametrize("in_step", [True, False])
def test_what_takes_no_time_has_no_pace_that_overflows(in_step: bool) -> None:
    assert pace_s(np.zeros((2, 9)), in_step=in_step).tolist() == [0.0, 0.0]
    assert pace_s(np.array([[0.0, 1.0], [1e-310, 1e300]]), in_step=False) == pytest.approx([0.0, 2e-310])
