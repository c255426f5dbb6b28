"""All layouts there are, one by one: what a search of few devices is held against."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice
from math import factorial

import numpy as np

from dht.errors import BadInput
from peer.planning.placement.communication_cost import CommunicationCost
from peer.planning.placement.stage_workload import Indices, PlacementProblem, Vector

MOST = 2_000_000
"""The largest number of partitions that are all scored; that takes some minutes."""
AT_ONCE = 512


def partitions(problem: PlacementProblem) -> int:
    """The number of partitions: N! / (M!^K · K! · spares!)."""
    size, groups, devices = problem.pipelines, problem.stages, len(problem)
    alike: int = factorial(size) ** groups * factorial(groups) * factorial(devices - problem.placed)
    return factorial(devices) // alike


def scored(problem: PlacementProblem) -> Iterator[tuple[Indices, Vector]]:
    """All layouts and their costs, some hundreds at a time. Raises BadInput if there are more than two million."""
    count = partitions(problem)
    if count > MOST:
        raise BadInput(f"{len(problem)} devices have {count} partitions; at most {MOST} are looked at one by one")
    scorer = CommunicationCost(problem)
    everything = _layouts(problem)
    while chunk := list(islice(everything, AT_ONCE)):
        layouts = np.array(chunk)
        yield layouts, scorer.score(layouts).cost_s


def _layouts(problem: PlacementProblem) -> Iterator[list[int]]:
    spares = len(problem) - problem.placed
    for left_out in combinations(range(len(problem)), spares):
        rest = [device for device in range(len(problem)) if device not in left_out]
        for groups in _groupings(rest, problem.pipelines):
            yield [*groups, *left_out]


def _groupings(devices: list[int], size: int) -> Iterator[list[int]]:
    """All ways to cut `devices` into groups of one size; the first remaining device begins the next group."""
    if not devices:
        yield []
        return
    first, *others = devices
    for rest in combinations(others, size - 1):
        left = [device for device in others if device not in rest]
        for groups in _groupings(left, size):
            yield [first, *rest, *groups]
