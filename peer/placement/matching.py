"""Bottleneck perfect matchings: pair two groups so that the worst pair is as good as can be.

Entries are ranks: integers in the order of the seconds they stand for, so that comparing them is exact and cheap.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from peer.placement.pairwise_network import Matrix
from peer.placement.stage_workload import Indices

Ranks = NDArray[Any]
"""Integers of any width: the narrower the faster."""

BY_SUBSETS = 10
"""Up to this size all subsets of columns are looked at, many matrices at a time."""
AT_ONCE = 1 << 20
"""Entries of an intermediate array: what stays in a core's cache."""


def bottlenecks(ranks_MMX: Ranks) -> Ranks:
    """Shape (X,): for each of X square matrices the smallest possible largest entry of a perfect matching."""
    size, _, count = ranks_MMX.shape
    if size > BY_SUBSETS:
        matrices_XMM = np.ascontiguousarray(ranks_MMX.transpose(2, 0, 1))
        found = [_by_search(*each) for each in zip(matrices_XMM, lower_bounds(ranks_MMX), strict=True)]
        return np.array(found, dtype=ranks_MMX.dtype)
    step = max(1, AT_ONCE // (8 << size))
    chunks = [_by_subsets(ranks_MMX[:, :, at : at + step]) for at in range(0, count, step)]
    return np.concatenate(chunks) if chunks else np.empty(0, ranks_MMX.dtype)


def best_matching(ranks_MM: Ranks, worth_MM: Matrix) -> Indices:
    """Shape (M,): the column of each row. Of the matchings with the smallest largest rank the one of least worth."""
    limit = bottlenecks(ranks_MM[:, :, None])[0]
    forbidden = 2 * len(worth_MM) * (np.abs(worth_MM).max() + 1)
    _, columns = linear_sum_assignment(np.where(ranks_MM <= limit, worth_MM, forbidden))
    chosen: Indices = np.asarray(columns, dtype=np.int64)
    return chosen


def lower_bounds(ranks_MMX: Ranks) -> Ranks:
    """Shape (X,): no matching has a smaller largest entry, for every row and every column must be matched."""
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
    """For each level: shape (subsets, elements): where the subset without an element stands one level below, and it."""
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
    """Binary search for the lowest limit under which a perfect matching exists. Mostly it is the lower bound."""
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
    rows, columns = linear_sum_assignment(~allowed_MM)
    return bool(allowed_MM[rows, columns].all())
