"""How a model is cut into parts, and who reduces them."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from peer.rounds.layout import Part, assign, cut
from peer.rounds.names import digest

sizes = st.lists(st.integers(1, 5000), min_size=1, max_size=12)
members_and_bandwidths = st.integers(1, 12).flatmap(
    lambda count: st.tuples(
        st.just(tuple(f"p{index}" for index in range(count))),
        st.lists(st.integers(0, 2**62), min_size=count, max_size=count),
    )
)


@given(layer_sizes=sizes, most=st.integers(64, 1000))
def test_parts_cover_the_model_in_order_and_never_cross_a_layer(layer_sizes: list[int], most: int) -> None:
    """Every element in exactly one part; each part inside one layer and no larger than asked."""
    parts = cut(layer_sizes, most)
    assert all(0 < part.size <= most for part in parts)
    assert [part.start for part in parts] == [sum(part.size for part in parts[:index]) for index in range(len(parts))]
    for layer, size in enumerate(layer_sizes):
        assert sum(part.size for part in parts if part.layer == layer) == size


@given(layer_sizes=sizes, most=st.integers(64, 1000))
def test_the_parts_of_a_layer_are_alike(layer_sizes: list[int], most: int) -> None:
    """No tiny remainder: the parts of one layer differ by one element at most."""
    parts = cut(layer_sizes, most)
    for _, group in groupby(parts, key=lambda part: part.layer):
        found = [part.size for part in group]
        assert max(found) - min(found) <= 1


@given(layer_sizes=sizes, who=members_and_bandwidths, ballot=st.integers(0, 2**31))
def test_every_part_has_one_reducer_and_every_reducer_one_run(
    layer_sizes: list[int], who: tuple[tuple[str, ...], list[int]], ballot: int
) -> None:
    """Also with bandwidths that nobody has."""
    members, bandwidths = who
    owners = assign(cut(layer_sizes, 64), members, bandwidths, b"a" * 32, ballot)
    runs = [name for name, _ in groupby(owners)]
    assert set(runs) <= set(members)
    assert len(runs) == len(set(runs))


def test_shares_follow_bandwidth() -> None:
    """Three to one, up to one part."""
    parts = tuple(Part(0, index, 1) for index in range(400))
    owners = assign(parts, ("slow", "fast"), (10, 30), b"a" * 32, 0)
    assert abs(owners.count("fast") - 300) <= 1


def test_unknown_bandwidth_means_equal_shares() -> None:
    """Zero is a peer that does not know."""
    parts = tuple(Part(0, index, 1) for index in range(400))
    owners = assign(parts, ("a", "b", "c", "d"), (0, 0, 0, 0), b"a" * 32, 0)
    assert {owners.count(name) for name in "abcd"} == {100}


def test_runs_rotate_with_anchor_and_ballot() -> None:
    """Over many rounds each member is the first reducer about equally often."""
    parts = tuple(Part(0, index, 1) for index in range(3))
    first = [assign(parts, ("a", "b", "c"), (0, 0, 0), digest(number), 0)[0] for number in range(300)]
    assert all(first.count(name) > 60 for name in "abc")
    ballots = {assign(parts, ("a", "b", "c"), (0, 0, 0), b"a" * 32, ballot) for ballot in range(20)}
    assert len(ballots) == 3
