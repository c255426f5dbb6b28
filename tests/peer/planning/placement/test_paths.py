"""Shortest open paths against all permutations."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest

from peer.planning.placement import paths
from peer.planning.placement.paths import path_lengths, shortest_path


def graphs(nodes: int, count: int, seed: int, most: float = 1.0) -> np.ndarray:
    edges = np.random.default_rng(seed).uniform(0, most, (count, nodes, nodes))
    return np.asarray(edges + edges.transpose(0, 2, 1))


def length(edges: np.ndarray, path: list[int]) -> float:
    return float(sum(edges[one, other] for one, other in pairwise(path)))


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5, 6, 7])
def test_no_order_is_shorter(nodes: int) -> None:
    edges = graphs(nodes, 10, seed=nodes)
    shortest = [min(length(one, list(path)) for path in permutations(range(nodes))) for one in edges]
    assert path_lengths(edges) == pytest.approx(shortest)
    for one, least in zip(edges, shortest, strict=True):
        path = shortest_path(one)
        assert sorted(path) == list(range(nodes))
        assert length(one, path) == pytest.approx(least)


def test_more_graphs_than_fit_at_once() -> None:
    edges = graphs(5, 700, seed=0)
    paths_of_each = [path_lengths(one[None])[0] for one in edges]
    assert (path_lengths(edges) == paths_of_each).all()


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [8, 10])
def test_lengths_and_paths_agree(nodes: int) -> None:
    edges = graphs(nodes, 2, seed=nodes)
    assert path_lengths(edges) == pytest.approx([length(one, shortest_path(one)) for one in edges])


def test_many_nodes_get_a_good_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the exact limit: within a tenth of the shortest, in the mean of twenty graphs."""
    edges = graphs(10, 20, seed=1)
    exact = path_lengths(edges)
    monkeypatch.setattr(paths, "EXACT", 4)
    found = path_lengths(edges)
    assert (found >= exact - 1e-12).all()
    assert float((found / exact).mean()) < 1.1
    assert sorted(shortest_path(graphs(40, 1, seed=2)[0])) == list(range(40))


@pytest.mark.parametrize("nodes", [15, 30, 64])
def test_a_line_of_many_nodes_is_found(nodes: int) -> None:
    places = np.random.default_rng(3).permutation(nodes).astype(np.float64)
    edges = np.abs(places[:, None] - places[None, :])
    assert path_lengths(edges[None])[0] == pytest.approx(nodes - 1)


@pytest.mark.parametrize("nodes", [16, 40])
def test_many_graphs_of_many_nodes_are_each_as_if_alone(nodes: int) -> None:
    """However many are looked at together; and the path that is kept is as short as was said, or shorter."""
    edges = graphs(nodes, 300, seed=nodes)
    lengths = path_lengths(edges)
    assert len(lengths) == 300
    for at in range(0, 300, 50):
        assert lengths[at] == path_lengths(edges[at : at + 1])[0]
        path = shortest_path(edges[at])
        assert sorted(path) == list(range(nodes))
        assert length(edges[at], path) <= lengths[at] * (1 + 1e-12)
        assert length(edges[at], path) <= min(length(edges[at], turned) for turned in turns(path)) * (1 + 1e-9)


def turns(path: list[int]) -> list[list[int]]:
    """All ways to turn one stretch round."""
    pairs = [(first, last) for last in range(1, len(path)) for first in range(last)]
    return [path[:first] + path[first : last + 1][::-1] + path[last + 1 :] for first, last in pairs]
