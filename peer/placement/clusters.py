"""Clusters of peers that hold the whole model between them and are alike in speed.

Ravnest (arXiv:2401.01728) makes its pipelines of such clusters: a cluster of any number of peers cuts the model by
what each of them can hold, so that memory adds up, and the slowest cluster holds up the others. Its genetic algorithm
minimises 100 · (memory short of the model) + (fastest − slowest cluster). Here the first goes before the second
whatever their units, and the search is exchanges of peers from several beginnings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dht.errors import BadInput
from peer.placement.pairwise_network import Matrix
from peer.placement.stage_workload import Indices, Vector

STARTS = 20
SMALL = 1e-12


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Peers by cluster, counted from 0.

    Attributes:
        members: of each cluster, ascending.
        memory_bytes, speeds: sums of each cluster.
    """

    members: tuple[tuple[int, ...], ...]
    memory_bytes: tuple[float, ...]
    speeds: tuple[float, ...]

    @property
    def spread(self) -> float:
        """The fastest cluster's speed less the slowest one's."""
        return max(self.speeds) - min(self.speeds)


def cluster(
    memory_bytes: Sequence[float],
    speeds: Sequence[float],
    model_bytes: float,
    *,
    count: int | None = None,
    seed: int = 0,
) -> Clusters:
    """As many clusters as can each hold the model, or as many as asked for, with little between fastest and slowest.

    `speeds`: work per second, in any unit. Raises BadInput if the peers cannot hold so many models.
    """
    memory, speed = np.asarray(memory_bytes, np.float64), np.asarray(speeds, np.float64)
    if memory.shape != speed.shape or memory.ndim != 1 or not len(memory):
        raise BadInput(f"memory of {memory.size} peers and speeds of {speed.size}; one of each per peer is needed")
    most = min(len(memory), int(memory.sum() // model_bytes)) if model_bytes > 0 else len(memory)
    if count is not None and not 1 <= count <= len(memory):
        raise BadInput(f"{count} clusters of {len(memory)} peers; there must be 1 to {len(memory)}")
    rng = np.random.default_rng(seed)
    for clusters in range(most, 0, -1) if count is None else [count]:
        found = _best(memory, speed, model_bytes, clusters, rng)
        if found is not None:
            return _clusters(memory, speed, found, clusters)
    wanted = f"{count} clusters" if count else "any cluster"
    raise BadInput(f"{memory.sum():.0f} bytes of memory do not let {wanted} hold a model of {model_bytes:.0f} bytes")


def _clusters(memory: Vector, speed: Vector, labels: Indices, count: int) -> Clusters:
    members = [tuple(np.flatnonzero(labels == number).tolist()) for number in range(count)]
    members.sort()
    return Clusters(
        members=tuple(members),
        memory_bytes=tuple(float(memory[list(peers)].sum()) for peers in members),
        speeds=tuple(float(speed[list(peers)].sum()) for peers in members),
    )


def _best(memory: Vector, speed: Vector, model: float, count: int, rng: np.random.Generator) -> Indices | None:
    """Labels of the best of several searches; None if none found room for the model in every cluster."""
    best, least = None, np.inf
    for start in range(STARTS):
        labels = _dealt(memory, count) if start == 0 else rng.permutation(np.arange(len(memory)) % count)
        labels, short, spread = _exchanged(memory, speed, model, labels, count)
        if short == 0 and spread < least:
            best, least = labels, spread
    return best


def _dealt(memory: Vector, count: int) -> Indices:
    """The largest first, each to the cluster with the least memory."""
    labels = np.zeros(len(memory), np.int64)
    held = np.zeros(count)
    for peer in np.argsort(-memory, kind="stable"):
        labels[peer] = held.argmin()
        held[labels[peer]] += memory[peer]
    return labels


def _exchanged(
    memory: Vector, speed: Vector, model: float, labels: Indices, count: int
) -> tuple[Indices, float, float]:
    """Move a peer or exchange two while that leaves less memory short, or else less between fastest and slowest."""
    labels = labels.copy()
    ones, others = np.triu_indices(len(labels), 1)
    # The cluster that a peer moves to; or the peer that it is exchanged with.
    movers = np.repeat(np.arange(len(labels)), count), np.tile(np.arange(count), len(labels))
    while True:
        held: Vector = np.bincount(labels, memory, count).astype(np.float64)
        fast: Vector = np.bincount(labels, speed, count).astype(np.float64)
        now = _goodness(held[None], fast[None], model)
        moves = labels[movers[0]], movers[1], memory[movers[0]], speed[movers[0]]
        swaps = labels[ones], labels[others], memory[ones] - memory[others], speed[ones] - speed[others]
        shift = [np.concatenate(both) for both in zip(moves, swaps, strict=True)]
        after = _goodness(*_shifted(held, fast, *shift), model)
        choice = int(np.lexsort((after[1], after[0]))[0])
        short, spread = float(now[0][0]), float(now[1][0])
        less = after[0][choice] < short - SMALL * model
        even = after[1][choice] < spread - SMALL * fast.max() and after[0][choice] <= short
        if not (less or even):
            return labels, short, spread
        if choice < len(movers[0]):
            labels[movers[0][choice]] = movers[1][choice]
        else:
            one, other = ones[choice - len(movers[0])], others[choice - len(movers[0])]
            labels[one], labels[other] = labels[other], labels[one]


def _shifted(
    held: Vector, fast: Vector, source: Indices, target: Indices, memory: Vector, speed: Vector
) -> tuple[Matrix, Matrix]:
    rows = np.arange(len(source))
    sums = []
    for now, shift in ((held, memory), (fast, speed)):
        after = np.repeat(now[None], len(rows), axis=0)
        after[rows, source] -= shift
        after[rows, target] += shift
        sums.append(after)
    return sums[0], sums[1]


def _goodness(held: Matrix, fast: Matrix, model: float) -> tuple[Vector, Vector]:
    """Memory short of the model, and the spread of speeds. Rounding does not count as short."""
    short = np.maximum(model * (1 - SMALL) - held, 0).sum(axis=1)
    return short, fast.max(axis=1) - fast.min(axis=1)
