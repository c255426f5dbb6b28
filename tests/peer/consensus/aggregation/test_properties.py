"""What holds for any norms, under every reducer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from peer.consensus.aggregation.aggregate import AggregationResult, aggregate
from peer.consensus.aggregation.evidence import MEAN_ONLY, WEIGHT_ONE, AggregationRules, Contributor, LayerNorms
from peer.consensus.aggregation.peer_history import NormStats, PeerHistory
from peer.consensus.aggregation.weights import integer_weights
from tests.peer.consensus.aggregation.build import ELEMENTS, claims, history, name, norms

FIXED = settings(derandomize=True, deadline=None, max_examples=50)
REDUCERS = ("mean", "edit", "agreement", "centered-clip")
EDIT = AggregationRules(warmup_rounds=4)
SIZES = st.floats(0.01, 100)
ANY = st.none() | st.floats() | st.sampled_from([0.0, 5e-324, 1e-320, 1e17, 1e18, 1e308, math.inf, math.nan])


@st.composite
def stats(draw: st.DrawFn) -> NormStats:
    mean = draw(st.floats(0.01, 10))
    return NormStats(mean, draw(st.floats(0, 4)) * mean, draw(st.integers(0, 9)), draw(st.integers(0, 5))).rounded()


@st.composite
def rounds(draw: st.DrawFn, figures: st.SearchStrategy[Any] = SIZES) -> tuple[Any, ...]:
    """Records, claims and layers of up to seven members; some of them new, some with nothing to give."""
    count, depth = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    seen = st.integers(0, 3)
    records = tuple(
        PeerHistory(name(index), draw(seen), tuple(draw(stats()) for _ in range(depth)), b"")
        for index in range(count)
        if draw(st.booleans())
    )
    members = claims(
        count, 5,
        shares=draw(st.lists(st.integers(0, 10**9), min_size=count, max_size=count)),
        steps=draw(st.lists(st.integers(1, 500), min_size=count, max_size=count)),
    )  # fmt: skip
    column = st.tuples(*[figures] * count)
    layers = tuple(LayerNorms(draw(column), draw(column), draw(figures), ELEMENTS) for _ in range(depth))
    return records, members, layers


@pytest.mark.slow
@pytest.mark.parametrize("reducer", REDUCERS)
@FIXED
@given(case=rounds(ANY))
def test_whatever_is_measured_gives_integers(reducer: str, case: tuple[Any, ...]) -> None:
    """No figure makes it raise; rows and pulls are within the whole; every record survives its bytes."""
    records, members, layers = case
    found = aggregate(replace(EDIT, rule=reducer), 5, records, members, layers)
    assert len(found.weights) == len(found.scales) == len(found.pulls) == len(layers)
    for row, scale, pull in zip(found.weights, found.scales, found.pulls, strict=True):
        assert all(type(value) is int and value >= 0 for value in (*row, scale, pull))
        assert sum(row) + pull <= WEIGHT_ONE
        assert scale <= WEIGHT_ONE
    for finding in found.findings:
        assert type(finding.factor) is int
        assert 0 <= finding.factor <= WEIGHT_ONE
        assert len(finding.evidence) <= 120
        assert finding.evidence.isascii()
        assert finding.evidence.isprintable()
    keys = [(finding.peer, finding.code) for finding in found.findings]
    assert keys == sorted(set(keys))
    for record in found.records:
        assert PeerHistory.unpacked(msgpack.unpackb(msgpack.packb(record.packed()), use_list=False)) == record


@FIXED
@given(alpha=st.floats(0.001, 1.0), temperature=st.floats(0.01, 1000), clip=st.floats(1, 1000), case=rounds(ANY))
def test_any_standards_of_the_spec_will_do(
    alpha: float, temperature: float, clip: float, case: tuple[Any, ...]
) -> None:
    """At the ends of their ranges, too."""
    records, members, layers = case
    standards = AggregationRules(warmup_rounds=1, alpha=alpha, temperature=temperature, clip=clip, deviation_floor=0.0)
    found = aggregate(standards, 5, records, members, layers)
    assert all(sum(row) <= WEIGHT_ONE for row in found.weights)


@pytest.mark.slow
@pytest.mark.parametrize("reducer", REDUCERS)
@FIXED
@given(case=rounds(ANY), data=st.data())
def test_the_order_of_members_does_not_matter(reducer: str, case: tuple[Any, ...], data: st.DataObject) -> None:
    """Each keeps its weights, findings and records wherever it stands, and wherever its record does."""
    records, members, layers = case
    order = data.draw(st.permutations(range(len(members))))
    standards = replace(EDIT, rule=reducer)

    def moved(column: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(column[index] for index in order)

    one = aggregate(standards, 5, records, members, layers)
    shuffled = [LayerNorms(moved(layer.norms), moved(layer.dots), layer.direction, ELEMENTS) for layer in layers]
    other = aggregate(standards, 5, records[::-1], moved(members), shuffled)
    # The bound of the mean adds floats up, so a scale may differ in its last bit; all peers have one order.
    assert other.weights == tuple(moved(row) for row in one.weights)
    assert (other.pulls, other.findings, other.records) == (one.pulls, one.findings, one.records)
    assert all(abs(mine - theirs) <= 1 for mine, theirs in zip(one.scales, other.scales, strict=True))


def times(factor: float, case: tuple[Any, ...]) -> tuple[Any, ...]:
    """All norms of a round and its records, in another unit."""
    records, members, layers = case
    return (
        tuple(
            replace(
                record,
                stats=tuple(
                    replace(stat, mean=factor * stat.mean, variance=factor * factor * stat.variance)
                    for stat in record.stats
                ),
            )
            for record in records
        ),
        members,
        tuple(
            LayerNorms(
                tuple(factor * size for size in layer.norms), tuple(factor * factor * dot for dot in layer.dots),
                factor * layer.direction, ELEMENTS,
            )
            for layer in layers
        ),
    )  # fmt: skip


def integers_of(found: AggregationResult) -> list[int]:
    return [value for row in (*found.weights, found.scales, found.pulls) for value in row]


@pytest.mark.slow
@pytest.mark.parametrize("reducer", REDUCERS)
@FIXED
@given(case=rounds())
def test_the_unit_of_the_norms_does_not_matter(reducer: str, case: tuple[Any, ...]) -> None:
    """Exactly for powers of two; seven times as large rounds differently, by no more than some units."""
    standards = replace(EDIT, rule=reducer)
    one = aggregate(standards, 5, *case)
    assert integers_of(aggregate(standards, 5, *times(8.0, case))) == integers_of(one)
    seven = aggregate(standards, 5, *times(7.0, case))
    assert [(item.peer, item.code, item.layer) for item in seven.findings] == [
        (item.peer, item.code, item.layer) for item in one.findings
    ]
    assert all(abs(a - b) <= 16 for a, b in zip(integers_of(seven), integers_of(one), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("reducer", REDUCERS)
@FIXED
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=9), SIZES, st.floats(0.1, 1), st.integers(1, 500))
def test_equal_norms_equal_the_mean(reducer: str, shares: list[int], size: float, cosine: float, steps: int) -> None:
    """To the integer."""
    members = claims(len(shares), shares=shares, steps=[steps] * len(shares))
    layer = LayerNorms((size,) * len(shares), (size * cosine,) * len(shares), 1.0, ELEMENTS)
    found = aggregate(replace(EDIT, rule=reducer), 1, (), members, (layer,))
    assert found.weights == aggregate(MEAN_ONLY, 1, (), members, (layer,)).weights == (integer_weights(shares),)
    assert (found.scales, found.pulls, found.findings) == ((WEIGHT_ONE,), (0,), ())


@FIXED
@given(st.lists(st.floats(0.9, 1.1), min_size=1, max_size=8), st.integers(0, 8), st.data())
def test_one_that_is_a_hundredfold_is_as_if_it_were_not_there(
    sizes: list[float], place: int, data: st.DataObject
) -> None:
    """After the warm-up, however many others there are."""
    place %= len(sizes) + 1
    shares = data.draw(st.lists(st.integers(1, 10**6), min_size=len(sizes), max_size=len(sizes)))
    known = history(9)
    alone = aggregate(EDIT, 1, known, claims(len(sizes), shares=shares), norms(sizes)).weights[0]
    beside = aggregate(
        EDIT, 1, known, claims(len(sizes) + 1, shares=[*shares[:place], 10**6, *shares[place:]]),
        norms([*sizes[:place], 100 * sizes[0], *sizes[place:]]),
    )  # fmt: skip
    row = beside.weights[0]
    assert row[place] == 0
    assert row[:place] + row[place + 1 :] == alone
    assert [(item.peer, item.code, item.factor) for item in beside.findings] == [(name(place), "ANOMALY", 0)]


@pytest.mark.parametrize("reducer", ["edit", "agreement", "centered-clip"])
@FIXED
@given(st.lists(st.floats(5.1, 1e6), min_size=1, max_size=9))
def test_all_anomalous_gives_zeros(reducer: str, sizes: list[float]) -> None:
    """And what was usual stays usual."""
    known = history(len(sizes))
    found = aggregate(replace(EDIT, rule=reducer), 1, known, claims(len(sizes)), norms(sizes))
    assert found.weights == ((0,) * len(sizes),)
    assert found.pulls == (0,)
    assert [record.stats[0] for record in found.records] == [NormStats(1.0, 0.0, 50, 1)] * len(sizes)


@pytest.mark.parametrize("reducer", ["edit", "agreement", "centered-clip"])
@FIXED
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 6), st.lists(st.floats(0.001, 1e4), min_size=6, max_size=6),
    st.lists(st.integers(1, 400), min_size=6, max_size=6),
)  # fmt: skip
def test_the_clip_holds_for_real_vectors(
    reducer: str, seed: int, count: int, sizes: list[float], steps: list[int]
) -> None:
    """The norm of the scaled mean is at most three times what is usual for the median number of steps."""
    rng = np.random.default_rng(seed)
    last = rng.normal(size=40)
    vectors = [size * (rng.normal(size=40) + last) for size in sizes[:count]]
    layer = LayerNorms(
        tuple(float(np.linalg.norm(vector)) for vector in vectors),
        tuple(float(vector @ last) for vector in vectors),
        float(np.linalg.norm(last)),
        last.size,
    )
    new = tuple(PeerHistory(name(index), 0, (NormStats(1.0, 0.0, 1, 0),), b"") for index in range(count))
    known = (
        *new,
        PeerHistory("q", 0, (NormStats(1.0, 0.0, 9, 0),), b""),
    )  # of the members themselves z says nothing yet
    found = aggregate(replace(EDIT, rule=reducer), 1, known, claims(count, steps=steps[:count]), (layer,))
    row, pull = found.weights[0], found.pulls[0]
    assume(any(row))
    mean = sum(weight * vector for weight, vector in zip((*row, pull), (*vectors, last), strict=True))
    norm = float(np.linalg.norm(mean)) / (sum(row) + pull) * found.scales[0] / WEIGHT_ONE
    usual = sorted(steps[index] for index in range(count) if row[index])
    assert norm <= 3 * usual[(len(usual) - 1) // 2] ** 0.625 * (1 + 1e-9)


@FIXED
@given(st.lists(st.sampled_from([0.5, 0.9, 1.0, 1.1, 3.0, 50.0, math.nan]), min_size=1, max_size=40))
def test_a_long_run_keeps_its_records_in_bounds(sizes: list[float]) -> None:
    """Fed by its own records, with a new claim each round."""
    records: tuple[PeerHistory, ...] = ()
    for number, size in enumerate(sizes):
        members = (Contributor("p", 10, 4, b"%08d" % number),)
        found = aggregate(EDIT, number, records, members, norms([size]))
        records = tuple(PeerHistory.unpacked(record.packed()) for record in found.records)
        assert records == found.records
        assert records[0].stats[0].rejected <= number + 1
