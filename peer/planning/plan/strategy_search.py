"""Finds the best strategy for some peers: enumerate, prune what cannot win, predict the rest, rank.

The score is tokens per second times the worth of a token (`strategy.quality`), less the price of its bytes
(`strategy.GB_PRICE`). Pruning never removes the best:

    divisibility   a batch is cut into equal micro-batches
    memory         what fits on no device cannot run
    domination     of strategies that differ only in codec and micro-batches, one stays that no formula makes slower and
                   whose tokens are worth no less
    lower bound    a strategy is dropped if its inner steps alone take longer than the best round so far, by the score

`tests/peer/planning/plan/test_strategy_search.py` compares it with trying all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

from dht.errors import BadInput
from peer.planning.plan.peer_set import Machine
from peer.planning.plan.planning_problem import GB, PlanningProblem
from peer.planning.plan.round_cost import RoundCost, made_steps, step_seconds, step_tokens
from peer.planning.plan.strategy import (
    DILOCO_STEPS,
    Overlap,
    Pace,
    Strategy,
    Wire,
    bytes_per_parameter,
    fits_layers,
    strategy_of,
    with_strategy,
)
from peer.schema.spec_fields import MAX_FRAGMENTS

OVERLAPS: tuple[Overlap, ...] = ("none", "layerwise", "streaming")
WIRES: tuple[Wire, ...] = ("float16", "int8", "int4")
FRAGMENTS = (1, 2, 4, 8)
FACTORS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4)
"""Factors for the spec's own H."""
UNLIKE = 1.1
"""Peers whose steps differ by a smaller factor count as equally fast."""


@dataclass(frozen=True, kw_only=True)
class RankedStrategy:
    """A strategy with its cost and score."""

    strategy: Strategy
    cost: RoundCost
    score: float
    bytes_worth: float
    """The factor in the score that accounts for bytes."""


@dataclass(frozen=True, kw_only=True)
class SearchOutcome:
    """The result of a search."""

    ranked: tuple[RankedStrategy, ...]
    """The best strategies, the best first. Of strategies that differ only in codec, pace and micro-batches it holds
    the best one, and none that was pruned."""
    tried: int
    """The number of strategies that were predicted."""
    considered: int
    """The number of all strategies."""
    too_large: int
    """The number of these that do not fit on some peer's device."""

    @property
    def best(self) -> RankedStrategy:
        return self.ranked[0]


