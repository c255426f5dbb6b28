"""Encoding numbers, and averaging them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from peer.averaging.codec import FLOAT16_MAX, Codec, Floats, weighted_mean

vectors = arrays.arrays(np.float32, 7, elements=st.floats(-100, 100, width=32))


@given(values=arrays.arrays(np.float32, 9, elements=st.floats(width=32)))
def test_float32_is_exact(values: Floats) -> None:
    """Bit for bit, NaN and infinities included."""
    codec = Codec("float32")
    assert codec.decode(codec.encode(values)).tobytes() == values.tobytes()


@given(values=arrays.arrays(np.float32, 9, elements=st.floats(width=32, allow_nan=False)))
def test_float16_saturates(values: Floats) -> None:
    """Nothing finite becomes infinite, and what fits is off by half a unit in the last place at most."""
    decoded = Codec("float16").decode(Codec("float16").encode(values))
    clipped = np.clip(values, -FLOAT16_MAX, FLOAT16_MAX)
    assert np.isfinite(decoded).all()
    assert np.all(np.abs(decoded - clipped) <= np.maximum(np.abs(clipped) * 2.0**-11, 2.0**-25))


def test_nan_stays_nan() -> None:
    """Judging it is not the codec's business."""
    values = np.array([np.nan, 1.0], np.float32)
    assert np.isnan(Codec("float16").decode(Codec("float16").encode(values))).tolist() == [True, False]


@pytest.mark.parametrize(("wire", "size"), [("float32", 4), ("float16", 2)])
def test_sizes(wire: str, size: int) -> None:
    """As announced, so that a payload of another size can be refused."""
    assert Codec(wire).part_bytes(10) == len(Codec(wire).encode(np.zeros(10, np.float32))) == 10 * size


def test_decoding_twice_gives_the_same_bytes_as_once() -> None:
    """Encoded values are fixed points: a mean that is passed on does not wander."""
    codec = Codec("float16")
    once = codec.encode(np.linspace(-3, 3, 100, dtype=np.float32))
    assert codec.encode(codec.decode(once)) == once


@given(parts=st.lists(vectors, min_size=1, max_size=6), data=st.data())
def test_the_mean_is_the_weighted_mean(parts: list[Floats], data: st.DataObject) -> None:
    """To 1e-6 of the largest value, against float64."""
    weights = data.draw(st.lists(st.integers(1, 65536), min_size=len(parts), max_size=len(parts)))
    exact = np.average(np.array(parts, np.float64), axis=0, weights=weights)
    assert np.max(np.abs(weighted_mean(parts, weights) - exact)) <= 1e-6 * max(1.0, float(np.max(np.abs(parts))))


@given(values=vectors, weight=st.integers(1, 65536))
def test_the_mean_of_one_is_that_one(values: Floats, weight: int) -> None:
    """Exactly, whatever it weighs."""
    assert np.array_equal(weighted_mean([values], [weight]), values)


def test_a_zero_weight_leaves_no_trace() -> None:
    """Who trained on nothing moves nothing."""
    ones = np.ones(3, np.float32)
    assert np.array_equal(weighted_mean([ones, 100 * ones], [5, 0]), ones)


def test_the_order_is_part_of_the_result() -> None:
    """Same values, weights and order: same bits, so that an audit can repeat it."""
    parts = [np.random.default_rng(seed).normal(size=50).astype(np.float32) for seed in range(5)]
    weights = [3, 1, 4, 1, 5]
    assert weighted_mean(parts, weights).tobytes() == weighted_mean(list(parts), list(weights)).tobytes()
