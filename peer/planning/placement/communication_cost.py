"""The cost of layouts: DT-FM's COMM = DATAP + PIPELINEP (arXiv:2206.01288, equations 1 to 4), for many layouts at once.

A *layout* is a permutation of the devices: the first M are the first group, the next M the second, and the devices left
after K groups are spares. The order of the groups has no meaning here; the shortest path through them decides which
stage each of them holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.planning.placement.pairwise_network import Matrix
from peer.planning.placement.paths import path_lengths
from peer.planning.placement.stage_workload import Indices, PlacementProblem, Vector

OnProgress = Callable[[int], None]
"""Called with the number of layouts that were considered so far."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """Seconds per step of B layouts, and their terms.

    Attributes:
        cost_s: shape (B,): data parallel and pipeline, plus computing if the work has any. Where devices differ in
            speed, this is a lower bound for pipelines of these groups.
        exchanges_BK: the cost of averaging in each group; the slowest group decides.
        edges_BKK: the cost of passing activations on between each two groups.
    """

    cost_s: Vector
    exchanges_BK: Matrix
    edges_BKK: Matrix

    def best(self) -> int:
        return int(self.cost_s.argmin())


class CommunicationCost:
    """Scores layouts of one problem, and counts how many it has scored. `tell` is called with the count whenever it
    grows."""

    def __init__(self, problem: PlacementProblem, tell: OnProgress | None = None) -> None:
        self.problem = problem
        self.scored = 0
        self._tell = tell
        one = problem.computing_s(problem.compute_s[None, : problem.stages, None])
        self._alike_s = float(one[0, 0]) if problem.alike else None
        self._exchange = problem.exchange_s.ravel()
        levels, ranks = np.unique(problem.hop_s, return_inverse=True)
        width = np.uint16 if len(levels) <= np.iinfo(np.uint16).max else np.int32
        self._levels, self._ranks = levels, ranks.ravel().astype(width)
        self._lefts, self._rights = np.triu_indices(problem.stages, 1)

    def score(self, layouts_BN: Indices) -> Scores:
        """Score layouts from scratch."""
        groups_BKM = self.groups(layouts_BN)
        count, stages = len(layouts_BN), self.problem.stages
        exchanges_BK = self.exchanges(groups_BKM)
        hops_BP = self.hops(groups_BKM[:, self._lefts], groups_BKM[:, self._rights])
        edges_BKK = np.zeros((count, stages, stages))
        edges_BKK[:, self._lefts, self._rights] = hops_BP
        edges_BKK[:, self._rights, self._lefts] = hops_BP
        return self.completed(groups_BKM, exchanges_BK, edges_BKK)

    def completed(self, groups_BKM: Indices, exchanges_BK: Matrix, edges_BKK: Matrix) -> Scores:
        """The scores of groups whose exchanges and edges are known."""
        self.count(len(groups_BKM))
        talk_s = exchanges_BK.max(axis=1) + path_lengths(edges_BKK)
        cost_s = self.with_computing(talk_s, groups_BKM)
        return Scores(cost_s=cost_s, exchanges_BK=exchanges_BK, edges_BKK=edges_BKK)

    def count(self, layouts: int) -> None:
        """Count further layouts, whether scored or ruled out by a bound."""
        self.scored += layouts
        if self._tell is not None:
            self._tell(self.scored)

    def groups(self, layouts_BN: Indices) -> Indices:
        """Shape (B, K, M), without the spares."""
        problem = self.problem
        return layouts_BN[:, : problem.placed].reshape(-1, problem.stages, problem.pipelines)

    def exchanges(self, groups_BGM: Indices) -> Matrix:
        """Shape (B, G): DATAP of each group, which is the slowest device's sum over all others."""
        pairs = groups_BGM[:, :, :, None] * len(self.problem) + groups_BGM[:, :, None, :]
        slowest: Matrix = self._exchange.take(pairs).sum(axis=3).max(axis=2)
        return slowest

    def hops(self, lefts_BPM: Indices, rights_BPM: Indices, *, bound: bool = False) -> Matrix:
        """Shape (B, P): the bottleneck matching between pairs of groups; with `bound`, a lower bound of it."""
        count, pairs, size = lefts_BPM.shape
        rows_MX = lefts_BPM.reshape(-1, size).T * len(self.problem)
        columns_MX = rights_BPM.reshape(-1, size).T
        ranks_MMX = self._ranks.take(rows_MX[:, None] + columns_MX[None])
        limits = lower_bounds(ranks_MMX) if bound else bottlenecks(ranks_MMX)
        seconds: Matrix = self._levels[limits].reshape(count, pairs)
        return seconds

    def ranks_between(self, left_M: Indices, right_M: Indices) -> Ranks:
        """Shape (M, M): the links between two groups, ranked by their seconds."""
        ranks: Ranks = self._ranks.take(left_M[:, None] * len(self.problem) + right_M[None, :])
        return ranks

    def with_computing(self, talk_s: Vector, groups_BKM: Indices) -> Vector:
        """Shape (B,): seconds per step with computing, a lower bound for pipelines of these groups.

        The bound is reached where devices are alike in speed or pipelines have one stage. Otherwise it assumes
        pipelines that the links may not allow: `pipelines.composed` finds real ones, with their cost.
        """
        if self._alike_s is not None:
            return talk_s + self._alike_s
        compute_BKM = np.sort(self.problem.compute_s[groups_BKM], axis=2)
        if self.problem.in_step:
            return talk_s + self._slowest_s(compute_BKM)
        # 1 / seconds is supermodular in the devices of a pipeline, so that nothing beats pipelines of devices alike.
        return pace_s(talk_s[:, None] + self.problem.computing_s(compute_BKM), in_step=False)

    def _slowest_s(self, compute_BKM: Matrix) -> Vector:
        """Shape (B,): a bound in step, where all pipelines wait for the slowest. The slowest cannot be faster than
        the mean of all pipelines would be if each had devices alike in speed, nor than the slowest device of a group
        together with the fastest devices of the others."""
        mean_B = self.problem.computing_s(compute_BKM).mean(axis=1)
        fastest_BK, slowest_BK = compute_BKM[:, :, 0], compute_BKM[:, :, -1]
        others_BKK = np.repeat(fastest_BK[:, :, None], self.problem.stages, axis=2)
        stages = np.arange(self.problem.stages)
        others_BKK[:, stages, stages] = slowest_BK
        bound: Vector = np.maximum(mean_B, self.problem.computing_s(others_BKK).max(axis=1))
        return bound


