"""From shares to integers over 65,536."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from peer.consensus.aggregation.evidence import WEIGHT_ONE
from peer.consensus.aggregation.weights import integer_weights

FIXED = settings(derandomize=True, deadline=None)
SHARES = st.lists(st.integers(0, 1 << 40) | st.integers(0, 3), min_size=1, max_size=64)
PAIRS = st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 48)), min_size=1, max_size=64)


@FIXED
@given(SHARES)
def test_by_shares(shares: list[int]) -> None:
    """The sum is 65,536 less rounding, and whoever has a share counts."""
    row = integer_weights(shares)
    assert all((weight > 0) == (share > 0) for weight, share in zip(row, shares, strict=True))
    assert not any(shares) or WEIGHT_ONE - len(shares) <= sum(row) <= WEIGHT_ONE


@FIXED
@given(SHARES, st.integers(1, 1 << 48))
def test_equal_factors_change_nothing(shares: list[int], factor: int) -> None:
    """Not by one."""
    assert integer_weights(shares, [factor] * len(shares)) == integer_weights(shares)


@FIXED
@given(PAIRS)
def test_with_factors(pairs: list[tuple[int, int]]) -> None:
    """Never above the whole, and nothing for a factor of zero."""
    shares, factors = zip(*pairs, strict=True)
    row = integer_weights(shares, factors)
    assert 0 <= sum(row) <= WEIGHT_ONE
    assert all(weight == 0 for weight, factor in zip(row, factors, strict=True) if factor == 0)


@FIXED
@given(PAIRS, st.data())
def test_the_order_of_members_does_not_matter(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    """Each keeps its weight wherever it stands."""
    order = data.draw(st.permutations(range(len(pairs))))
    row = integer_weights(*zip(*pairs, strict=True))
    moved = integer_weights(*zip(*(pairs[index] for index in order), strict=True))
    assert moved == tuple(row[index] for index in order)


def test_golden_rows() -> None:
    """Proportions; a tiny share, one that is just not tiny beside one that is; a tiny factor; both."""
    assert integer_weights([100, 300]) == (16384, 49152)
    assert integer_weights([1, 1 << 30]) == (1, 65534)
    assert integer_weights([100, 100, 100], [65536, 65536, 2]) == (32767, 32767, 0)
    assert integer_weights([1000, 1, 65_534_989]) == (1, 1, 65532)
    assert integer_weights([1, 1 << 30, 1 << 30], [1, 100, 100]) == (0, 32767, 32767)
    assert integer_weights([1, 1 << 30, 1 << 30], [50, 100, 100]) == (1, 32767, 32767)
    assert integer_weights([0, 0]) == (0, 0)