def enumerate_strategies(question: PlanningProblem) -> list[Strategy]:
    """All strategies whose numbers divide.

    A single peer has no exchange to hide and none to divide.
    """
    spec, shape = question.spec, question.shape
    batch = spec.inner.sequences * spec.inner.accumulation
    alone = len(question.swarm) == 1
    counts = {1} if alone else {*FRAGMENTS, spec.round.fragments}
    fragments = [count for count in sorted(counts) if count <= MAX_FRAGMENTS]
    counted = [(steps, pace) for pace in paces_to_try(question) for steps in steps_to_try(question, pace)]
    found = []
    for (steps, pace), overlap, pieces, wire, (sequences, accumulation) in product(
        counted, OVERLAPS[:1] if alone else OVERLAPS, fragments,
        sorted({*WIRES, spec.codec.wire}, key=bytes_per_parameter),
        [(batch // count, count) for count in range(1, batch + 1) if batch % count == 0],
    ):  # fmt: skip
        chosen = Strategy(
            steps=steps, overlap=overlap, fragments=pieces, wire=wire, sequences=sequences, accumulation=accumulation,
            pace=pace,
        )  # fmt: skip
        if fits_layers(shape, chosen):
            found.append(chosen)
    return found


def steps_to_try(question: PlanningProblem, pace: Pace) -> list[int]:
    """The spec's H and fractions of it, and multiples up to the H that DiLoCo chose: the organiser had a reason not
    to choose more. An H that nobody makes in `round.max_train_s` is replaced by the one that is made."""
    table = question.spec.round
    most = max(DILOCO_STEPS, table.steps)
    wanted = {max(1, round(table.steps * factor)) for factor in FACTORS if table.steps * factor <= most}
    asked = (replace(question.spec, round=replace(table, steps=steps, pace=pace)) for steps in wanted)
    return sorted({made_steps(spec, question.step_s) for spec in asked})


def paces_to_try(question: PlanningProblem) -> list[Pace]:
    """For peers that differ in speed, both H steps for all, and a share of them by speed. The spec's own pace comes
    first.

    Pace "time" stays: the organiser chose how long a round takes, and H has little effect on it.
    """
    given = question.spec.round.pace
    if given == "time" or max(question.step_s) <= UNLIKE * min(question.step_s):
        return [given]
    return ["steps", "speed"] if given == "steps" else ["speed", "steps"]


# ---- prune ----


def undominated(question: PlanningProblem, strategies: Iterable[Strategy]) -> list[Strategy]:
    """The strategies without those that are dominated: no formula makes them faster than another one that is worth
    no less and differs only in one of these ways.

    Fewer bytes per parameter, where a round waits for them: a round that is overdue while peers train on has more
    steps. Fewer micro-batches, where all peers are alike, so that their shares of a round stay the same. This does not
    apply to peers with several devices: smaller micro-batches may leave memory for a way that moves less.
    """
    groups: dict[tuple[object, ...], list[Strategy]] = {}
    for chosen in strategies:
        groups.setdefault(chosen.kind, []).append(chosen)
    return [
        chosen
        for group in groups.values()
        for chosen in group
        if not any(_dominates(question, other, chosen) for other in group)
    ]


def _dominates(question: PlanningProblem, one: Strategy, other: Strategy) -> bool:
    """Whether `one` cannot be worse than `other`, and is smaller in at least one respect; both make rounds of one
    kind."""
    mine, theirs = _costs(question, one), _costs(question, other)
    waits, worth = one.overlap != "streaming" or mine[0] == theirs[0], question.worth
    batches = mine[1] == theirs[1] or (question.alike and not question.shares_models)
    less = mine != theirs and mine[0] <= theirs[0] and mine[1] <= theirs[1]
    return less and waits and batches and worth(one, one.steps) >= worth(other, other.steps)


def _costs(question: PlanningProblem, chosen: Strategy) -> tuple[float, tuple[bool, int]]:
    return bytes_per_parameter(chosen.wire), _cut(question, chosen)


def _cut(question: PlanningProblem, chosen: Strategy) -> tuple[bool, int]:
    """A sort key for how a batch is divided: fewer micro-batches are better. Where steps were measured, the spec's
    own division comes first, since none is known to be faster."""
    return question.measured and chosen.accumulation != question.spec.inner.accumulation, chosen.accumulation


def score_bound(question: PlanningProblem, chosen: Strategy) -> float:
    """An upper bound of the score: every peer computes all the time, nobody waits, and bytes are free."""
    spec, swarm = with_strategy(question.spec, chosen), question.swarm
    rates = (1 / step_seconds(question.shape, spec, machine, question.given, swarm) for machine in swarm.machines)
    return sum(rates) * step_tokens(spec) * question.worth(chosen, chosen.steps)


# ---- search ----


class NothingFits(BadInput):
    """No strategy fits in the memory of all peers."""


def search(question: PlanningProblem, *, keep: int = 12) -> SearchOutcome:
    """The best strategies, in order. Raises NothingFits if none fits in the peers' memory."""
    everything = enumerate_strategies(question)
    fitting = [chosen for chosen in everything if question.fits(chosen)]
    if not fitting:
        raise NothingFits(_too_large(question, everything))
    left = undominated(question, fitting)
    bounds = {chosen: score_bound(question, chosen) for chosen in left}
    ranked: list[RankedStrategy] = []
    tried = 0

    def place(one: RankedStrategy) -> tuple[object, ...]:
        """A sort key. Among equal scores fewer bytes come first, then the simpler overlap, fewer fragments and fewer
        micro-batches."""
        each, up_bytes = one.strategy, one.cost.traffic.up_bytes
        return -one.score, up_bytes, OVERLAPS.index(each.overlap), each.fragments, _cut(question, each)

    for chosen in sorted(left, key=lambda each: -bounds[each]):
        if len(ranked) >= keep and bounds[chosen] <= ranked[-1].score:
            break  # all that follow are bounded by less
        tried += 1
        one = _ranked(question, chosen, question.expected(chosen))
        ranked = _unlike(sorted([*ranked, one], key=place))[:keep]
    found = tuple(evaluate(question, one.strategy) for one in ranked)
    return SearchOutcome(
        ranked=found, tried=tried, considered=len(everything), too_large=len(everything) - len(fitting)
    )  # fmt: skip


def evaluate(question: PlanningProblem, chosen: Strategy) -> RankedStrategy:
    return _ranked(question, chosen, question.predict(chosen))


def _ranked(question: PlanningProblem, chosen: Strategy, cost: RoundCost) -> RankedStrategy:
    score, bytes_worth = question.score(chosen, cost), question.bytes_worth(cost)
    return RankedStrategy(strategy=chosen, cost=cost, score=score, bytes_worth=bytes_worth)


def _unlike(ranked: Sequence[RankedStrategy]) -> list[RankedStrategy]:
    """Drop the strategies that differ from a better one only in codec, pace and micro-batches."""
    found: dict[Strategy, RankedStrategy] = {}
    for one in ranked:
        found.setdefault(replace(one.strategy, wire="int4", pace="steps", sequences=1, accumulation=1), one)
    return list(found.values())


def as_it_stands(question: PlanningProblem) -> RankedStrategy:
    """The unchanged spec's strategy, with the H that is made."""
    steps = made_steps(question.spec, question.step_s)
    return evaluate(question, replace(strategy_of(question.spec), steps=steps))


def _too_large(question: PlanningProblem, everything: Sequence[Strategy]) -> str:
    smallest = min((machine for machine in question.swarm.machines if machine.memory_gb), key=_memory)
    least = min(everything, key=lambda chosen: question.held_bytes(chosen, smallest))
    needed = question.held_bytes(least, smallest) / GB
    return (
        f"{smallest.name} has {smallest.memory_gb:g} GB for training and the model needs {needed:.3g} GB even with "
        f"{least.sequences} sequences per micro-batch"
    )


def _memory(machine: Machine) -> float:
    return machine.memory_gb


# ---- why one is better than another, in words ----

ALIKE = 0.0005
"""Smaller relative differences count as none."""
NAMES = {
    "steps": "H", "fragments": "fragments", "wire": "", "overlap": "", "accumulation": "micro-batches",
    "pace": "pace",
}  # fmt: skip


def differences(one: Strategy, other: Strategy) -> str:
    """The settings in which `one` differs from `other`, in words: `H 400 instead of 200, int8 instead of int4`."""
    parts = []
    for each in fields(Strategy):
        mine, theirs = getattr(one, each.name), getattr(other, each.name)
        if mine != theirs and each.name in NAMES:
            parts.append(f"{NAMES[each.name]} {mine} instead of {theirs}".strip())
    return ", ".join(parts)


def why_lost(best: RankedStrategy, other: RankedStrategy) -> str:
    """One sentence on what `other` changes compared with `best`, and what is lost by it."""
    change = differences(other.strategy, best.strategy) or "the same"
    faster = other.cost.tokens_per_s / best.cost.tokens_per_s - 1
    worth = (other.score / other.cost.tokens_per_s) / (best.score / best.cost.tokens_per_s) - 1
    of_bytes = other.bytes_worth / best.bytes_worth - 1
    is_bytes = abs(of_bytes) > abs((1 + worth) / (1 + of_bytes) - 1)
    if faster < -ALIKE:
        text = f"{change}: {-faster:.2%} fewer tokens/s, since {_cause(best, other)}"
        gain = f", which a gain of {worth:.1%} in {'bytes' if is_bytes else 'quality'} is not worth"
        return text + (gain if worth > ALIKE else "")
    why = f"{_month(other.cost)} a month instead of {_month(best.cost)}" if is_bytes else "perplexity"
    if faster > ALIKE:
        return f"{change}: {faster:.1%} more tokens/s, but each is worth {-worth:.1%} less ({why})"
    if worth < -ALIKE:
        return f"{change}: as fast, but each token is worth {-worth:.1%} less ({why})"
    return f"{change}: as good within {ALIKE:.2%}"


def _month(cost: RoundCost) -> str:
    month_gb = 30 * cost.day_bytes / GB
    return f"{month_gb:,.0f} GB" if month_gb >= 1000 else f"{month_gb:.3g} GB"


def _cause(best: RankedStrategy, other: RankedStrategy) -> str:
    """The main reason why `other` is slower per token."""
    mine, theirs = best.cost, other.cost
    scale = mine.tokens / theirs.tokens
    step_s = sum(theirs.step_s) / len(theirs.step_s) - sum(mine.step_s) / len(mine.step_s)
    if step_s > ALIKE * sum(mine.step_s):
        return f"an inner step takes {seconds(step_s)} more"
    exposed = (theirs.exposed * theirs.round_s * scale - mine.exposed * mine.round_s) / mine.round_s
    if exposed > ALIKE:
        return f"{theirs.exposed:.2%} of a round is waited instead of {mine.exposed:.2%}"
    talk_s = theirs.agreement.talking - mine.agreement.talking
    if talk_s > 0:
        return f"the exchange takes {seconds(talk_s)} longer than training hides"
    return f"rounds take {seconds(theirs.round_s)} for {theirs.tokens:,.0f} tokens"


def seconds(value: float) -> str:
    """The duration in two or three digits and a unit, at most nine characters: 3.1 ms, 0.42 s, 18.2 s, 12m30s,
    3h12m, 12d04h."""
    if 0 < value < 0.01:
        return f"{value * 1000:.2g} ms"
    if 0 < value < 0.1:
        return f"{value * 1000:.0f} ms"
    if value < 10:
        return f"{value:.2f} s"
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours = minutes // 60
    if hours < 100:
        return f"{hours}h{minutes % 60:02d}m"
    return f"{hours // 24}d{hours % 24:02d}h" if hours < 240_000 else f"{value / 86400:.2g} d"
