"""Searches for a layout: climbs on the true cost from the first layouts, then shakes what it found and climbs again.

The cost is DT-FM's (arXiv:2206.01288); its search, which crosses layouts and swaps ends of fast links, is not used:
where a cut is as slow as its slowest link, most swaps change nothing, and only layouts that follow the machines from
the start (`starting_layouts.seeds`) lead anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peer.planning.placement.communication_cost import BY_SUBSETS, CommunicationCost, OnProgress
from peer.planning.placement.local_search import climbed
from peer.planning.placement.stage_workload import Indices, PlacementProblem, Vector
from peer.planning.placement.starting_layouts import random_layouts, seeds

FEW_STAGES = 8
"""Up to this number of stages the effort is whole."""
SHAKEN = (2, 7)
"""The number of devices that change places at random: at least the first number, less than the second."""
TOGETHER = 0.5
"""The share of shakes in which devices move with the one that is nearest."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How hard to search. The time needed is proportional to `evaluations`; nothing here looks at a clock."""

    evaluations: int = 200_000
    """The largest number of layouts whose true cost is computed."""
    patience: int = 400
    """The search ends after this number of climbs without a better layout."""
    kept: int = 8
    """The number of layouts that are kept and shaken."""
    starts: int = 64
    """The number of random layouts among which the first ones are chosen."""
    seeded: bool = True
    """Whether the layouts that follow machines, regions and speeds are among them."""
    shaken: int = 50
    """Where devices differ in speed: how often some devices of the best pipelines change places at random."""


def usual(problem: PlacementProblem) -> Effort:
    """The default effort: some seconds. It is smaller where a layout takes longer to score, as with paths of many
    stages and matchings of large groups."""
    whole, shares = Effort(), problem.placed * problem.pipelines
    slow = min(1.0, (FEW_STAGES / problem.stages) ** 2) * (1.0 if problem.pipelines <= BY_SUBSETS else 0.25)
    return Effort(evaluations=int(whole.evaluations * slow), shaken=int(whole.shaken * min(1.0, 512 / shares)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """The result of a search.

    Attributes:
        layout: shape (devices,).
        cost_s: seconds per step.
        evaluations: the number of layouts that were considered.
        layouts: shape (kept, devices): the layouts that were kept, the best first.
        costs_s: the cost of each of them.
        history: (evaluations, cost) for each time a better layout was found.
    """

    layout: Indices
    cost_s: float
    evaluations: int
    layouts: Indices
    costs_s: Vector
    history: tuple[tuple[int, float], ...]


def search(problem: PlacementProblem, effort: Effort, seed: int, tell: OnProgress | None = None) -> Found:
    """Search until the effort is spent. Each of the first layouts climbs once; then one of the kept ones, drawn at
    random, is shaken and climbs, and replaces itself if that costs no more. Every `STRANGER`-th is a random layout
    instead, which replaces the worst."""
    rng, scorer = np.random.default_rng(seed), CommunicationCost(problem, tell)
    layouts, costs = _first(scorer, effort, rng)
    history = [(scorer.scored, float(costs.min()))]
    waited = climbs = 0
    while scorer.scored < effort.evaluations and waited < effort.patience:
        at, start = _next(problem, layouts, costs, climbs, rng)
        layout, cost_s = climbed(scorer, start, effort.evaluations, rng)
        climbs, waited = climbs + 1, waited + 1
        if cost_s < costs.min():
            waited, history = 0, [*history, (scorer.scored, cost_s)]
        if cost_s <= costs[at] and not (np.delete(costs, at) == cost_s).any():
            layouts[at], costs[at] = layout, cost_s
    order = costs.argsort(kind="stable")
    return Found(
        layout=layouts[order[0]], cost_s=float(costs[order[0]]), evaluations=scorer.scored, layouts=layouts[order],
        costs_s=costs[order], history=tuple(history),
    )  # fmt: skip


STRANGER = 4
"""One of this number of climbs begins at a random layout, a stranger."""


def _first(scorer: CommunicationCost, effort: Effort, rng: np.random.Generator) -> tuple[Indices, Vector]:
    """The cheapest seeds and random layouts, and their costs."""
    problem = scorer.problem
    layouts = random_layouts(problem, max(effort.starts, effort.kept), rng)
    if effort.seeded:
        layouts = np.concatenate([seeds(problem), layouts])
    costs = scorer.score(layouts).cost_s
    best = costs.argsort(kind="stable")[: effort.kept]
    return layouts[best], costs[best]


def _next(
    problem: PlacementProblem, layouts: Indices, costs: Vector, climbs: int, rng: np.random.Generator
) -> tuple[int, Indices]:
    """Which of the kept layouts may be replaced next, and the layout that climbs."""
    if climbs < len(layouts):
        return climbs, layouts[climbs]
    if climbs % STRANGER == 0:
        return int(costs.argmax()), random_layouts(problem, 1, rng)[0]
    at = int(rng.integers(len(layouts)))
    return at, shaken(problem, layouts[at], rng)


def shaken(problem: PlacementProblem, layout_N: Indices, rng: np.random.Generator) -> Indices:
    """The layout with a few devices in each other's places; half the time each takes the device along that is nearest
    to it, as another card of its home is."""
    layout = layout_N.copy()
    drawn = rng.choice(len(layout), min(len(layout), int(rng.integers(*SHAKEN))), replace=False)
    moving = [drawn]
    if rng.random() < TOGETHER:
        nearest = (problem.hop_s + np.diag(np.full(len(layout), np.inf))).argmin(axis=1)[drawn]
        moving += [nearest] if len({*drawn.tolist(), *nearest.tolist()}) == 2 * len(drawn) else []
    for devices in moving:
        places = layout.argsort()[devices]
        layout[places] = np.roll(devices, 1)
    return layout