def pace_s(pipelines_BM: Matrix, *, in_step: bool) -> Vector:
    """Shape (B,): seconds per step and pipeline, for M pipelines with these seconds each.

    In step (H = 1) all pipelines wait for the slowest. Otherwise the tokens of a pipeline count whenever they come, and
    the common pace is the mean of all paces: M / Σ 1 / seconds.
    """
    slowest: Vector = pipelines_BM.max(axis=1)
    if in_step:
        return slowest
    fastest_B1 = pipelines_BM.min(axis=1, keepdims=True)
    shares_BM = np.divide(fastest_B1, pipelines_BM, out=np.ones_like(pipelines_BM), where=pipelines_BM > 0)
    together: Vector = fastest_B1[:, 0] * pipelines_BM.shape[1] / shares_BM.sum(axis=1)
    return together


Ranks = NDArray[Any]
"""Integers of any width; narrow ones are faster."""

BY_SUBSETS = 10
"""Up to this size all subsets of columns are tried, for many matrices at once."""
AT_ONCE = 1 << 20
"""Entries of an intermediate array: the number that fits in a core's cache."""


def bottlenecks(ranks_MMX: Ranks) -> Ranks:
    """Shape (X,): for each of X square matrices, the smallest possible largest entry of a perfect matching."""
    size, _, count = ranks_MMX.shape
    if size > BY_SUBSETS:
        matrices_XMM = np.ascontiguousarray(ranks_MMX.transpose(2, 0, 1))
        found = [_by_search(*each) for each in zip(matrices_XMM, lower_bounds(ranks_MMX), strict=True)]
        return np.array(found, dtype=ranks_MMX.dtype)
    step = max(1, AT_ONCE // (8 << size))
    chunks = [_by_subsets(ranks_MMX[:, :, at : at + step]) for at in range(0, count, step)]
    return np.concatenate(chunks) if chunks else np.empty(0, ranks_MMX.dtype)


def best_matching(ranks_MM: Ranks, worth_MM: Matrix) -> Indices:
    """Shape (M,): the column of each row in the matching that has the smallest largest rank and, among those, the
    least worth."""
    limit = bottlenecks(ranks_MM[:, :, None])[0]
    forbidden = 2 * len(worth_MM) * (np.abs(worth_MM).max() + 1)
    return _assignment(np.where(ranks_MM <= limit, worth_MM, forbidden))


def lower_bounds(ranks_MMX: Ranks) -> Ranks:
    """Shape (X,): a lower bound for the largest entry of a perfect matching, which must match every row and every
    column."""
    rows, columns = ranks_MMX.min(axis=1).max(axis=0), ranks_MMX.min(axis=0).max(axis=0)
    bounds: Ranks = np.maximum(rows, columns)
    return bounds


# ---- all subsets ----


def _by_subsets(ranks_MMX: Ranks) -> Ranks:
    """best[S] = min over j in S of max(best[S without j], rank[|S| − 1, j]), level by level of |S|."""
    best: Ranks = np.zeros((1, ranks_MMX.shape[2]), ranks_MMX.dtype)
    for row, (before, column) in enumerate(_subsets(len(ranks_MMX))):
        best = np.maximum(best[before], ranks_MMX[row][column]).min(axis=1)
    everything: Ranks = best[0]
    return everything


@cache
def _subsets(size: int) -> tuple[tuple[Indices, Indices], ...]:
    """For each level two arrays of shape (subsets, elements): the index, one level below, of the subset without the
    element; and the element."""
    levels = []
    below = {0: 0}
    for count in range(1, size + 1):
        subsets = [bits for bits in range(1 << size) if bits.bit_count() == count]
        members = [[column for column in range(size) if bits >> column & 1] for bits in subsets]
        before = [
            [below[bits ^ 1 << column] for column in columns] for bits, columns in zip(subsets, members, strict=True)
        ]
        levels.append((np.array(before), np.array(members)))
        below = {bits: at for at, bits in enumerate(subsets)}
    return tuple(levels)


# ---- one matrix at a time ----


def _by_search(ranks_MM: Ranks, least: Any) -> Any:
    """The lowest limit under which a perfect matching exists, by binary search. In most cases it is the lower bound."""
    if _has_matching(ranks_MM <= least):
        return least
    limits = np.unique(ranks_MM[ranks_MM >= least])
    low, high = 0, len(limits) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if _has_matching(ranks_MM <= limits[middle]):
            high = middle
        else:
            low = middle
    return limits[high]


def _has_matching(allowed_MM: NDArray[np.bool_]) -> bool:
    return bool(allowed_MM[np.arange(len(allowed_MM)), _assignment(~allowed_MM)].all())


def _assignment(cost_MM: NDArray[Any]) -> Indices:
    """Shape (M,): the column of each row in the matching with the least cost.

    scipy needs half a second to load, so it is imported here: a forecast of a round places nothing.
    """
    from scipy.optimize import linear_sum_assignment

    columns: Indices = linear_sum_assignment(cost_MM)[1]
    return columns
