"""DT-FM's own workload, what a layout costs, and the best of all layouts, where there are few enough to try each."""

from __future__ import annotations

import numpy as np

from peer.planning.placement.communication_cost import CommunicationCost
from peer.planning.placement.pairwise_network import Network
from peer.planning.placement.pipelines import composed
from peer.planning.placement.place import in_order
from peer.planning.placement.placed_pipelines import Placement
from peer.planning.placement.stage_workload import Indices, PlacementProblem, StageWorkload
from tests.peer.planning.placement.every_layout import scored

PAPER = StageWorkload(stages=8, stage_bytes=0.65e9, cut_bytes=0.47124922275543213e9)
"""DT-FM's own (arXiv:2206.01288, its code at commit cda948f): GPT3-XL in float32, three of 24 layers per stage, and
61.035 sequences × 2,048 tokens × 2,024 (sic) × 2 bytes / 2³⁰, which its cost model takes for 10⁹ bytes."""


def best_of_all(problem: PlacementProblem) -> tuple[Indices, float]:
    """The cheapest layout and its cost. Raises BadInput if there are more than two million partitions."""
    best, least = np.arange(len(problem)), np.inf
    for layouts, costs in scored(problem):
        if costs.min() < least:
            best, least = layouts[costs.argmin()], float(costs.min())
    return best, least


def placement_of(problem: PlacementProblem, network: Network, layout: Indices) -> Placement:
    """The pipelines of a layout: its groups along the shortest path, matched with their neighbours."""
    scorer = CommunicationCost(problem)
    return in_order(problem, network, composed(scorer, scorer.groups(layout[None])[0]).stages_KM)
