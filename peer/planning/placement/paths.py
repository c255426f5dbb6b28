"""Open-loop paths: the order in which to visit all groups so that the path is shortest, with free ends.

Held and Karp's dynamic programming over subsets, for many graphs at a time, from both ends to the middle: a path of K
nodes is two halves that meet, and since the graphs are symmetric one table serves both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

from peer.planning.placement.pairwise_network import Matrix
from peer.planning.placement.stage_workload import Indices, Vector

EXACT = 14
"""Up to this number of nodes the path is the shortest. Beyond it, no exchange of two links can shorten the path."""
STARTS = 2
"""Beyond `EXACT` nodes, the number of first nodes that are tried for a path's length. For the path itself all nodes
are tried."""
AT_ONCE = 1 << 18
"""Entries of an intermediate array."""


def path_lengths(edges_BKK: Matrix) -> Vector:
    """Shape (B,): for each of B symmetric graphs, the length of the shortest path through all nodes."""
    count, nodes, _ = edges_BKK.shape
    if nodes == 1 or not count:
        return np.zeros(count)
    if nodes > EXACT:
        step = max(1, AT_ONCE // (STARTS * nodes * nodes))
        return np.concatenate([_good_paths(edges_BKK[at : at + step], STARTS)[1] for at in range(0, count, step)])
    halves = _halves(nodes)
    edges_EB = edges_BKK.reshape(count, -1).T
    step = max(1, AT_ONCE // halves.widest)
    chunks = [_lengths(halves, edges_EB[:, at : at + step]) for at in range(0, count, step)]
    return np.concatenate(chunks) if chunks else np.empty(0)


def shortest_path(edges_KK: Matrix) -> list[int]:
    """The nodes in the order of the shortest path through all of them."""
    nodes = len(edges_KK)
    if nodes == 1:
        return [0]
    if nodes > EXACT:
        return [int(node) for node in _good_paths(edges_KK[None], nodes)[0][0]]
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
    """Index tables for the exact search. A state is a subset of nodes together with the last one visited."""

    nodes: int
    states: tuple[list[tuple[int, int]], ...]
    steps: tuple[tuple[Indices, Indices], ...]
    """For each level from the second, two arrays of shape (states, subset size − 1): the previous state, and the
    edge taken."""
    joins: tuple[Indices, Indices, Indices]
    """Three arrays of shape (joins,): the state of one half, the state of the other, and the edge between them."""
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
    """The nodes of a half, from its last to its first."""
    nodes = [halves.states[level][at][1]]
    while level:
        before, taken = halves.steps[level - 1]
        choice = int((levels[level - 1][before[at]] + edges_E1[taken[at]])[:, 0].argmin())
        at, level = int(before[at][choice]), level - 1
        nodes.append(halves.states[level][at][1])
    return nodes


# ---- many nodes ----


def _good_paths(edges_BKK: Matrix, starts: int) -> tuple[Indices, Vector]:
    """Good paths, shape (B, K), and their lengths, shape (B,). Nearest-neighbour paths start at the `starts` nodes
    that are farthest from all others; two links are exchanged while that helps, and the best path is kept."""
    count, nodes, _ = edges_BKK.shape
    starts = min(starts, nodes)
    firsts_BS = np.argsort(-edges_BKK.sum(axis=2), axis=1, kind="stable")[:, :starts]
    graphs_P = np.repeat(np.arange(count), starts)
    paths_PK = _nearest(edges_BKK, graphs_P, firsts_BS.ravel())
    _exchange_links(edges_BKK, graphs_P, paths_PK)
    lengths_BS = edges_BKK[graphs_P[:, None], paths_PK[:, :-1], paths_PK[:, 1:]].sum(axis=1).reshape(count, starts)
    best_B = lengths_BS.argmin(axis=1)
    return paths_PK[np.arange(count) * starts + best_B], lengths_BS[np.arange(count), best_B]


def _nearest(edges_BKK: Matrix, graphs_P: Indices, firsts_P: Indices) -> Indices:
    """Shape (P, K): paths that begin at each first node and always go on to the nearest remaining node."""
    rows, nodes = np.arange(len(graphs_P)), edges_BKK.shape[1]
    paths_PK = np.empty((len(rows), nodes), np.int64)
    visited_PK = np.zeros((len(rows), nodes))
    last_P = firsts_P
    for at in range(nodes):
        paths_PK[:, at] = last_P
        visited_PK[rows, last_P] = np.inf
        last_P = (edges_BKK[graphs_P, last_P] + visited_PK).argmin(axis=1)
    return paths_PK


def _exchange_links(edges_BKK: Matrix, graphs_P: Indices, paths_PK: Indices) -> None:
    """Reverse, in each path, the stretch that saves most, until none saves anything."""
    nodes = paths_PK.shape[1]
    places = np.arange(nodes)
    going = np.arange(len(paths_PK))
    least_B = 1e-12 * np.maximum(edges_BKK.max(axis=(1, 2)) * nodes, np.finfo(np.float64).tiny)
    while len(going):
        paths = paths_PK[going]
        saved = _savings(edges_BKK[graphs_P[going, None, None], paths[:, :, None], paths[:, None, :]])
        flat = saved.reshape(len(going), -1)
        best = flat.argmax(axis=1)
        helps = flat[np.arange(len(going)), best] > least_B[graphs_P[going]]
        going, paths, best = going[helps], paths[helps], best[helps, None]
        first, last = best // nodes, best % nodes
        turned = np.where((places >= first) & (places <= last), first + last - places, places)
        paths_PK[going] = np.take_along_axis(paths, turned, axis=1)


def _savings(steps_PKK: Matrix) -> Matrix:
    """Entry (i, j) with i < j: what is saved by reversing the stretch from place i to place j, which may contain an
    end of the path. `steps_PKK` holds the edges from place to place."""
    nodes = steps_PKK.shape[1]
    inner = np.arange(nodes - 1)
    taken_PC = steps_PKK[:, inner, inner + 1]
    saved = np.zeros_like(steps_PKK)
    saved[:, 1:, :] += taken_PC[:, :, None] - steps_PKK[:, :-1, :]
    saved[:, :, :-1] += taken_PC[:, None, :] - steps_PKK[:, :, 1:]
    upper: Matrix = np.triu(saved, 1)
    return upper
