"""Weights by tokens, and what an update means for a peer's balance."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peer.rounds.settlement import Settlement, settle
from peer.rounds.update import VOID, WEIGHT_ONE, discount, token_weights
from tests.peer.rounds.build import pledge, update

COUNTED, MISSED, UNTOUCHED = Settlement.COUNTED, Settlement.MISSED, Settlement.UNTOUCHED


@given(efforts=st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 12)), min_size=1, max_size=64))
def test_weights_are_shares_of_65536(efforts: list[tuple[int, int]]) -> None:
    """In proportion to tokens up to the cap, times the discount of their age, rounded down but never to nothing;
    beyond the age limit they are nothing."""
    cap, oldest = 10**6, 8
    members = tuple(pledge(f"p{index}", tokens=count, staleness=age) for index, (count, age) in enumerate(efforts))
    weights = token_weights(members, cap, oldest)
    counted = [min(count, cap) * discount(age, oldest) for count, age in efforts]
    for weight, count in zip(weights, counted, strict=True):
        assert (weight == 0) == (count == 0)
        assert count == 0 or abs(weight - WEIGHT_ONE * count / sum(counted)) <= 1
    assert sum(weights) <= WEIGHT_ONE + len(efforts)


def test_the_discount_of_age() -> None:
    """Golden values of ⌊65,536 / (1 + (s − 2)/8)⌋ from s = 2 on (FedAsync's hinge), and the age limit."""
    golden = [65_536, 65_536, 65_536, 58_254, 52_428, 47_662, 43_690, 40_329, 37_449]
    assert [discount(age, 8) for age in range(11)] == [*golden, 0, 0]
    assert discount(2**60, 2**61) == 0, "so old that less than one 65,536th is left"


def test_who_gives_nothing_weighs_nothing() -> None:
    """A member without a root keeps its vote only, whatever it says it trained."""
    members = (pledge("p0", root=b"", tokens=10**6), pledge("p1", tokens=5))
    assert token_weights(members, 10**9, 8) == (0, WEIGHT_ONE)
    assert token_weights(members[:1], 10**9, 8) == (0,)


def test_settlement_is_per_part() -> None:
    """Counted where the bits say so, missed where a part is void or without me, untouched if nothing was frozen."""
    decided = update(contributors=(0b111, 0b101, 0), parts=(b"x" * 32, b"y" * 32, VOID))
    assert settle(decided, "p0", frozen=True) == (COUNTED, COUNTED, MISSED)
    assert settle(decided, "p1", frozen=True) == (COUNTED, MISSED, MISSED)
    assert settle(decided, "p1", frozen=False) == (UNTOUCHED,) * 3
    assert settle(decided, "stranger", frozen=True) == (MISSED,) * 3


def test_a_zero_weight_still_counts_as_contributed() -> None:
    """What was judged must not return."""
    decided = update(weights=((0, 32768, 32768),))
    assert settle(decided, "p0", frozen=True)[0] is COUNTED
