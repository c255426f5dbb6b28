"""Which strategy is best for these peers: enumerate, prune what cannot win, predict the rest, rank.

The score is tokens per second times what a token is worth (`strategy.quality`). Pruning never removes the best:

    divisibility   a batch is cut into equal micro-batches, devices into equal groups, peers into equal replicas
    memory         what fits on no device cannot run
    domination     of strategies that differ in codec and micro-batches alone, one that no formula makes slower, and
                   that is worth no less, stays
    lower bound    a strategy whose inner steps alone take longer than the best round so far, by the same score

`tests/peer/plan/test_search.py` compares with trying all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from dht.errors import BadInput
from peer.plan.coefficients import Coefficients
from peer.plan.machines import Machine, Swarm
from peer.plan.replicas import as_replicas, sharded_machines
from peer.plan.round import RoundCost, predict, step_seconds, step_tokens
from peer.plan.shape import Shape, memory_of
from peer.plan.sharding import hierarchical, inner_sizes, zero3
from peer.plan.strategy import (
    DILOCO_STEPS,
    Overlap,
    Pace,
    Quality,
    Strategy,
    Wire,
    bytes_per_parameter,
    fits_layers,
    quality,
    strategy_of,
    with_strategy,
)
from peer.spec import MAX_FRAGMENTS, RunSpec

GB = 1e9
OVERLAPS: tuple[Overlap, ...] = ("none", "layerwise", "streaming")
WIRES: tuple[Wire, ...] = ("float16", "int8", "int4")
FRAGMENTS = (1, 2, 4, 8)
FACTORS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4)
"""Of the spec's own H."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be planned: a run on some peers."""

    spec: RunSpec
    shape: Shape
    swarm: Swarm
    given: Coefficients
    worth: Quality = quality

    def predict(self, chosen: Strategy) -> RoundCost:
        """The round that a strategy makes. Raises BadInput for one that cannot be."""
        spec = with_strategy(self.spec, chosen)
        swarm, shape = self.swarm, self.shape
        if chosen.shards > 1:
            swarm = sharded_machines(shape, spec, swarm, self.given, chosen)
        if chosen.stages > 1:
            shape, swarm = as_replicas(shape, spec, swarm, self.given, chosen.stages)
        return predict(shape, spec, swarm, self.given)

    def score(self, chosen: Strategy, cost: RoundCost) -> float:
        """Tokens per second at H = 50 without overlap that are worth as much."""
        return cost.tokens_per_s * self.worth(chosen, max(chosen.steps, *cost.steps, 0.0))


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A strategy with what it comes to."""

    strategy: Strategy
    cost: RoundCost
    score: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a search found."""

    ranked: tuple[Ranked, ...]
    """The best first: of strategies that differ in codec and micro-batches alone the best one, none that was pruned."""
    tried: int
    """Strategies that were predicted."""
    considered: int
    """Strategies that there are."""
    too_large: int
    """Of these, those that fit on some peer's device not."""

    @property
    def best(self) -> Ranked:
        return self.ranked[0]


def enumerate_strategies(question: Question, *, spans: bool = False) -> list[Strategy]:
    """All strategies whose numbers divide; with `spans` also those that no run of today can be set up with.

    One peer alone has no exchange to hide and none to divide.
    """
    spec, shape = question.spec, question.shape
    batch = spec.inner.sequences * spec.inner.accumulation
    alone = len(question.swarm) == 1
    counts = {1} if alone else {*FRAGMENTS, spec.round.fragments}
    fragments = [count for count in sorted(counts) if count <= MAX_FRAGMENTS]
    found = []
    for steps, overlap, pieces, wire, (sequences, accumulation), (shards, inner), stages in product(
        steps_to_try(spec), OVERLAPS[:1] if alone else OVERLAPS, fragments, _wires(spec), _micro_batches(batch),
        _shards(question.swarm) if spans else [(1, 1)], _stages(question) if spans else [1],
    ):  # fmt: skip
        chosen = Strategy(
            steps=steps, overlap=overlap, fragments=pieces, wire=wire, sequences=sequences, accumulation=accumulation,
            pace=_pace(question), shards=shards, inner_shards=inner, stages=stages,
        )  # fmt: skip
        if fits_layers(shape, chosen):
            found.append(chosen)
    return found


