"""Open-loop paths: the order in which to visit all groups so that the path is shortest, with free ends.

Held and Karp's dynamic programming over subsets, for many graphs at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

from peer.planning.placement.pairwise_network import Matrix
from peer.planning.placement.stage_workload import Indices, Vector

EXACT = 10
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
    widest = STARTS * nodes * nodes if nodes > EXACT else max(before.size for before, _ in _subsets(nodes).steps)
    step = max(1, AT_ONCE // widest)
    chunks = (edges_BKK[at : at + step] for at in range(0, count, step))
    if nodes > EXACT:
        return np.concatenate([_good_paths(chunk, STARTS)[1] for chunk in chunks])
    return np.concatenate([_levels(_subsets(nodes), chunk)[-1].min(axis=0) for chunk in chunks])


def shortest_path(edges_KK: Matrix) -> list[int]:
    """The nodes in the order of the shortest path through all of them."""
    nodes = len(edges_KK)
    if nodes > EXACT:
        return [int(node) for node in _good_paths(edges_KK[None], nodes)[0][0]]
    subsets = _subsets(nodes)
    levels = _levels(subsets, edges_KK[None])
    at, path = int(levels[-1].argmin()), []
    for number in reversed(range(nodes)):
        path.append(subsets.last[number][at])
        if number:
            before, taken = subsets.steps[number - 1]
            at = int(before[at][(levels[number - 1][before[at], 0] + edges_KK.ravel()[taken[at]]).argmin()])
    return path[::-1]


# ---- exact ----


@dataclass(frozen=True)
class _Subsets:
    """Index tables for the exact search. A state is a subset of nodes together with the last one visited; a level
    holds the states of all subsets of one size."""

    last: tuple[list[int], ...]
    """For each level, the last node of each state."""
    steps: tuple[tuple[Indices, Indices], ...]
    """For each level from the second, two arrays of shape (states, subset size − 1): the previous state, and the
    edge taken."""


@cache
def _subsets(nodes: int) -> _Subsets:
    last, steps, below = [list(range(nodes))], [], {(1 << node, node): node for node in range(nodes)}
    for size in range(2, nodes + 1):
        states = [(subset, end) for subset in combinations(range(nodes), size) for end in subset]
        keys = [(sum(1 << node for node in subset), end) for subset, end in states]
        others = [[node for node in subset if node != end] for subset, end in states]
        before = [[below[key ^ 1 << end, node] for node in rest] for (key, end), rest in zip(keys, others, strict=True)]
        taken = [[node * nodes + end for node in rest] for (_, end), rest in zip(keys, others, strict=True)]
        steps.append((np.array(before), np.array(taken)))
        last.append([end for _, end in states])
        below = {key: at for at, key in enumerate(keys)}
    return _Subsets(tuple(last), tuple(steps))


def _levels(subsets: _Subsets, edges_BKK: Matrix) -> list[Matrix]:
    """For each level, shape (states, B): the length of the shortest path of each state."""
    edges_EB = np.ascontiguousarray(edges_BKK.reshape(len(edges_BKK), -1).T)
    levels = [np.zeros((len(subsets.last[0]), len(edges_BKK)))]
    for before, taken in subsets.steps:
        levels.append((levels[-1][before] + edges_EB[taken]).min(axis=1))
    return levels


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
