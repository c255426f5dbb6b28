"""Hill climbing on the true cost: from a layout to one that no swap of two devices makes cheaper."""

from __future__ import annotations

from functools import cache

import numpy as np

from peer.planning.placement.communication_cost import BY_SUBSETS, CommunicationCost, Scores
from peer.planning.placement.pairwise_network import Matrix
from peer.planning.placement.paths import path_lengths
from peer.planning.placement.stage_workload import Indices, PlacementProblem

AT_ONCE = 256
"""The number of swaps that are scored together; the best of them is made if it gains."""
LOOKED_AT = 20_000
"""The number of swaps without a gain after which the search ends. 64 devices have 1,792 swaps."""
LEAST = 1e-9
"""A gain below this share of the cost counts as rounding."""


def climbed(
    scorer: CommunicationCost, layout_N: Indices, budget: int, rng: np.random.Generator
) -> tuple[Indices, float]:
    """Swap devices while that helps and the scorer has scored fewer than `budget` layouts. Returns the final layout
    and its cost."""
    problem = scorer.problem
    layout = layout_N.copy()
    scores = scorer.score(layout[None])
    swaps = _swaps(len(problem), problem.stages, problem.pipelines)
    order, seen = rng.permutation(len(swaps)), 0
    while seen < min(len(swaps), LOOKED_AT) and scorer.scored < budget:
        cost_s = float(scores.cost_s[0])
        chunk = swaps[order[seen : seen + AT_ONCE]]
        better = _best_of(scorer, layout, scores, chunk)
        if better is None or better[1].cost_s[0] >= cost_s * (1 - LEAST):
            seen += len(chunk)
            continue
        layout, scores = better
        order, seen = np.roll(order, -seen - len(chunk)), 0
    return layout, float(scores.cost_s[0])


def _best_of(
    scorer: CommunicationCost, layout: Indices, scores: Scores, swaps_S2: Indices
) -> tuple[Indices, Scores] | None:
    """The best layout that one of these swaps leads to; None if bounds show that none of them costs less.

    Matchings of large groups are expensive, and bounds of them are cheap.
    """
    problem = scorer.problem
    layouts = np.repeat(layout[None], len(swaps_S2), axis=0)
    rows = np.arange(len(swaps_S2))
    layouts[rows, swaps_S2[:, 0]], layouts[rows, swaps_S2[:, 1]] = layout[swaps_S2[:, 1]], layout[swaps_S2[:, 0]]
    changed_S2 = np.minimum(swaps_S2 // problem.pipelines, problem.stages)
    exchanges_SK = _exchanges_after(scorer, layouts, scores.exchanges_BK[0], changed_S2)
    groups_SKM, slowest_S = scorer.groups(layouts), exchanges_SK.max(axis=1)
    least_S = scorer.with_computing(slowest_S + _least_path(problem), groups_SKM)
    kept = np.flatnonzero(least_S < scores.cost_s[0])
    if problem.pipelines > BY_SUBSETS and len(kept):
        edges_SKK = _edges_after(scorer, layouts[kept], scores.edges_BKK[0], changed_S2[kept], bound=True)
        least_S = scorer.with_computing(slowest_S[kept] + path_lengths(edges_SKK), groups_SKM[kept])
        kept = kept[least_S < scores.cost_s[0]]
    scorer.count(len(swaps_S2) - len(kept))
    if not len(kept):
        return None
    layouts, changed_S2, exchanges_SK = layouts[kept], changed_S2[kept], exchanges_SK[kept]
    edges_SKK = _edges_after(scorer, layouts, scores.edges_BKK[0], changed_S2)
    found = scorer.completed(scorer.groups(layouts), exchanges_SK, edges_SKK)
    best = found.best()
    one = slice(best, best + 1)
    return layouts[best], Scores(
        cost_s=found.cost_s[one], exchanges_BK=found.exchanges_BK[one], edges_BKK=found.edges_BKK[one]
    )


def _least_path(problem: PlacementProblem) -> float:
    """A lower bound in seconds for every path through the groups."""
    if problem.stages == 1:
        return 0.0
    off_diagonal = ~np.eye(len(problem), dtype=bool)
    return float((problem.stages - 1) * problem.hop_s[off_diagonal].min())


def _exchanges_after(scorer: CommunicationCost, layouts_SN: Indices, before_K: Matrix, changed_S2: Indices) -> Matrix:
    stages = scorer.problem.stages
    rows = np.arange(len(layouts_SN))[:, None]
    exchanges_SK = np.repeat(before_K[None], len(layouts_SN), axis=0)
    groups_SKM = scorer.groups(layouts_SN)
    # A spare has no group whose exchange could change: then the other one is written twice.
    changed_S2 = np.where(changed_S2 < stages, changed_S2, changed_S2[:, :1])
    exchanges_SK[rows, changed_S2] = scorer.exchanges(groups_SKM[rows, changed_S2])
    return exchanges_SK


def _edges_after(
    scorer: CommunicationCost, layouts_SN: Indices, before_KK: Matrix, changed_S2: Indices, *, bound: bool = False
) -> Matrix:
    stages = scorer.problem.stages
    rows = np.arange(len(layouts_SN))[:, None]
    edges_SKK = np.repeat(before_KK[None], len(layouts_SN), axis=0)
    pairs_SP2 = _pairs(stages)[changed_S2[:, 0], changed_S2[:, 1]]
    lefts, rights = pairs_SP2[:, :, 0], pairs_SP2[:, :, 1]
    groups_SKM = scorer.groups(layouts_SN)
    hops_SP = scorer.hops(groups_SKM[rows, lefts], groups_SKM[rows, rights], bound=bound)
    edges_SKK[rows, lefts, rights] = hops_SP
    edges_SKK[rows, rights, lefts] = hops_SP
    return edges_SKK


@cache
def _pairs(stages: int) -> Indices:
    """Shape (K, K + 1, pairs, 2): for each two groups, the pairs of groups that contain one of them; group K stands
    for the spares."""
    count = max(1, 2 * (stages - 2) + 1)
    table = np.zeros((stages, stages + 1, count, 2), dtype=np.int64)
    for one in range(stages):
        for other in range(stages + 1):
            touched = [
                (left, right)
                for left in range(stages)
                for right in range(left + 1, stages)
                if {one, other} & {left, right}
            ]
            fill = touched[:count] + touched[:1] * (count - len(touched))
            if fill:
                table[one, other] = fill
    return table


@cache
def _swaps(devices: int, stages: int, pipelines: int) -> Indices:
    """Shape (swaps, 2): all pairs of places in a layout that belong to different groups, the lower place first."""
    group = np.minimum(np.arange(devices) // pipelines, stages)
    ones, others = np.triu_indices(devices, 1)
    apart = group[ones] != group[others]
    return np.stack([ones[apart], others[apart]], axis=1)
