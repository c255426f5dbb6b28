"""A layout when peers come and go: what is there stays, unless another layout is much better.

Whoever changes its stage must load that stage. So the present layout is kept, with its holes filled, until another one
is cheaper by a threshold; and then as few peers move as can without loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from dht.errors import BadInput
from peer.placement.communication_cost import CommunicationCost
from peer.placement.layout_search import Effort, evolve, usual
from peer.placement.pairwise_network import Network
from peer.placement.paths import shortest_path
from peer.placement.place import Placement, in_order
from peer.placement.stage_workload import Indices, PlacementProblem, StageWorkload, Vector, problem_of

NONE = -1
"""The stage of who holds none."""
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Replanned:
    """A layout for the peers of now.

    Attributes:
        moved: names of those who must load a stage that they do not hold.
        text: why it is this one.
    """

    placement: Placement
    moved: tuple[str, ...]
    text: str


def replan(
    present: Placement,
    network: Network,
    work: StageWorkload,
    *,
    memory_bytes: Sequence[float] | None = None,
    speeds: Sequence[float] | None = None,
    pipelines: int | None = None,
    least_gain: float = 0.1,
    effort: Effort | None = None,
    seed: int = 0,
) -> Replanned:
    """A layout of `network`, whose peers may be others than those of `present`; they are told apart by name.

    As many pipelines as are said, or as were asked for when `present` was placed, as far as there are devices for
    them; else as many as there are devices for. Another layout than the present one, mended, is taken if it saves a
    share of at least `least_gain` of its cost, or anything at all while no more peers load a stage.
    Raises BadInput if the stages do not fit on the devices any more, or names are not unique.
    """
    problem = problem_of(network, work, memory_bytes=memory_bytes, speeds=speeds, pipelines=pipelines)
    asked = pipelines or present.asked
    if asked is not None and asked < problem.pipelines:
        problem = problem_of(network, work, memory_bytes=memory_bytes, speeds=speeds, pipelines=asked)
    held_N = _held(present, network, problem)
    scorer = CommunicationCost(problem)
    mended = _mended(problem, scorer, held_N)
    kept = replace(in_order(problem, network, scorer.groups(mended[None])[0]), asked=asked)
    found = evolve(problem, effort or usual(problem), seed, start=mended[None])
    chosen = _returned(scorer, held_N, _staged(problem, scorer, held_N, found.layout))
    placement = replace(in_order(problem, network, scorer.groups(chosen[None])[0], found.evaluations), asked=asked)
    gain = 1 - placement.cost_s / kept.cost_s if kept.cost_s > 0 else 0.0
    moves = len(_moved(problem, held_N, chosen)) - len(_moved(problem, held_N, mended))
    if gain < max(least_gain if moves > 0 else 0.0, ROUNDING):
        why = f"kept, with {_counted(problem, held_N, mended)}: the best layout found takes {100 * gain:.1f} % less"
        return _replanned(problem, network, kept, held_N, mended, f"{why}, not {100 * least_gain:g} %")
    why = f"{placement.cost_s:.2f} s instead of {kept.cost_s:.2f} s per step, with {_counted(problem, held_N, chosen)}"
    return _replanned(problem, network, placement, held_N, chosen, why)


def _replanned(
    problem: PlacementProblem, network: Network, placement: Placement, held_N: Indices, layout: Indices, why: str
) -> Replanned:
    moved = tuple(network.names[peer] for peer in problem.peers[_moved(problem, held_N, layout)])
    return Replanned(placement=placement, moved=moved, text=why)


def _held(present: Placement, network: Network, problem: PlacementProblem) -> Indices:
    """Shape (devices,): the stage that each device holds now."""
    if len(set(network.names)) < len(network):
        twice = next(name for name in network.names if network.names.count(name) > 1)
        raise BadInput(f"two peers are called {twice!r}; peers that come and go are told apart by name")
    ranks = present.ranks()
    depth = len(present.pipelines[0])
    if depth != problem.stages:
        return np.full(len(problem), NONE)
    return np.array([ranks[name] % depth if (name := network.names[peer]) in ranks else NONE for peer in problem.peers])


def _moved(problem: PlacementProblem, held_N: Indices, layout: Indices) -> Indices:
    """The devices that are in a stage which they do not hold."""
    placed = layout[: problem.placed]
    moved: Indices = placed[held_N[placed] != np.arange(problem.placed) // problem.pipelines]
    return moved


def _counted(problem: PlacementProblem, held_N: Indices, layout: Indices) -> str:
    moved = len(_moved(problem, held_N, layout))
    return f"{moved} of {problem.placed} peers loading another stage"


# ---- keeping ----


def _mended(problem: PlacementProblem, scorer: CommunicationCost, held_N: Indices) -> Indices:
    """Everybody where they are, as far as there is room; the others fill the holes where they do best."""
    stages: list[list[int]] = [[] for _ in range(problem.stages)]
    free = []
    for device, stage in enumerate(held_N.tolist()):
        if stage != NONE and len(stages[stage]) < problem.pipelines:
            stages[stage].append(device)
        else:
            free.append(device)
    for members in stages:
        while len(members) < problem.pipelines:
            members.append(free.pop(0))
    layout = np.array([device for members in stages for device in members] + free)
    return _settled(scorer, held_N, layout, returning=False)


def _returned(scorer: CommunicationCost, held_N: Indices, layout: Indices) -> Indices:
    """The same layout with fewer moves, while that costs nothing."""
    return _settled(scorer, held_N, layout, returning=True)


def _settled(scorer: CommunicationCost, held_N: Indices, layout: Indices, *, returning: bool) -> Indices:
    """Swap while that saves moves and costs nothing (`returning`), or saves seconds and moves nobody else."""
    problem = scorer.problem
    ones, others = np.triu_indices(len(problem), 1)
    stage = np.minimum(np.arange(len(problem)) // problem.pipelines, problem.stages)
    apart = stage[ones] != stage[others]
    ones, others = ones[apart], others[apart]
    cost_s = float(_in_order_s(scorer, layout[None])[0])
    limit_s = cost_s * (1 + ROUNDING)
    while True:
        saved = _saved(held_N, layout, stage, ones, others, problem.stages)
        wanted = np.flatnonzero(saved > 0 if returning else saved >= 0)
        if not len(wanted):
            return layout
        layouts = np.repeat(layout[None], len(wanted), axis=0)
        rows = np.arange(len(wanted))
        layouts[rows, ones[wanted]], layouts[rows, others[wanted]] = layout[others[wanted]], layout[ones[wanted]]
        costs = _in_order_s(scorer, layouts)
        if returning:
            allowed = np.where(costs <= limit_s, saved[wanted], 0)
            choice = int(allowed.argmax())
            going = allowed[choice] > 0
        else:
            choice = int(costs.argmin())
            going = costs[choice] < cost_s * (1 - ROUNDING)
        if not going:
            return layout
        layout, cost_s = layouts[choice], float(costs[choice])


def _saved(held_N: Indices, layout: Indices, stage: Indices, ones: Indices, others: Indices, stages: int) -> Indices:
    """How many moves less each swap leaves."""

    def moves(devices: Indices, places: Indices) -> Indices:
        moving: Indices = ((held_N[devices] != places) & (places < stages)).astype(np.int64)
        return moving

    one, other, here, there = layout[ones], layout[others], stage[ones], stage[others]
    saved: Indices = moves(one, here) + moves(other, there) - moves(one, there) - moves(other, here)
    return saved


def _in_order_s(scorer: CommunicationCost, layouts_BN: Indices) -> Vector:
    """Shape (B,): seconds per step if group k is stage k."""
    groups_BKM = scorer.groups(layouts_BN)
    cuts_s = scorer.hops(groups_BKM[:, :-1], groups_BKM[:, 1:]).sum(axis=1)
    return scorer.with_computing(scorer.exchanges(groups_BKM).max(axis=1) + cuts_s, groups_BKM)


# ---- changing ----


def _staged(problem: PlacementProblem, scorer: CommunicationCost, held_N: Indices, layout: Indices) -> Indices:
    """The groups in an order of least cost: of those that are looked at, the one that moves the fewest."""
    groups_KM = scorer.groups(layout[None])[0]
    path = shortest_path(scorer.score(layout[None]).edges_BKK[0])
    spares = layout[problem.placed :]
    orders = [path, path[::-1], _most_alike(problem, held_N, groups_KM)]
    layouts = np.stack([np.concatenate([groups_KM[order].ravel(), spares]) for order in orders])
    costs = _in_order_s(scorer, layouts)
    cheap = [at for at in range(len(orders)) if costs[at] <= costs[0] * (1 + ROUNDING)]
    chosen: Indices = layouts[min(cheap, key=lambda at: len(_moved(problem, held_N, layouts[at])))]
    return chosen


def _most_alike(problem: PlacementProblem, held_N: Indices, groups_KM: Indices) -> list[int]:
    """The order of the groups in which most devices hold their stage."""
    same_KK = np.array([(held_N[groups_KM] == stage).sum(axis=1) for stage in range(problem.stages)])
    _, order = linear_sum_assignment(-same_KK)
    return [int(group) for group in order]
