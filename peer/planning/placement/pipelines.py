"""From groups to pipelines: which device of one group is followed by which of the next, and how long a step then takes.

Where all devices compute at the same speed, only links matter: every cut is as fast as its matching can be. Where they
do not, links and computation compete, and pipelines are chosen by their cost: devices are swapped while that helps.

Symbols: X ways to make pipelines; K stages; M pipelines. A column of (K, M) is a pipeline, a row a stage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peer.planning.placement.communication_cost import CommunicationCost, best_matching, pace_s
from peer.planning.placement.layout_search import shaken
from peer.planning.placement.pairwise_network import Matrix
from peer.planning.placement.paths import shortest_path
from peer.planning.placement.stage_workload import Indices, PlacementProblem, Vector

AT_ONCE, ENTRIES = 512, 1 << 21
"""AT_ONCE swaps are scored together, and the best of them is made if it helps. ENTRIES limits the entries of
averaging at one time."""
LOOKED_AT = 20_000
"""The number of swaps that are tried before the search ends. 64 devices have 2,016."""
LEAST = 1e-9
"""A gain below this share of the cost counts as rounding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PipelineLayout:
    """Pipelines with their stages in order, and their cost.

    Attributes:
        stages_KM: devices; a column is a pipeline.
        cost_s: seconds per step.
    """

    stages_KM: Indices
    cost_s: float


def composed(scorer: CommunicationCost, groups_KM: Indices, *, ordered: bool = False) -> PipelineLayout:
    """The best pipelines found for these groups. With `ordered`, row k is stage k; otherwise the stages may have any
    order.

    The result is the best possible where all devices compute equally fast.
    """
    problem, groups_KM = scorer.problem, np.sort(groups_KM, axis=1)
    order = range(problem.stages) if ordered else _order(scorer, groups_KM)
    stages_KM = groups_KM[order]
    linked_KM = _by_links(scorer, stages_KM)
    if problem.alike or problem.stages == 1 or problem.pipelines == 1:
        return PipelineLayout(stages_KM=linked_KM, cost_s=_cost_s(scorer, linked_KM))
    starts = (linked_KM, _by_speeds(problem, stages_KM))
    return min((_settled(scorer, start) for start in starts), key=lambda found: found.cost_s)


def best_of(scorer: CommunicationCost, layouts_BN: Indices, bounds_s: Vector, most: int) -> PipelineLayout:
    """The cheapest pipelines of these layouts, whose scores are lower bounds; at most the `most` best-looking
    layouts are composed."""
    best = None
    for at in bounds_s.argsort(kind="stable")[:most].tolist():
        if best is not None and bounds_s[at] >= best.cost_s * (1 - LEAST):
            break
        found = composed(scorer, scorer.groups(layouts_BN[at][None])[0])
        found = found if scorer.problem.alike else _polished(scorer, found.stages_KM)
        best = found if best is None else min(best, found, key=lambda each: each.cost_s)
    assert best is not None, "one layout at least"
    return best


def perturbed(scorer: CommunicationCost, found: PipelineLayout, times: int, rng: np.random.Generator) -> PipelineLayout:
    """The best pipelines after `times` attempts in which a few devices drawn at random change places."""
    devices, placed = len(scorer.problem), scorer.problem.placed
    for _ in range(times if devices > 1 else 0):
        layout = np.concatenate([found.stages_KM.ravel(), _spares(scorer.problem, found.stages_KM)])
        other = _polished(scorer, shaken(scorer.problem, layout, rng)[:placed].reshape(found.stages_KM.shape))
        found = min(found, other, key=lambda each: each.cost_s)
    return found


def costs_s(scorer: CommunicationCost, stages_XKM: Indices) -> Vector:
    """Shape (X,): seconds per step of pipelines whose stages are in this order."""
    hops_XCM = scorer.problem.hop_s[stages_XKM[:, :-1], stages_XKM[:, 1:]]
    talk_s = scorer.exchanges(stages_XKM).max(axis=1) + hops_XCM.max(axis=2).sum(axis=1)
    return _with_computing(scorer.problem, talk_s, stages_XKM)


def _cost_s(scorer: CommunicationCost, stages_KM: Indices) -> float:
    return float(costs_s(scorer, stages_KM[None])[0])


def _with_computing(problem: PlacementProblem, talk_s: Vector, stages_XKM: Indices) -> Vector:
    seconds_XM = talk_s[:, None] + problem.computing_s(problem.compute_s[stages_XKM])
    return pace_s(seconds_XM, in_step=problem.in_step)


# ---- the order of the stages ----


def _order(scorer: CommunicationCost, groups_KM: Indices) -> list[int]:
    """The groups in the order of the shortest path, starting at the end that has the device with the lowest number."""
    path = shortest_path(scorer.score(groups_KM.reshape(1, -1)).edges_BKK[0])
    return path if groups_KM[path[0]].min() <= groups_KM[path[-1]].min() else path[::-1]


