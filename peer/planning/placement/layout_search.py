"""Searches for a layout: an evolutionary search with local search on every child and hill climbing on the best of them.

This is DT-FM's hybrid genetic algorithm (arXiv:2206.01288, section 3.4) with four additions: it starts from the block
and striped layouts of the regions that the links show, ties between links are broken at random, the best child of every
brood climbs on the true cost, and no layout is in the population twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice
from math import factorial

import numpy as np

from dht.errors import BadInput
from peer.planning.placement.communication_cost import BY_SUBSETS, CommunicationCost, OnProgress
from peer.planning.placement.local_search import Gain, climbed, improved
from peer.planning.placement.paths import EXACT
from peer.planning.placement.stage_workload import (
    Indices,
    PlacementProblem,
    Vector,
    block,
    by_regions,
    canonical,
    labels_of,
    layouts_of,
    random_layouts,
    striped,
)


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How hard to search. The time needed is proportional to `evaluations`; nothing here looks at a clock."""

    evaluations: int = 200_000
    """The largest number of layouts whose true cost is computed."""
    patience: int = 60
    """The search ends after this number of broods without a better layout."""
    population: int = 40
    brood: int = 16
    """The number of children that are made and scored together."""
    moved: int = 5
    """The number of devices whose group a child takes from its first parent."""
    gain: Gain | None = "fastest"
    """The local search on every child; None for plain evolution."""
    climb: bool = True
    """Whether the best child of a brood climbs by the true cost."""
    seeded: bool = True
    """Whether the first population contains the block and striped layouts of the regions."""
    shaken: int = 50
    """Where devices differ in speed: how often some devices of the best pipelines change places at random."""


