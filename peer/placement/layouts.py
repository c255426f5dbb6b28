"""Layouts to begin with: random ones, and block and striped ones of the regions that the links show."""

from __future__ import annotations

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
from scipy.spatial.distance import squareform

from peer.placement.stage_workload import Indices, PlacementProblem


def random_layouts(problem: PlacementProblem, count: int, rng: np.random.Generator) -> Indices:
    """Shape (count, devices)."""
    return rng.permuted(np.tile(np.arange(len(problem)), (count, 1)), axis=1)


def block(problem: PlacementProblem, order: Indices) -> Indices:
    """Stage i holds the i-th run of M devices in this order: averaging is near, activations travel."""
    assert len(order) == len(problem), "an order of all devices"
    return order.copy()


def striped(problem: PlacementProblem, order: Indices) -> Indices:
    """Stage i holds every K-th device from the i-th: each stage has some of every region, activations stay near."""
    placed, spares = order[: problem.placed], order[problem.placed :]
    return np.concatenate([placed.reshape(problem.pipelines, problem.stages).T.ravel(), spares])


def by_regions(problem: PlacementProblem) -> Indices:
    """Shape (devices,): an order in which devices with fast links between them stand together.

    The leaves of an average-linkage tree over the seconds of a hop. Spares come last: those that are farthest from all
    others, or slow.
    """
    devices = len(problem)
    if devices < 3:
        return np.arange(devices)
    computing_s = problem.compute_s / max(1, problem.stages - 1)
    far = np.argsort(problem.hop_s.sum(axis=1) + devices * computing_s, kind="stable")
    kept, spares = np.sort(far[: problem.placed]), far[problem.placed :]
    if len(kept) < 3:
        return np.concatenate([kept, spares])
    distances = squareform(problem.hop_s[np.ix_(kept, kept)], checks=False)
    tree = linkage(distances, method="average")
    if devices <= ORDERED:
        tree = optimal_leaf_ordering(tree, distances)
    return np.concatenate([kept[leaves_list(tree)], spares])


ORDERED = 256
"""Up to so many devices neighbouring regions stand beside each other, too: that takes time with the cube of them."""


def labels_of(problem: PlacementProblem, layouts_BN: Indices) -> Indices:
    """Shape (B, devices): the group of each device; spares have K."""
    labels = np.empty_like(layouts_BN)
    group = np.minimum(np.arange(len(problem)) // problem.pipelines, problem.stages)
    np.put_along_axis(labels, layouts_BN, np.broadcast_to(group, layouts_BN.shape), axis=1)
    return labels


def layouts_of(labels_BN: Indices) -> Indices:
    """The layouts with these labels; devices of a group in ascending order."""
    return np.argsort(labels_BN, axis=1, kind="stable")


def canonical(problem: PlacementProblem, layout_N: Indices) -> bytes:
    """The same bytes for all layouts that differ in the order of groups, or of devices within one."""
    groups = np.sort(layout_N[: problem.placed].reshape(problem.stages, problem.pipelines), axis=1)
    return groups[np.argsort(groups[:, 0])].astype(np.int32).tobytes()