def steps_to_try(spec: RunSpec) -> list[int]:
    """The spec's H and some parts of it; more of it up to what DiLoCo chose, since the organiser knew why not more."""
    most = max(DILOCO_STEPS, spec.round.steps)
    return sorted({max(1, round(spec.round.steps * factor)) for factor in FACTORS if spec.round.steps * factor <= most})


def _wires(spec: RunSpec) -> list[Wire]:
    return sorted({*WIRES, spec.codec.wire}, key=bytes_per_parameter)


def _micro_batches(batch: int) -> list[tuple[int, int]]:
    """(sequences, accumulation) of one and the same batch."""
    return [(batch // count, count) for count in range(1, batch + 1) if batch % count == 0]


def _pace(question: Question) -> Pace:
    """That of the spec; of peers that are not alike, with steps as they are, the share of each by its speed."""
    spec, swarm = question.spec, question.swarm
    if spec.round.pace != "steps" or len(swarm) == 1:
        return spec.round.pace
    step_s = [step_seconds(question.shape, spec, machine, question.given, swarm) for machine in swarm.machines]
    return "speed" if max(step_s) > 1.1 * min(step_s) else "steps"


def _shards(swarm: Swarm) -> list[tuple[int, int]]:
    """(devices, inner group) that every peer can have."""
    devices = min(machine.devices for machine in swarm.machines)
    counts = [count for count in range(1, devices + 1) if devices % count == 0]
    return [(1, 1), *((count, inner) for count in counts if count > 1 for inner in (1, *inner_sizes(count)))]


def _stages(question: Question) -> list[int]:
    peers = len(question.swarm)
    return [count for count in range(1, min(peers, question.shape.blocks) + 1) if peers % count == 0]


# ---- prune ----


def device_bytes(question: Question, chosen: Strategy) -> float:
    """What a device holds. Of a pipeline each has its share, and the activations of as many micro-batches as stages
    at work at a time (1F1B)."""
    memory = memory_of(question.shape, with_strategy(question.spec, chosen))
    if chosen.stages > 1:
        memory = replace(memory, training=memory.training / chosen.stages)
    if chosen.shards == 1:
        return memory.device
    shape, many = question.shape, chosen.shards
    if chosen.inner_shards == 1:
        return zero3(shape, memory, many, chosen.accumulation).device_bytes
    return hierarchical(shape, memory, many, chosen.inner_shards, chosen.accumulation).device_bytes


def fits(question: Question, chosen: Strategy) -> bool:
    """Whether every peer can hold it. Of one whose memory is not known: whether it needs no more than the spec does."""
    needed = device_bytes(question, chosen)
    spared = device_bytes(question, strategy_of(question.spec))
    return all(needed <= (machine.memory_gb * GB or spared) for machine in question.swarm.machines)


def undominated(question: Question, strategies: Iterable[Strategy]) -> list[Strategy]:
    """Without those that no formula makes faster than another one, which is worth no less and differs in this alone.

    Fewer bytes per parameter, where a round waits for them: one that is overdue while peers train on has more steps.
    Fewer micro-batches, where all peers are alike, so that their shares of a round stay what they are. No pipelines: a
    pipeline of more micro-batches is idle for less.
    """
    groups: dict[tuple[object, ...], list[Strategy]] = {}
    for chosen in strategies:
        groups.setdefault(chosen.kind, []).append(chosen)
    even = len({machine.kind for machine in question.swarm.machines}) == 1
    return [
        chosen
        for group in groups.values()
        for chosen in group
        if not any(_dominates(question, other, chosen, even=even) for other in group)
    ]


def _dominates(question: Question, one: Strategy, other: Strategy, *, even: bool) -> bool:
    """Whether `one` can be no worse than `other`, and is less in one thing at least; both make rounds of one kind."""
    mine, theirs = _costs(one), _costs(other)
    waits, worth = one.overlap != "streaming" or mine[0] == theirs[0], question.worth
    batches = mine[1] == theirs[1] or (even and one.stages == 1)
    less = mine != theirs and mine[0] <= theirs[0] and mine[1] <= theirs[1]
    return less and waits and batches and worth(one, one.steps) >= worth(other, other.steps)


def _costs(chosen: Strategy) -> tuple[float, int]:
    return bytes_per_parameter(chosen.wire), chosen.accumulation


def most_score(question: Question, chosen: Strategy) -> float:
    """No more than this, since inner steps take their time: every peer computes and nobody waits."""
    spec = with_strategy(question.spec, chosen)
    if chosen.stages > 1 or chosen.shards > 1:
        return float("inf")
    swarm = question.swarm
    rates = (1 / step_seconds(question.shape, spec, machine, question.given, swarm) for machine in swarm.machines)
    return sum(rates) * step_tokens(spec) * question.worth(chosen, chosen.steps)


# ---- search ----


def search(question: Question, *, spans: bool = False, keep: int = 12) -> Choice:
    """The best strategies, in order. Raises BadInput if none fits the peers' memory."""
    everything = enumerate_strategies(question, spans=spans)
    fitting = [chosen for chosen in everything if fits(question, chosen)]
    if not fitting:
        raise BadInput(_too_large(question, everything))
    left = undominated(question, fitting)
    bounds = {chosen: most_score(question, chosen) for chosen in left}
    ranked: list[Ranked] = []
    tried = 0
    for chosen in sorted(left, key=lambda each: -bounds[each]):
        if len(ranked) >= keep and bounds[chosen] <= ranked[-1].score:
            break  # all that follow are bounded by less
        tried += 1
        ranked = _unlike(sorted([*ranked, evaluate(question, chosen)], key=_place))[:keep]
    return Choice(
        ranked=tuple(ranked), tried=tried, considered=len(everything), too_large=len(everything) - len(fitting)
    )  # fmt: skip


def evaluate(question: Question, chosen: Strategy) -> Ranked:
    """What one strategy comes to."""
    cost = question.predict(chosen)
    return Ranked(strategy=chosen, cost=cost, score=question.score(chosen, cost))


def _place(one: Ranked) -> tuple[float, float, int, int, int]:
    """Of equal scores fewer bytes come first, then fewer parts of everything."""
    chosen = one.strategy
    return -one.score, one.cost.traffic.up_bytes, OVERLAPS.index(chosen.overlap), chosen.fragments, chosen.accumulation


def _unlike(ranked: Sequence[Ranked]) -> list[Ranked]:
    """Without those that differ in codec and micro-batches alone from a better one."""
    found: dict[tuple[object, ...], Ranked] = {}
    for one in ranked:
        found.setdefault(one.strategy.kind, one)
    return list(found.values())


def as_it_stands(question: Question) -> Ranked:
    """The spec unchanged."""
    return evaluate(question, strategy_of(question.spec))


def _too_large(question: Question, everything: Sequence[Strategy]) -> str:
    least = min(everything, key=lambda chosen: device_bytes(question, chosen))
    smallest = min((machine for machine in question.swarm.machines if machine.memory_gb), key=_memory)
    needed = device_bytes(question, least) / GB
    return (
        f"{smallest.name} has {smallest.memory_gb:g} GB for training and the model needs {needed:.3g} GB even with "
        f"{least.sequences} sequences per micro-batch; leave that peer out, or train a smaller model"
    )


def _memory(machine: Machine) -> float:
    return machine.memory_gb
