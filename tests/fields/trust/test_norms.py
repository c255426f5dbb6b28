"""Norms alone: how far one liar moves the mean, and that nobody honest is refused for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

import pytest

from peer.consensus.aggregation.aggregate import aggregate
from peer.consensus.aggregation.evidence import WEIGHT_ONE, AggregationRules, Contributor, LayerNorms
from peer.consensus.aggregation.outliers import deviation
from peer.consensus.aggregation.peer_history import NOTHING, NormStats, PeerHistory

RULES = AggregationRules()
LAYERS, STEPS = 5, 24
ROUNDS, BEGINS = 40, RULES.warmup_rounds
Sizes = Sequence[float]
"""By layers: norms per √(inner step). Those of honest peers are about 1."""


@dataclass
class Given:
    """What one peer gives in a round."""

    sizes: Sizes
    steps: int = STEPS


@dataclass
class Run:
    """Rounds that are judged one after the other, and what came of them."""

    voters: tuple[str, ...]
    layers: int = LAYERS
    """Of the fragment that is averaged."""
    records: tuple[PeerHistory, ...] = ()
    round: int = 0
    moved: list[dict[str, float]] = field(default_factory=list)
    """By round and peer: its part of the mean in the layer where it is largest, in honest contributions."""
    refused_in_a_row: dict[str, int] = field(default_factory=dict)
    longest: dict[str, int] = field(default_factory=dict)
    """The most rounds in a row in which something of a peer was refused."""

    def play(self, given: Mapping[str, Given]) -> None:
        self.round += 1
        names = sorted(given)
        claims = [
            Contributor(name, 1000, given[name].steps, f"{self.round:04}{name:4}".encode() + bytes(24))
            for name in names
        ]
        norms = [
            tuple(given[name].sizes[layer] * sqrt(given[name].steps) for name in names) for layer in range(self.layers)
        ]
        layers = [LayerNorms(row, (None,) * len(names), None, 1) for row in norms]
        found = aggregate(RULES, self.round, self.records, claims, layers, trusted=self.voters)
        self.records = found.records
        parts = [
            [
                weight / max(1, sum(weights)) * scale / WEIGHT_ONE * norm
                for weight, norm in zip(weights, row, strict=True)
            ]
            for weights, scale, row in zip(found.weights, found.scales, norms, strict=True)
        ]
        honest = sqrt(STEPS) / len(names)
        self.moved.append({name: max(part[at] for part in parts) / honest for at, name in enumerate(names)})
        for at, name in enumerate(names):
            is_refused = not all(weights[at] for weights in found.weights)
            self.refused_in_a_row[name] = self.refused_in_a_row.get(name, 0) + 1 if is_refused else 0
            self.longest[name] = max(self.longest.get(name, 0), self.refused_in_a_row[name])

    def usual_of(self, peer: str) -> tuple[NormStats, ...]:
        known = {record.peer: record.stats for record in self.records}
        return known.get(peer, (NOTHING,) * self.layers)

    def mean_moved(self, peer: str) -> float:
        rounds = [moved[peer] for moved in self.moved[BEGINS + 5 :]]
        return sum(rounds) / len(rounds)


def honest(dice: random.Random, noise: float = 0.1, usual: float = 1.0) -> list[float]:
    return [usual * dice.lognormvariate(0.0, noise) for _ in range(LAYERS)]


# ---- a liar ----

Lie = Callable[[int, tuple[NormStats, ...]], Sizes]
"""From the round and what is usual for the liar."""


def growing(most: float) -> Lie:
    """As much as just passes in each round."""
    return lambda round, usual: [
        min(most, stat.mean + 0.97 * RULES.threshold * deviation(stat, RULES)) for stat in usual
    ]


def in_two_layers(most: float) -> Lie:
    """Fewer than half of them."""
    return lambda round, usual: [
        min(most, stat.mean + 4.8 * RULES.threshold * deviation(stat, RULES)) if layer < 2 else 1.0
        for layer, stat in enumerate(usual)
    ]


def staircase(most: float) -> Lie:
    """Refused until its history begins anew, and twice as large again."""
    return lambda round, usual: [min(most, 2.0 ** ((round - BEGINS) // (RULES.rejections + 1)))] * LAYERS


def now_and_then(most: float) -> Lie:
    """Next to nothing for five rounds, so that it and not the others change."""
    return lambda round, usual: [most if round // 5 % 2 else 0.2] * LAYERS


LIES: dict[str, Callable[[float], Lie]] = {
    "growing": growing, "in two layers": in_two_layers, "staircase": staircase, "now and then": now_and_then,
}  # fmt: skip
LARGEST = (0.01, 0.2, 1.4, 2.1, 2.5, 3.0, 4.0, 8.0, 20.0, 1e3, 1e6)


def lied_to(peers: int, lie: Lie, steps: int, seed: int) -> Run:
    dice, names = random.Random(seed), [f"p{number}" for number in range(peers)]
    run = Run(tuple(names))
    for round in range(1, ROUNDS + 1):
        given = {name: Given(honest(dice)) for name in names[1:]}
        given["p0"] = Given(lie(round, run.usual_of("p0")) if round > BEGINS else [1.0] * LAYERS, steps)
        run.play(given)
    return run


@pytest.mark.parametrize("steps", [STEPS, 2 * STEPS])
@pytest.mark.parametrize("what", LIES)
@pytest.mark.parametrize("peers", [3, 4, 7])
def test_one_liar_moves_the_mean_by_no_more_than_what_counts_in_full(peers: int, what: str, steps: int) -> None:
    """However it grows over forty rounds, and though it claims as many steps as count: `clip` honest contributions at
    most. Nobody honest is refused."""
    for seed, most in enumerate(LARGEST):
        run = lied_to(peers, LIES[what](most), steps, seed)
        assert run.mean_moved("p0") <= RULES.clip, most
        assert sum(run.longest[peer] for peer in run.voters[1:]) == 0, most


@pytest.mark.parametrize("steps", [2 * STEPS, 40 * STEPS])
def test_who_claims_more_steps_than_it_made_weighs_no_more(steps: int) -> None:
    """Its norm per √step is smaller, as if it were careful."""
    dice, run = random.Random(6), Run(("p0", "p1", "p2", "p3"))
    for round in range(ROUNDS):
        given = {name: Given(honest(dice)) for name in run.voters}
        claimed = steps if round >= BEGINS else STEPS
        run.play({**given, "p0": Given([sqrt(STEPS / claimed)] * LAYERS, claimed)})
    assert run.mean_moved("p0") <= 1.15


@pytest.mark.parametrize("what", LIES)
def test_one_of_two_does_not_have_the_other_refused(what: str) -> None:
    """By giving next to nothing after much: what one of them does is nothing that all do."""
    for seed, most in enumerate(LARGEST):
        assert lied_to(2, LIES[what](most), STEPS, seed).longest["p1"] == 0, most


@pytest.mark.parametrize("size", [0.01, 0.05, 0.2, 3.0, 20.0, 100.0])
def test_one_of_two_voters_that_are_here_takes_nobodys_weight_where_newcomers_give_something(size: float) -> None:
    """The third is away. With two norms nobody can say which is odd, so the smaller one does not decide."""
    dice, run = random.Random(1), Run(("p0", "p1", "p2"))
    for _ in range(BEGINS + 5):
        run.play({name: Given(honest(dice)) for name in run.voters})
    for _ in range(ROUNDS - BEGINS):
        given = {name: Given(honest(dice)) for name in ("p1", "n0", "n1")}
        run.play({"p0": Given([size] * LAYERS), **given})
    for peer in ("p1", "n0", "n1"):
        assert run.mean_moved(peer) > 0.5
    assert run.mean_moved("p0") <= RULES.clip * run.mean_moved("p1")


# ---- nobody lies ----


@pytest.mark.parametrize("seed", range(5))
def test_two_of_unlike_speed_refuse_each_other_nothing(seed: int) -> None:
    """A norm per √step falls a little with the steps, since a longer way bends."""
    dice, run = random.Random(seed), Run(("p0", "p1"))
    for _ in range(ROUNDS):
        run.play({"p0": Given(honest(dice, usual=0.8), 2 * STEPS), "p1": Given(honest(dice), STEPS // 3)})
    assert set(run.longest.values()) == {0}


@pytest.mark.parametrize("seed", range(5))
def test_who_comes_back_after_five_rounds_is_refused_for_one_at_most(seed: int) -> None:
    """It has trained on alone: the work of six rounds, held against the steps of two."""
    dice, run = random.Random(seed), Run(("p0", "p1", "p2"))
    for round in range(ROUNDS):
        given = {name: Given(honest(dice)) for name in run.voters}
        if 20 <= round < 25:
            del given["p0"]
        elif round == 25:
            given["p0"] = Given(honest(dice, usual=sqrt(3.0)), 2 * STEPS)
        run.play(given)
    assert run.longest["p0"] <= 1
    assert run.longest["p1"] == run.longest["p2"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_three_that_pause_in_turns_refuse_each_other_nothing(seed: int) -> None:
    """Two at a time are here; who comes back gives a short round first."""
    dice, run = random.Random(seed), Run(("p0", "p1", "p2"))
    for round in range(ROUNDS):
        here = [name for at, name in enumerate(run.voters) if round // 3 % 3 != at]
        run.play({name: Given(honest(dice), STEPS // 4 if round % 3 == 0 else STEPS) for name in here})
    assert set(run.longest.values()) == {0}


@pytest.mark.parametrize("size", [0.5, 1.0, 2.0])
def test_a_newcomer_alone_with_two_voters_counts_from_its_first_round(size: float) -> None:
    """Its text and its speed may be unlike theirs."""
    dice, run = random.Random(3), Run(("p0", "p1"))
    for _ in range(BEGINS + 5):
        run.play({name: Given(honest(dice)) for name in run.voters})
    for _ in range(ROUNDS - BEGINS):
        run.play({**{name: Given(honest(dice)) for name in run.voters}, "n0": Given(honest(dice, usual=size))})
        assert run.moved[-1]["n0"] > 0.2
    assert set(run.longest.values()) == {0}


@pytest.mark.parametrize("peers", [2, 3, 4])
@pytest.mark.parametrize("ramp", [5, 20, 40])
def test_while_the_rate_warms_up_and_decays_nobody_is_refused(ramp: int, peers: int) -> None:
    dice, run = random.Random(4), Run(tuple(f"p{number}" for number in range(peers)))
    for round in range(2 * ROUNDS):
        rate = min(1.0, (round + 1) / ramp) * (1.0 if round < 60 else 0.85 ** (round - 60))
        run.play({name: Given(honest(dice, usual=rate)) for name in run.voters})
    assert max(run.longest.values()) == 0


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_where_a_fragment_is_few_layers_fewer_than_one_in_three_hundred_is_refused(layers: int) -> None:
    """A layer alone varies more than a whole model."""
    refused = given = 0
    for seed in range(5):
        dice, run = random.Random(seed), Run(("p0", "p1", "p2", "p3"), layers)
        for _ in range(ROUNDS):
            run.play({name: Given(honest(dice, noise=0.15)) for name in run.voters})
            refused += sum(rounds > 0 for rounds in run.refused_in_a_row.values())
            given += len(run.voters)
    assert 300 * refused < given


def test_who_is_unlike_itself_for_good_is_refused_for_so_many_rounds_as_the_run_says() -> None:
    """Then what is usual for it is learned anew."""
    dice, run = random.Random(5), Run(("p0", "p1", "p2", "p3"))
    for round in range(ROUNDS):
        given = {name: Given(honest(dice)) for name in run.voters}
        run.play({**given, "p0": Given(honest(dice, usual=1.0 if round < 20 else 2.2))})
    assert run.longest["p0"] == RULES.rejections
    assert run.moved[-1]["p0"] > 0
