"""Which device holds which stage of which pipeline (DT-FM, arXiv:2206.01288), and what bounds that layout.

`place` does all of it: `layout_search.search` puts the devices that can hold a stage into groups, one per stage; the
shortest path through the groups says which stage each of them holds; matchings between neighbouring groups make the
pipelines. Where devices have unlike speeds, pipelines are made and devices swapped by the cost of a step
(`pipelines.composed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from peer.planning.placement.communication_cost import CommunicationCost, OnProgress
from peer.planning.placement.layout_search import Effort, search, usual
from peer.planning.placement.pairwise_network import Network
from peer.planning.placement.pipelines import LEAST, PipelineLayout, best_of, composed, perturbed
from peer.planning.placement.placed_pipelines import Placement, counted, placed
from peer.planning.placement.stage_workload import Indices, PlacementProblem, StageWorkload, problem_of

COMPOSED = 8
"""The number of layouts of a search for which pipelines are composed, where devices differ in speed."""
QUICK = Effort(evaluations=2_000, patience=20, shaken=0)
"""The effort for each smaller number of pipelines that may be better."""


def place(
    network: Network,
    work: StageWorkload,
    *,
    memory_bytes: Sequence[float] | None = None,
    speeds: Sequence[float] | None = None,
    pipelines: int | None = None,
    fewer: bool = False,
    effort: Effort | None = None,
    seed: int = 0,
    tell: OnProgress | None = None,
) -> Placement:
    """The cheapest layout found. The same arguments give the same layout.

    By default there are as many pipelines as the devices suffice for; the remaining devices are spares. With `fewer`,
    and without `pipelines`, there may be fewer if these make more steps per second in total, for example where one slow
    device would delay all. `memory_bytes` and `speeds` hold one value per peer. `tell` is called with the number of
    layouts considered so far. Raises BadInput if the stages do not fit on the devices.
    """

    def of(count: int | None, effort: Effort | None) -> tuple[PlacementProblem, Placement]:
        problem = problem_of(network, work, memory_bytes=memory_bytes, speeds=speeds, pipelines=count)
        best, evaluations = _searched(problem, effort or usual(problem), seed, tell)
        return problem, replace(placed(problem, network, best, evaluations), asked=count)

    problem, most = of(pipelines, effort)
    if not fewer or pipelines is not None:
        return most
    best, least_s, count = most, _least_s(problem), problem.pipelines - 1
    while count * best.cost_s > len(best.pipelines) * least_s:  # else no layout of so few is as good
        best = max(best, of(count, QUICK)[1], key=lambda each: each.pace)
        count -= 1
    if best is most:
        return most
    best = max(of(best.asked, effort)[1], best, key=lambda each: each.pace)
    text = (
        f"{counted(len(best.pipelines), 'pipeline')} together: {best.pace:.3g} steps per second; "
        f"{len(most.pipelines)}, for which there are devices, would make {most.pace:.3g}"
    )
    return replace(best, note=text)


def _searched(
    problem: PlacementProblem, effort: Effort, seed: int, tell: OnProgress | None
) -> tuple[PipelineLayout, int]:
    """The best pipelines, and the number of layouts that were considered."""
    scorer = CommunicationCost(problem)
    found = search(problem, effort, seed, tell=tell)
    best = best_of(scorer, found.layouts, found.costs_s, COMPOSED)
    if best.cost_s > found.cost_s * (1 + LEAST):
        best = perturbed(scorer, best, effort.shaken, np.random.default_rng(seed))
    return best, found.evaluations


def _least_s(problem: PlacementProblem) -> float:
    """A lower bound in seconds for a step with any number of pipelines: the fastest devices, and the fastest link at
    every cut."""
    fastest = np.sort(problem.compute_s)[None, : problem.stages, None]
    off_diagonal = ~np.eye(len(problem), dtype=bool)
    hop_s = float(problem.hop_s[off_diagonal].min()) if problem.stages > 1 else 0.0
    return float(problem.computing_s(fastest)[0, 0]) + (problem.stages - 1) * hop_s


def in_order(problem: PlacementProblem, network: Network, stages_KM: Indices) -> Placement:
    """The placement for groups whose stages are decided: row k holds the devices of stage k, which are matched with
    those of its neighbours."""
    return placed(problem, network, composed(CommunicationCost(problem), stages_KM, ordered=True), 1)
