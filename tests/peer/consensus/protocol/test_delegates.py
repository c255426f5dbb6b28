"""Delegates in a header: whom it may name, and that a header without any is what it always was."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.consensus.protocol.block import MAX_DELEGATES, ContributionHeader, Delegate
from peer.consensus.protocol.bounds import fault_of_header, within
from peer.consensus.protocol.encoding import pack, unpack
from peer.consensus.protocol.layout import Part
from peer.consensus.protocol.messages import Promise, decode, encode
from peer.testing.memory_peer import ModelKeys
from tests.peer.consensus.rounds.build import header, place, rules

LAYERS = 40
RULES = replace(
    rules("p0"), parts=tuple(Part(layer, layer, 1) for layer in range(LAYERS)), part_bytes=(8,) * LAYERS
)  # fmt: skip
HUGE = (1 << 63) - 1


def fault_of(*delegates: Delegate) -> tuple[str, str]:
    return fault_of_header(RULES, header("p0", ranges=(), delegates=delegates))


def test_a_header_without_delegates_is_packed_as_if_there_were_no_such_field() -> None:
    plain = header("p0")
    fields = (
        plain.peer, plain.anchor, plain.root, plain.tokens, plain.steps, plain.bandwidth_bps, plain.leaving,
        plain.ranges, plain.staleness, plain.reports, plain.away, plain.norms,
    )  # fmt: skip
    assert pack(plain.packed()) == pack((*fields, plain.signature))
    assert plain.signature == ModelKeys("p0").sign("header", pack(fields[1:]))
    assert ContributionHeader.unpacked(plain.packed()) == plain


def test_delegates_are_signed_and_come_back_from_a_frame() -> None:
    named = header("p0", delegates=((1, 2, "w0"), (3, 3, "w1")))
    assert decode(encode(Promise(place(), named))) == Promise(place(), named)
    assert named.genuine(ModelKeys("p1"))
    assert not replace(named, delegates=((1, 2, "w0"), (3, 3, "w2"))).genuine(ModelKeys("p1"))
    assert not replace(named, delegates=()).genuine(ModelKeys("p1"))
    assert not replace(header("p0"), delegates=((1, 2, "w0"),)).genuine(ModelKeys("p1"))


@pytest.mark.parametrize(
    "said",
    [(), ((1, 2),), ((1, 2, "w", 3),), ((1, 2, b"w"),), (("1", 2, "w"),), None, ((0, 0, "w"),) * (MAX_DELEGATES + 1)],
)
def test_what_is_no_list_of_delegates_is_not_read(said: Any) -> None:
    """An empty one neither: a digest names one header."""
    with pytest.raises(ValueError, match="expected"):
        ContributionHeader.unpacked((*header("p0").packed(), said))


@pytest.mark.parametrize(
    "delegates",
    [
        ((0, LAYERS, "w0"),),
        ((LAYERS, LAYERS, "w0"),),
        ((-1, 2, "w0"),),
        ((3, 2, "w0"),),
        ((0, HUGE, "w0"),),
        ((-HUGE, HUGE, "w0"),),
        ((1, 2, "w0"), (2, 3, "w1")),
        ((3, 4, "w0"), (1, 2, "w1")),
        ((1, 2, "w0"), (3, 4, "w0")),
        ((1, 2, "p0"),),
        ((1, 2, ""),),
    ],
)
def test_delegates_have_bounds(delegates: tuple[Delegate, ...]) -> None:
    """And what exceeds them can be read by everybody, or it could not be held against its author."""
    assert fault_of(*delegates)[0] == "DELEGATES"
    promise = Promise(place(), header("p0", delegates=delegates))
    assert decode(encode(promise)) == promise


cuts = st.sets(st.integers(0, LAYERS), min_size=2, max_size=MAX_DELEGATES + 1)


@given(cuts=cuts, data=st.data())
def test_what_is_in_order_is_taken_and_tells_who_has_a_layer(cuts: set[int], data: st.DataObject) -> None:
    edges = sorted(cuts)
    whole = [(first, end - 1, f"w{first}") for first, end in pairwise(edges)]
    named = tuple(data.draw(st.lists(st.sampled_from(whole), unique=True, min_size=1).map(sorted)))
    assert fault_of(*named) == ("", "")
    honest = header("p0", ranges=(), delegates=named)
    assert within(RULES, honest) == honest
    assert ContributionHeader.unpacked(unpack(pack(honest.packed()))) == honest
    for layer in range(LAYERS):
        owners = [peer for first, last, peer in named if first <= layer <= last]
        assert honest.holder_of(layer) == (owners[0] if owners else "p0")


numbers = st.integers(-3, LAYERS + 2)


@given(named=st.lists(st.tuples(numbers, numbers, st.sampled_from(["p0", "w0", "w1", "w2", ""])), max_size=4))
def test_nothing_else_is(named: list[tuple[int, int, str]]) -> None:
    layers = [layer for first, last, _ in named for layer in range(first, last + 1)]
    names = [peer for *_, peer in named]
    fine = (
        all(first <= last for first, last, _ in named) and layers == sorted(set(layers))
        and all(0 <= layer < LAYERS for layer in layers) and len(set(names)) == len(names)
        and not {"", "p0"} & set(names)
    )  # fmt: skip
    assert (fault_of(*named)[0] == "") == fine
