"""Open-loop paths: in which order to visit all groups so that the way is shortest, with free ends.

Held and Karp's dynamic programming over subsets, many graphs at a time, from both ends to the middle: a path of K nodes
is two halves that meet, and since the graphs are symmetric one table serves both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

from peer.plan.network import Matrix
from peer.plan.placing.work import Indices, Vector

EXACT = 14
"""Up to so many nodes the path is the shortest; beyond, one that no exchange of two links shortens."""
AT_ONCE = 1 << 18
"""Entries of an intermediate array."""


def path_lengths(edges_BKK: Matrix) -> Vector:
    """Shape (B,): the length of the shortest path through all nodes of each of B symmetric graphs."""
    count, nodes, _ = edges_BKK.shape
    if nodes == 1:
        return np.zeros(count)
    if nodes > EXACT:
        return np.array([_length(edges, _exchanged(edges)) for edges in edges_BKK])
    halves = _halves(nodes)
    edges_EB = edges_BKK.reshape(count, -1).T
    step = max(1, AT_ONCE // halves.widest)
    chunks = [_lengths(halves, edges_EB[:, at : at + step]) for at in range(0, count, step)]
    return np.concatenate(chunks) if chunks else np.empty(0)


def shortest_path(edges_KK: Matrix) -> list[int]:
    """The nodes in the order of the shortest path."""
    nodes = len(edges_KK)
    if nodes == 1:
        return [0]
    if nodes > EXACT:
        return _exchanged(edges_KK)
    halves = _halves(nodes)
    edges_E1 = np.ascontiguousarray(edges_KK).reshape(-1, 1)
    levels = _levels(halves, edges_E1)
    first, second, link = halves.joins
    low, high = levels[nodes // 2 - 1], levels[-1]
    at = int((low[first] + edges_E1[link] + high[second])[:, 0].argmin())
    left = _traced(halves, levels, edges_E1, nodes // 2 - 1, int(first[at]))
    right = _traced(halves, levels, edges_E1, len(levels) - 1, int(second[at]))
    return left[::-1] + right


# ---- exact ----


@dataclass(frozen=True)
class _Halves:
    """Where to look in the tables. A state is a subset of nodes and the last one visited."""

    nodes: int
    states: tuple[list[tuple[int, int]], ...]
    steps: tuple[tuple[Indices, Indices], ...]
    """For each level from the second: shape (states, subset size − 1): the state before, and the edge taken."""
    joins: tuple[Indices, Indices, Indices]
    """Shape (joins,): the state of one half, that of the other, and the edge between."""
    widest: int


@cache
def _halves(nodes: int) -> _Halves:
    states: list[list[tuple[int, int]]] = []
    where: list[dict[tuple[int, int], int]] = []
    steps = []
    for size in range(1, nodes - nodes // 2 + 1):
        level = [
            (sum(1 << node for node in subset), last) for subset in combinations(range(nodes), size) for last in subset
        ]
        if size > 1:
            steps.append(_steps(level, where[-1], nodes))
        states.append(level)
        where.append({state: at for at, state in enumerate(level)})
    joins = _joins(states[nodes // 2 - 1], where[nodes // 2 - 1], where[-1], nodes)
    widest = max(len(joins[0]), *(before.size for before, _ in steps)) if steps else len(joins[0])
    return _Halves(nodes=nodes, states=tuple(states), steps=tuple(steps), joins=joins, widest=widest)


def _steps(level: list[tuple[int, int]], below: dict[tuple[int, int], int], nodes: int) -> tuple[Indices, Indices]:
    before, taken = [], []
    for subset, last in level:
        rest = subset ^ 1 << last
        others = [node for node in range(nodes) if rest >> node & 1]
        before.append([below[rest, node] for node in others])
        taken.append([node * nodes + last for node in others])
    return np.array(before), np.array(taken)


def _joins(
    level: list[tuple[int, int]], low: dict[tuple[int, int], int], high: dict[tuple[int, int], int], nodes: int
) -> tuple[Indices, Indices, Indices]:
    everything = (1 << nodes) - 1
    found = [
        (low[subset, last], high[everything ^ subset, node], last * nodes + node)
        for subset, last in level
        # Of two halves of one size either may be called the first.
        if nodes % 2 or subset & 1
        for node in range(nodes)
        if not subset >> node & 1
    ]
    first, second, link = np.array(found).T
    return first, second, link


def _levels(halves: _Halves, edges_EB: Matrix) -> list[Matrix]:
    levels = [np.zeros((len(halves.states[0]), edges_EB.shape[1]))]
    for before, taken in halves.steps:
        levels.append((levels[-1][before] + edges_EB[taken]).min(axis=1))
    return levels


def _lengths(halves: _Halves, edges_EB: Matrix) -> Vector:
    levels = _levels(halves, np.ascontiguousarray(edges_EB))
    first, second, link = halves.joins
    low = levels[halves.nodes // 2 - 1]
    lengths: Vector = (low[first] + edges_EB[link] + levels[-1][second]).min(axis=0)
    return lengths


def _traced(halves: _Halves, levels: list[Matrix], edges_E1: Matrix, level: int, at: int) -> list[int]:
    """The nodes of a half, from its last back to its first."""
    nodes = [halves.states[level][at][1]]
    while level:
        before, taken = halves.steps[level - 1]
        choice = int((levels[level - 1][before[at]] + edges_E1[taken[at]])[:, 0].argmin())
        at, level = int(before[at][choice]), level - 1
        nodes.append(halves.states[level][at][1])
    return nodes


# ---- many nodes ----


def _exchanged(edges_KK: Matrix) -> list[int]:
    """The best of the nearest-neighbour paths from every node, after exchanges of two links while any of them helps."""
    starts = [_nearest(edges_KK, start) for start in range(len(edges_KK))]
    path = np.array(min(starts, key=lambda nodes: _length(edges_KK, nodes)))
    while True:
        saved = _savings(edges_KK, path)
        first, last = np.unravel_index(int(saved.argmax()), saved.shape)
        if saved[first, last] <= 1e-12 * max(1.0, _length(edges_KK, path.tolist())):
            return [int(node) for node in path]
        path[first : last + 1] = path[first : last + 1][::-1].copy()


def _nearest(edges_KK: Matrix, start: int) -> list[int]:
    left = np.ones(len(edges_KK), dtype=bool)
    path = [start]
    left[start] = False
    while left.any():
        path.append(int(np.where(left, edges_KK[path[-1]], np.inf).argmin()))
        left[path[-1]] = False
    return path


def _savings(edges_KK: Matrix, path: Indices) -> Matrix:
    """Entry (i, j): what turning the stretch from i to j round saves. The ends of the path hang on nothing."""
    nodes = len(path)
    padded = np.zeros((nodes + 1, nodes + 1))
    padded[:nodes, :nodes] = edges_KK
    before = np.concatenate([[nodes], path[:-1]])
    after = np.concatenate([path[1:], [nodes]])
    now = padded[before, path][:, None] + padded[path, after][None, :]
    then = padded[before[:, None], path[None, :]] + padded[path[:, None], after[None, :]]
    return np.triu(now - then, 1)


def _length(edges_KK: Matrix, nodes: list[int]) -> float:
    return float(edges_KK[nodes[:-1], nodes[1:]].sum())