def _reordered(scorer: CommunicationCost, stages_KM: Indices) -> Indices:
    """The same pipelines with their stages in the best order found."""
    edges_KK = _edges(scorer.problem, stages_KM[None])[0]
    path = shortest_path(edges_KK)
    saves = edges_KK[path[:-1], path[1:]].sum() < np.diagonal(edges_KK, 1).sum() * (1 - LEAST)
    return stages_KM[path] if saves else stages_KM


def _edges(problem: PlacementProblem, stages_XKM: Indices) -> Matrix:
    """Shape (X, K, K): the slowest link between two stages within a pipeline."""
    edges_XKK: Matrix = problem.hop_s[stages_XKM[:, :, None], stages_XKM[:, None, :]].max(axis=3)
    return edges_XKK


# ---- a good one ----


def _by_links(scorer: CommunicationCost, stages_KM: Indices) -> Indices:
    """Match each cut so that its slowest link is as fast as possible and then the sum of its links is least."""
    columns = [stages_KM[0]]
    for stage_M in stages_KM[1:]:
        worth_MM = scorer.problem.hop_s[np.ix_(columns[-1], stage_M)]
        columns.append(stage_M[best_matching(scorer.ranks_between(columns[-1], stage_M), worth_MM)])
    return np.stack(columns)


def _by_speeds(problem: PlacementProblem, stages_KM: Indices) -> Indices:
    """Combine devices of the same speed, since no pipeline waits for another. In step, spread the slow devices over
    the pipelines instead."""
    slowest_first = -problem.compute_s[stages_KM]
    if not problem.in_step:
        return np.take_along_axis(stages_KM, slowest_first.argsort(axis=1, kind="stable"), axis=1)
    columns = [stages_KM[0]]
    for stage_M in stages_KM[1:]:
        busy_M = problem.compute_s[np.stack(columns)].sum(axis=0)
        column = np.empty_like(stage_M)
        column[busy_M.argsort(kind="stable")] = stage_M[(-problem.compute_s[stage_M]).argsort(kind="stable")]
        columns.append(column)
    return np.stack(columns)


def _settled(scorer: CommunicationCost, stages_KM: Indices) -> PipelineLayout:
    """Swap two devices of one stage while that helps."""
    stages, pipelines = stages_KM.shape
    ones, others = np.triu_indices(pipelines, 1)
    rows = np.arange(stages)[:, None] * pipelines
    swaps_S2 = np.stack([(rows + ones).ravel(), (rows + others).ravel()], axis=1)
    layout, cost_s = _swapped(scorer, stages_KM.ravel(), swaps_S2)
    return PipelineLayout(stages_KM=layout.reshape(stages, pipelines), cost_s=cost_s)


def _polished(scorer: CommunicationCost, stages_KM: Indices) -> PipelineLayout:
    """Pipelines that become no cheaper by a swap of two devices, spares included, nor by another order of the
    stages, within the limits of the search."""
    problem = scorer.problem
    ones, others = np.triu_indices(len(problem), 1)
    swaps_S2 = np.stack([ones, others], axis=1)[ones < problem.placed]
    swaps_S2 = swaps_S2[:: 1 + len(swaps_S2) // LOOKED_AT]
    cost_s, before_s = _cost_s(scorer, stages_KM), np.inf
    while cost_s < before_s:
        before_s = cost_s
        layout, _ = _swapped(scorer, np.concatenate([stages_KM.ravel(), _spares(problem, stages_KM)]), swaps_S2)
        stages_KM = _reordered(scorer, layout[: problem.placed].reshape(stages_KM.shape))
        cost_s = _cost_s(scorer, stages_KM)
    return PipelineLayout(stages_KM=stages_KM, cost_s=cost_s)


def _spares(problem: PlacementProblem, stages_KM: Indices) -> Indices:
    return np.setdiff1d(np.arange(len(problem)), stages_KM)


def _swapped(scorer: CommunicationCost, layout_N: Indices, swaps_S2: Indices) -> tuple[Indices, float]:
    """Make the best swap of each chunk until no swap helps. The layout holds the pipelines stage by stage."""
    problem = scorer.problem

    def costs(layouts_XN: Indices) -> Vector:
        return costs_s(scorer, layouts_XN[:, : problem.placed].reshape(-1, problem.stages, problem.pipelines))

    layout, cost_s = layout_N, float(costs(layout_N[None])[0])
    step = max(1, min(AT_ONCE, ENTRIES // (problem.placed * problem.pipelines)))
    at = seen = 0
    while seen < len(swaps_S2):
        chunk = swaps_S2[at : at + step]
        layouts, rows = np.repeat(layout[None], len(chunk), axis=0), np.arange(len(chunk))[:, None]
        layouts[rows, chunk] = layout[chunk[:, ::-1]]
        after = costs(layouts)
        best = int(after.argmin())
        if after[best] < cost_s * (1 - LEAST):
            layout, cost_s, seen = layouts[best], float(after[best]), 0
        else:
            seen += len(chunk)
        at = at + len(chunk) if at + len(chunk) < len(swaps_S2) else 0
    return layout, cost_s
