"""How a model is cut into parts, which of them a round averages, and who reduces them."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.consensus.protocol.layout import Part, assign, cut, divide, share_out, shares_of, turns

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
    owners = assign(cut(layer_sizes, 64), members, bandwidths, ballot)
    runs = [name for name, _ in groupby(owners)]
    assert set(runs) <= set(members)
    assert len(runs) == len(set(runs))


def test_shares_follow_bandwidth() -> None:
    """Three to one, up to one part."""
    parts = tuple(Part(0, index, 1) for index in range(400))
    owners = assign(parts, ("slow", "fast"), (10, 30), 0)
    assert abs(owners.count("fast") - 300) <= 1


@pytest.mark.parametrize(
    ("upload_bps", "shares"),
    [
        ([20, 40, 60], [20, 40, 60]),
        ([20, 0, 60, 30], [20, 30, 60, 30]),  # who does not know is taken to be usual
        ([20, 0, 2**60], [20, 20, 40]),  # who boasts gets twice that, and does not change what is usual
        ([0, 2**60], [2**60, 2**60]),
        ([0, 0, 0], [1, 1, 1]),
    ],
)
def test_what_members_say_to_send(upload_bps: list[int], shares: list[int]) -> None:
    assert shares_of(upload_bps) == shares


def test_unknown_bandwidth_means_equal_shares() -> None:
    """Zero is a peer that does not know."""
    parts = tuple(Part(0, index, 1) for index in range(400))
    owners = assign(parts, ("a", "b", "c", "d"), (0, 0, 0, 0), 0)
    assert {owners.count(name) for name in "abcd"} == {100}


def test_runs_rotate_with_rounds_and_ballots() -> None:
    """Each member reduces the first part in its turn, whatever a coordinator writes."""
    parts = tuple(Part(0, index, 1) for index in range(3))
    first = [assign(parts, ("a", "b", "c"), (0, 0, 0), turn)[0] for turn in range(6)]
    assert first == ["a", "b", "c", "a", "b", "c"]


# ---- fragments ----


@given(layer_sizes=sizes, fragments=st.integers(1, 12))
def test_every_part_is_in_one_fragment_with_all_of_its_layer(layer_sizes: list[int], fragments: int) -> None:
    """Fragments are sets of whole layers, none of them empty, and keep the order and the names of the model."""
    fragments = min(fragments, len(layer_sizes))
    parts = cut(layer_sizes, 700)
    divided = divide(parts, fragments)
    assert sorted(number for fragment in divided for number in fragment.numbers) == list(range(len(parts)))
    assert sorted(layer for fragment in divided for layer in fragment.layers) == list(range(len(layer_sizes)))
    for fragment in divided:
        assert fragment.parts
        assert fragment.parts == tuple(parts[number] for number in fragment.numbers)
        assert [fragment.layers[row] for row in fragment.rows] == [part.layer for part in fragment.parts]
        assert list(fragment.numbers) == sorted(fragment.numbers)
        assert list(fragment.layers) == sorted(fragment.layers)


@given(layer_sizes=sizes, fragments=st.integers(1, 12))
def test_fragments_are_about_equally_large(layer_sizes: list[int], fragments: int) -> None:
    """No round carries more than its share and what one layer cannot be cut into."""
    fragments = min(fragments, len(layer_sizes))
    loads = [sum(part.size for part in each.parts) for each in divide(cut(layer_sizes, 700), fragments)]
    assert max(loads) <= sum(layer_sizes) / fragments + max(layer_sizes) * (1 - 1 / fragments)
    assert max(loads) - min(loads) <= max(layer_sizes)


def test_equal_blocks_go_around() -> None:
    """So that each fragment is spread over the depth of the model; the embedding weighs against blocks."""
    assert share_out([5] * 7, 3) == (0, 1, 2, 0, 1, 2, 0)
    assert share_out([10, 4, 4, 4, 4, 4, 4, 1], 2) == (0, 1, 1, 1, 0, 1, 0, 1)


def test_one_fragment_is_the_model() -> None:
    """Whoever averages the whole model has the numbers of the model."""
    parts = cut([100, 3000, 5], 700)
    (whole,) = divide(parts, 1)
    assert whole.parts == parts
    assert whole.numbers == tuple(range(len(parts)))
    assert whole.rows == tuple(part.layer for part in parts)


def test_no_more_fragments_than_layers() -> None:
    """A layer is never cut between fragments."""
    with pytest.raises(ValueError, match="a model of 2 layers cannot be averaged in 3 fragments"):
        divide(cut([5, 5], 64), 3)


@given(fragments=st.integers(1, 9), round=st.integers(0, 60))
def test_turns_are_the_rounds_of_a_fragment(fragments: int, round: int) -> None:
    """Counted by going through them."""
    for fragment in range(fragments):
        before = sum(earlier % fragments == fragment for earlier in range(round))
        assert turns(fragment, fragments, round) == before
