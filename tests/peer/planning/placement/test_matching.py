"""Bottleneck matchings against all permutations."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from peer.planning.placement import communication_cost
from peer.planning.placement.communication_cost import best_matching, bottlenecks

FIXED = settings(derandomize=True, deadline=None, max_examples=100)


def by_permutations(ranks: np.ndarray) -> int:
    rows = np.arange(len(ranks))
    return min(int(ranks[rows, list(columns)].max()) for columns in permutations(range(len(ranks))))


@FIXED
@given(size=st.integers(1, 6), most=st.integers(0, 30), count=st.integers(0, 5), seed=st.integers(0, 99))
def test_the_smallest_largest_entry(size: int, most: int, count: int, seed: int) -> None:
    ranks = np.random.default_rng(seed).integers(0, most + 1, (size, size, count)).astype(np.uint16)
    found = bottlenecks(ranks)
    assert found.tolist() == [by_permutations(ranks[:, :, at]) for at in range(count)]


@pytest.mark.parametrize("size", [2, 5, 9])
def test_both_ways_agree(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large groups are matched one by one, small ones many at a time."""
    ranks = np.random.default_rng(size).integers(0, 40, (size, size, 50)).astype(np.uint16)
    at_once = bottlenecks(ranks)
    monkeypatch.setattr(communication_cost, "BY_SUBSETS", 1)
    assert (bottlenecks(ranks) == at_once).all()


def test_a_large_group() -> None:
    """A matching is hidden among worse links."""
    size = 40
    rng = np.random.default_rng(0)
    ranks = rng.integers(50, 90, (size, size))
    ranks[np.arange(size), rng.permutation(size)] = rng.integers(0, 50, size)
    assert bottlenecks(ranks[:, :, None])[0] == by_search(ranks)


def by_search(ranks: np.ndarray) -> int:
    """The same with another solver."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    for limit in np.unique(ranks):
        if (maximum_bipartite_matching(csr_matrix(ranks <= limit)) >= 0).all():
            return int(limit)
    raise AssertionError("the largest entry allows everything")


@FIXED
@given(worth=arrays.arrays(np.float64, (4, 4), elements=st.floats(0, 1e6)), seed=st.integers(0, 99))
def test_among_the_best_matchings_the_one_of_least_worth(worth: np.ndarray, seed: int) -> None:
    ranks = np.random.default_rng(seed).integers(0, 6, (4, 4))
    rows, limit = np.arange(4), by_permutations(ranks)
    chosen = best_matching(ranks, worth)
    assert sorted(chosen) == [0, 1, 2, 3]
    assert ranks[rows, chosen].max() == limit
    least = min(
        worth[rows, list(columns)].sum()
        for columns in permutations(range(4)) if ranks[rows, list(columns)].max() == limit
    )  # fmt: skip
    assert worth[rows, chosen].sum() == pytest.approx(least)