def usual(problem: PlacementProblem) -> Effort:
    """The default effort: some tens of seconds at most. It is smaller where a layout takes longer to score, as with
    paths of many stages and matchings of large groups."""
    whole, shares = Effort(), problem.placed * problem.pipelines
    slow = min(1.0, (EXACT / problem.stages) ** 2) * (1.0 if problem.pipelines <= BY_SUBSETS else 0.25)
    return Effort(evaluations=int(whole.evaluations * slow), shaken=int(whole.shaken * min(1.0, 512 / shares)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """The result of a search.

    Attributes:
        layout: shape (devices,).
        cost_s: seconds per step.
        evaluations: the number of layouts that were considered.
        layouts: shape (population, devices): the last population, the best first.
        costs_s: the cost of each of them.
        history: (evaluations, cost) for each time a better layout was found.
    """

    layout: Indices
    cost_s: float
    evaluations: int
    layouts: Indices
    costs_s: Vector
    history: tuple[tuple[int, float], ...]


def evolve(
    problem: PlacementProblem, effort: Effort, seed: int, start: Indices | None = None, tell: OnProgress | None = None
) -> Found:
    """Search until the effort is spent. `start`, shape (B, devices), adds layouts to the first population."""
    rng = np.random.default_rng(seed)
    scorer = CommunicationCost(problem, tell)
    people = _Population(problem, scorer, _first(problem, effort, rng, start))
    waited = broods = 0
    while scorer.scored < effort.evaluations and waited < effort.patience:
        before = people.least
        parents = people.parents(effort.brood, rng)
        climbing = effort.climb and broods >= FIRST_BROODS
        children = _brood(problem, parents, effort, climbing, rng)
        if effort.climb:
            people.renew(children, rng)
        costs = scorer.score(children).cost_s
        if climbing:
            best = _climbs(costs, broods)
            children[best], costs[best] = climbed(scorer, children[best], effort.evaluations, rng)
        people.take(children, costs, parents)
        waited = 0 if people.least < before or climbing < effort.climb else waited + 1
        broods += 1
    order = people.costs.argsort(kind="stable")
    return Found(
        layout=people.layouts[order[0]], cost_s=people.least, evaluations=scorer.scored,
        layouts=people.layouts[order], costs_s=people.costs[order], history=tuple(people.history),
    )  # fmt: skip


FIRST_BROODS = 12
"""The first broods do not climb, since climbing is expensive: where links follow regions the gains alone go a long
way."""
STRANGER = 4
"""One of this number of children is a random layout, a stranger."""


def _brood(
    problem: PlacementProblem, parents: _Parents, effort: Effort, climbing: bool, rng: np.random.Generator
) -> Indices:
    """The children of a brood. Once there is climbing, some of them are strangers, and only the first half goes
    through the local search.

    The gains are not the cost: where links do not follow regions, gains lead away from it.
    """
    children = _children(problem, parents, effort.moved, rng)
    searched = slice(None)
    if climbing:
        searched = slice(effort.brood // 2)
        children[::STRANGER] = random_layouts(problem, len(children[::STRANGER]), rng)
    if effort.gain is not None:
        children[searched] = improved(problem, children[searched], effort.gain, rng)
    return children


def _climbs(costs: Vector, broods: int) -> int:
    """The index of the child that climbs. In turn it is the best of the improved ones, the best of the others, and
    the best stranger."""
    half = len(costs) // 2
    turns = (slice(half), slice(half, None), slice(half), slice(None, None, STRANGER))
    among = np.arange(len(costs))[turns[broods % len(turns)]]
    return int(among[costs[among].argmin()]) if len(among) else 0


def _first(problem: PlacementProblem, effort: Effort, rng: np.random.Generator, start: Indices | None) -> Indices:
    given = [np.empty((0, len(problem)), np.int64)] if start is None else [start]
    if effort.seeded:
        order = by_regions(problem)
        given.append(np.stack([block(problem, order), striped(problem, order)]))
    known = np.concatenate(given)
    return np.concatenate([known, random_layouts(problem, max(2, effort.population - len(known)), rng)])


@dataclass(frozen=True, eq=False)
class _Parents:
    places: Indices
    """Shape (brood, 2): the indices of the parents in the population."""
    layouts: Indices
    """Shape (brood, 2, devices)."""


class _Population:
    """The layouts of a population and their costs. Its size never changes, and a new layout differs from all that
    are in it."""

    def __init__(self, problem: PlacementProblem, scorer: CommunicationCost, layouts: Indices) -> None:
        self.layouts, self.costs = layouts, scorer.score(layouts).cost_s
        self._problem, self._scorer = problem, scorer
        self._known = {canonical(problem, layout) for layout in layouts}
        self._seen = set(self._known)
        self.least = float(self.costs.min())
        self.history = [(scorer.scored, self.least)]

    def parents(self, brood: int, rng: np.random.Generator) -> _Parents:
        places = np.stack([rng.choice(len(self.costs), 2, replace=False) for _ in range(brood)])
        return _Parents(places, self.layouts[places])

    def renew(self, children: Indices, rng: np.random.Generator) -> None:
        """Replace each child that has been seen before by a stranger: with few devices there are few layouts."""
        for child in children:
            if canonical(self._problem, child) in self._seen:
                child[:] = rng.permutation(child)
            self._seen.add(canonical(self._problem, child))

    def take(self, children: Indices, costs: Vector, parents: _Parents) -> None:
        """Put each child in the place of its worse parent if the child is new and costs no more."""
        for child, cost, places in zip(children, costs, parents.places, strict=True):
            worse = places[self.costs[places].argmax()]
            name = canonical(self._problem, child)
            if cost > self.costs[worse] or name in self._known:
                continue
            self._known.discard(canonical(self._problem, self.layouts[worse]))
            self._known.add(name)
            self.layouts[worse], self.costs[worse] = child, cost
            if cost < self.least:
                self.least = float(cost)
                self.history.append((self._scorer.scored, self.least))


def _children(problem: PlacementProblem, parents: _Parents, moved: int, rng: np.random.Generator) -> Indices:
    """Children with the groups of the second parent, except for `moved` devices drawn at random, which have the
    groups of the first parent."""
    first, second = (labels_of(problem, parents.layouts[:, parent]) for parent in (0, 1))
    count, devices = first.shape
    drawn = rng.permuted(np.tile(np.arange(devices), (count, 1)), axis=1)[:, :moved]
    children = second
    np.put_along_axis(children, drawn, np.take_along_axis(first, drawn, axis=1), axis=1)
    for labels, fixed in zip(children, drawn, strict=True):
        _residual(problem, labels, fixed, rng)
    return layouts_of(children)


def _residual(problem: PlacementProblem, labels: Indices, fixed: Indices, rng: np.random.Generator) -> None:
    """Move devices from groups with too many to groups with too few; those in `fixed` move last."""
    sizes = np.full(problem.stages + 1, problem.pipelines)
    sizes[-1] = len(problem) - problem.placed
    surplus = np.bincount(labels, minlength=len(sizes)) - sizes
    last = np.zeros(len(labels), dtype=bool)
    last[fixed] = True
    leaving = []
    for group in np.flatnonzero(surplus > 0):
        members = rng.permutation(np.flatnonzero(labels == group))
        leaving.append(members[np.argsort(last[members], kind="stable")][: surplus[group]])
    if leaving:
        rooms = np.repeat(np.arange(len(sizes)), np.maximum(-surplus, 0))
        labels[np.concatenate(leaving)] = rng.permutation(rooms)


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
