"""Layouts with which a search begins: at random, and by what the links and the speeds show of machines and regions."""

from __future__ import annotations

import numpy as np

from peer.planning.placement.pairwise_network import Matrix
from peer.planning.placement.stage_workload import Indices, PlacementProblem

LEVELS = 6
"""The number of thresholds of a link at which devices are seen as one machine, or as one region."""
ORDERED = 256
"""Up to this number of devices the leaves of a tree are ordered so that near regions are neighbours, which takes cubic
time."""


def random_layouts(problem: PlacementProblem, count: int, rng: np.random.Generator) -> Indices:
    """Random layouts, shape (count, devices)."""
    return rng.permuted(np.tile(np.arange(len(problem)), (count, 1)), axis=1)


def seeds(problem: PlacementProblem) -> Indices:
    """Shape (B, devices): layouts that suit machines of several devices, regions, and unlike speeds."""
    orders = [by_regions(problem), problem.compute_s.argsort(kind="stable")]
    found = [shape(problem, order) for order in orders for shape in (block, striped)]
    near = orders[0].argsort()
    for machine_N in machines(problem):
        found += [side_by_side(problem, machine_N, near), block(problem, _by_size(machine_N, near))]
    return np.unique(np.stack(found), axis=0)


def block(problem: PlacementProblem, order: Indices) -> Indices:
    """Stage i holds the i-th run of M devices in this order: averaging stays near, activations travel far."""
    assert len(order) == len(problem), "an order of all devices"
    return order.copy()


def striped(problem: PlacementProblem, order: Indices) -> Indices:
    """Stage i holds every K-th device, starting with the i-th: each stage has some devices of every region, and
    activations stay near."""
    placed, spares = order[: problem.placed], order[problem.placed :]
    return np.concatenate([placed.reshape(problem.pipelines, problem.stages).T.ravel(), spares])


def side_by_side(problem: PlacementProblem, machine_N: Indices, near_N: Indices) -> Indices:
    """Each pipeline runs through machines: M of them hold the same neighbouring stages, as many as each of the M has
    devices for. The largest come first, and what is left of a machine counts as a smaller one.

    A cut is as fast as its slowest link, so one machine too few in a row makes the whole cut slow. `near_N` holds the
    place of each device in the order of the regions.
    """
    left = [members[near_N[members].argsort()].tolist() for members in _members(machine_N)]
    stages: list[list[int]] = []
    while len(stages) < problem.stages:
        left.sort(key=len, reverse=True)
        row = left[: problem.pipelines]
        deep = min(len(row[-1]), problem.stages - len(stages)) if len(row) == problem.pipelines else 0
        if not deep:
            break
        row = [machine for machine in left if len(machine) >= deep][-problem.pipelines :]  # the smallest that suffice
        stages += [[machine[depth] for machine in row] for depth in range(deep)]
        for machine in row:
            del machine[:deep]
    held = [device for stage in stages for device in stage]
    rest = sorted((device for machine in left for device in machine), key=lambda device: near_N[device])
    return np.array(held + rest, dtype=np.int64)


def machines(problem: PlacementProblem) -> list[Indices]:
    """Which machine each device belongs to, at several thresholds: devices that chains of links at least so fast
    connect are one machine. The thresholds are those below the largest steps from one link to the next slower one."""
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(problem) < 2:
        return []
    tree = linkage(_condensed(problem.hop_s), method="single")
    heights = np.unique(tree[:, 2])
    steps = np.diff(np.log(np.maximum(heights, 1e-9)))
    chosen = heights[np.sort(steps.argsort()[::-1][:LEVELS])]
    return [np.asarray(fcluster(tree, height * (1 + 1e-9), "distance"), dtype=np.int64) for height in chosen]


def by_regions(problem: PlacementProblem) -> Indices:
    """Shape (devices,): an order in which devices with fast links between them are neighbours.

    These are the leaves of an average-linkage tree over the seconds of a hop. Spares come last: the devices that are
    far from all others, or slow.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering

    devices = len(problem)
    computing_s = problem.compute_s / max(1, problem.stages - 1)
    far = np.argsort(problem.hop_s.sum(axis=1) + devices * computing_s, kind="stable")
    kept, spares = np.sort(far[: problem.placed]), far[problem.placed :]
    if len(kept) < 3:
        return np.concatenate([kept, spares])
    distances = _condensed(problem.hop_s[np.ix_(kept, kept)])
    tree = linkage(distances, method="average")
    if devices <= ORDERED:
        tree = optimal_leaf_ordering(tree, distances)
    return np.concatenate([kept[leaves_list(tree)], spares])


def _members(machine_N: Indices) -> list[Indices]:
    return [np.flatnonzero(machine_N == machine) for machine in np.unique(machine_N)]


def _by_size(machine_N: Indices, near_N: Indices) -> Indices:
    """The devices of large machines first, each machine's together."""
    members = sorted(_members(machine_N), key=lambda each: (-len(each), near_N[each].min()))
    return np.concatenate(members)


def _condensed(distances_NN: Matrix) -> Matrix:
    """As scipy wants distances: the upper triangle in one row."""
    upper: Matrix = distances_NN[np.triu_indices(len(distances_NN), 1)]
    return upper
