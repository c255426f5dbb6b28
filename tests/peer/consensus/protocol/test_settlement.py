"""Weights by tokens, and what an update means for a peer's residual."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from peer.consensus.protocol.block import VOID, WEIGHT_ONE, ContributionHeader, PartOutcome, discount, part_outcomes
from peer.consensus.protocol.norms import judgement_of
from tests.peer.consensus.rounds.build import HEAD, header, rules, update

TOKENS_CAP = 10**6
COUNTED, MISSED, UNTOUCHED = PartOutcome.COUNTED, PartOutcome.MISSED, PartOutcome.NOT_SUBMITTED


def token_weights(members: tuple[ContributionHeader, ...]) -> tuple[int, ...]:
    """The weights of every layer, by tokens alone."""
    head = replace(HEAD, electorate=tuple(header.peer for header in members))
    weights = judgement_of(replace(rules("p0"), tokens_cap=TOKENS_CAP), head, members).weights
    assert len(set(weights)) == 1
    return weights[0]


@given(efforts=st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 12)), min_size=1, max_size=64))
def test_weights_are_shares_of_65536(efforts: list[tuple[int, int]]) -> None:
    """In proportion to tokens up to the cap, times the discount of their age, rounded down but never to nothing, which
    the others pay for in proportion; beyond the age limit they are nothing."""
    oldest = 8
    members = tuple(header(f"p{index}", tokens=count, staleness=age) for index, (count, age) in enumerate(efforts))
    weights = token_weights(members)
    counted = [min(count, TOKENS_CAP) * discount(age, oldest) for count, age in efforts]
    exact = [WEIGHT_ONE * count / max(1, sum(counted)) for count in counted]
    raised = sum(0 < share < 1 for share in exact)
    for weight, share in zip(weights, exact, strict=True):
        assert (weight == 0) == (share == 0)
        assert abs(weight - share) <= 1 + raised * share / WEIGHT_ONE
    assert sum(weights) <= WEIGHT_ONE


def test_the_discount_of_age() -> None:
    """Golden values of ⌊65,536 / (1 + (s − 2)/8)⌋ from s = 2 on (FedAsync's hinge), and the age limit."""
    golden = [65_536, 65_536, 65_536, 58_254, 52_428, 47_662, 43_690, 40_329, 37_449]
    assert [discount(age, 8) for age in range(11)] == [*golden, 0, 0]
    assert discount(2**60, 2**61) == 0, "so old that less than one 65,536th is left"


def test_who_gives_nothing_weighs_nothing() -> None:
    """A member without a root keeps its vote only, whatever it says it trained."""
    members = (header("p0", root=b"", tokens=10**6), header("p1", tokens=5))
    assert token_weights(members) == (0, WEIGHT_ONE)
    assert token_weights(members[:1]) == (0,)


def test_settlement_is_per_part() -> None:
    """Counted where the bits say so, missed where a part is void or without me, untouched if nothing was frozen."""
    decided = update(contributors=(0b111, 0b101, 0), parts=(b"x" * 32, b"y" * 32, VOID))
    assert part_outcomes(decided, "p0", submitted=True) == (COUNTED, COUNTED, MISSED)
    assert part_outcomes(decided, "p1", submitted=True) == (COUNTED, MISSED, MISSED)
    assert part_outcomes(decided, "p1", submitted=False) == (UNTOUCHED,) * 3
    assert part_outcomes(decided, "stranger", submitted=True) == (MISSED,) * 3


def test_a_zero_weight_still_counts_as_contributed() -> None:
    """What was judged must not return."""
    decided = update(weights=((0, 32768, 32768),))
    assert part_outcomes(decided, "p0", submitted=True)[0] is COUNTED
