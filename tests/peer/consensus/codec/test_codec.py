"""Encoding numbers, and averaging them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from peer.consensus.codec.blockwise import BLOCK, FLOAT16_MAX, TILE, Floats, tiles
from peer.consensus.codec.codec import Codec, weighted_mean

vectors = arrays.arrays(np.float32, 7, elements=st.floats(-100, 100, width=32))


@given(values=arrays.arrays(np.float32, 9, elements=st.floats(width=32)))
def test_float32_is_exact(values: Floats) -> None:
    """Bit for bit, NaN and infinities included."""
    codec = Codec("float32")
    assert codec.decode(codec.encode(values)).tobytes() == values.tobytes()


@pytest.mark.slow
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


def test_every_float16_decodes_to_the_number_that_it_is() -> None:
    every = np.arange(1 << 16, dtype="<u2")
    assert np.array_equal(
        Codec("float16").decode(every.tobytes()), every.view("<f2").astype(np.float32), equal_nan=True
    )


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


def test_a_mean_without_some_who_offered_is_smaller_by_the_root_of_their_share() -> None:
    """One of four equal weights is here: half of its values (Σw·x / √(Σw · Σw offered))."""
    ones = np.ones(8, np.float32)
    assert np.array_equal(weighted_mean([ones], [100], missing=300), ones / 2)
    assert np.array_equal(weighted_mean([ones, ones], [50, 50], missing=0), ones)


def test_a_zero_weight_leaves_no_trace() -> None:
    """Who trained on nothing moves nothing."""
    ones = np.ones(3, np.float32)
    assert np.array_equal(weighted_mean([ones, 100 * ones], [5, 0]), ones)


def test_a_pull_is_one_more_contribution_and_a_scale_comes_last() -> None:
    """c · (Σ w·x + p·v) / √(W · (W + missing)) with W = Σ w + p."""
    ones, last = np.ones(8, np.float32), np.full(8, 3, np.float32)
    assert np.array_equal(weighted_mean([ones], [50], pull=50, last=last), 2 * ones)
    assert np.array_equal(weighted_mean([ones], [50], pull=50, last=last, scale=1 << 14), ones / 2)
    assert np.array_equal(weighted_mean([ones], [50], 300, pull=50, last=last), ones)
    assert np.array_equal(weighted_mean([ones], [50], pull=50), ones / 2), "no last mean: zero"
    assert np.array_equal(weighted_mean([ones], [50], last=last), ones), "no pull"
    assert np.array_equal(weighted_mean([ones], [50], scale=0), 0 * ones)


def test_the_order_is_part_of_the_result() -> None:
    """Same values, weights and order: same bits, so that an audit can repeat it."""
    parts = [np.random.default_rng(seed).normal(size=50).astype(np.float32) for seed in range(5)]
    weights = [3, 1, 4, 1, 5]
    assert weighted_mean(parts, weights).tobytes() == weighted_mean(list(parts), list(weights)).tobytes()


@given(payload=st.data(), wire=st.sampled_from(("float32", "float16", "int8", "int4")))
def test_what_is_called_finite_decodes_to_finite_numbers(payload: st.DataObject, wire: str) -> None:
    """Whatever the bytes are: a block's scale may be finite and too large for its integers."""
    codec = Codec(wire)
    size = codec.part_bytes(64)
    begins = payload.draw(st.sampled_from((b"", b"\x7f\x7f", b"\x80\x7f", b"\x00\x7f", b"\xff\xff", b"\x00\x7b")))
    packed = (begins + payload.draw(st.binary(min_size=size, max_size=size)))[:size]
    assert not codec.is_finite(packed) or np.isfinite(codec.decode(packed)).all()


@pytest.mark.slow
@given(values=arrays.arrays(np.float32, 64, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
@pytest.mark.parametrize("wire", ["float32", "float16", "int8", "int4"])
def test_what_was_encoded_from_finite_numbers_is_finite(wire: str, values: Floats) -> None:
    """The largest saturate; NaN and infinity are not."""
    codec = Codec(wire)
    assert codec.is_finite(codec.encode(values))
    for odd in (np.nan, np.inf, -np.inf):
        spoilt = values.copy()
        spoilt[7] = odd
        assert codec.is_finite(codec.encode(spoilt)) == (wire == "float16" and not np.isnan(odd))


block_values = arrays.arrays(np.float32, st.integers(1, 200), elements=st.floats(-(2.0**99), 2.0**99, width=32))


@pytest.mark.parametrize(("wire", "most", "bytes_per_block"), [("int8", 127, 66), ("int4", 7, 34)])
class TestBlocks:
    """int8 and int4: blocks of 64 with a shared bfloat16 scale."""

    @pytest.mark.slow
    @given(values=block_values)
    def test_the_error_is_at_most_half_a_level(
        self, wire: str, most: int, bytes_per_block: int, values: Floats
    ) -> None:
        """A level is the block's largest magnitude over the largest integer, rounded up by at most 1/128."""
        decoded = Codec(wire).decode(Codec(wire).encode(values))[: values.size]
        for start in range(0, values.size, 64):
            block = values[start : start + 64]
            level = np.float64(np.max(np.abs(block))) / most * (1 + 2.0**-7)
            error = np.max(np.abs(decoded[start : start + 64].astype(np.float64) - block))
            assert error <= 0.5 * level * (1 + 1e-6) + 1e-38

    def test_sizes(self, wire: str, most: int, bytes_per_block: int) -> None:
        """Whole blocks: 1.03 and 0.53 bytes per element."""
        for elements, blocks in ((1, 1), (64, 1), (65, 2), (6400, 100)):
            encoded = Codec(wire).encode(np.ones(elements, np.float32))
            assert len(encoded) == Codec(wire).part_bytes(elements) == blocks * bytes_per_block

    def test_what_is_not_finite_stays_so_and_spoils_only_its_block(
        self, wire: str, most: int, bytes_per_block: int
    ) -> None:
        """Judging it is not the codec's business."""
        for bad in (np.nan, np.inf, -np.inf):
            values = np.ones(128, np.float32)
            values[3] = bad
            decoded = Codec(wire).decode(Codec(wire).encode(values))
            assert np.isnan(decoded[:64]).all()
            assert np.isfinite(decoded[64:]).all()

    def test_extremes(self, wire: str, most: int, bytes_per_block: int) -> None:
        """Zeros are exact, the smallest numbers come to no harm, the largest saturate."""
        values = np.zeros(192, np.float32)
        values[64:128] = 1e-45
        values[128:] = 3e38
        decoded = Codec(wire).decode(Codec(wire).encode(values))
        assert (decoded[:64] == 0).all()
        assert (np.abs(decoded[64:128]) <= 1e-38).all()
        assert np.isfinite(decoded[128:]).all()
        assert (decoded[128:] > 9e37).all()

    def test_the_largest_value_of_a_block_is_nearly_exact(self, wire: str, most: int, bytes_per_block: int) -> None:
        """It takes the largest integer, so only the scale's rounding separates it."""
        values = np.linspace(-1, 1, 64, dtype=np.float32)
        decoded = Codec(wire).decode(Codec(wire).encode(values))
        assert abs(decoded[-1] - 1) <= 2.0**-7
        assert decoded[0] == -decoded[-1]


@pytest.mark.parametrize("wire", ["float16", "int8", "int4"])
def test_error_feedback_loses_nothing_over_rounds(wire: str) -> None:
    """What rounding left is offered next: the sum of what was sent follows the sum of what was produced."""
    dice, codec = np.random.default_rng(1), Codec(wire)
    produced, sent, residual = np.zeros(640), np.zeros(640), np.zeros(640, np.float32)
    for _ in range(50):
        movement = dice.normal(0, 1e-3, 640).astype(np.float32)
        produced += movement
        residual += movement
        decoded = codec.decode(codec.encode(residual))
        residual -= decoded
        sent += decoded
    assert np.max(np.abs(produced - sent - residual)) < 1e-6
    assert np.max(np.abs(residual)) < 2e-3


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["float32", "float16", "int8", "int4"])
@pytest.mark.parametrize("elements", [BLOCK, TILE - 1, TILE, TILE + 1, 2 * TILE + 3 * BLOCK])
def test_tiles_leave_no_trace(wire: str, elements: int) -> None:
    """Blocks encoded one by one are the blocks of the part, and a tile decodes as in its part; odd blocks, too."""
    codec = Codec(wire)
    values = np.random.default_rng(elements).standard_normal(elements).astype(np.float32)
    values[:: 5 * BLOCK] = np.inf
    values[BLOCK // 2 :: 7 * BLOCK] = 3e38
    payload = codec.encode(values)
    decoded = codec.decode(payload)
    alone = [codec.decode(codec.encode(values[at : at + BLOCK])) for at in range(0, elements, BLOCK)]
    assert decoded.tobytes() == np.concatenate(alone)[: decoded.size].tobytes()
    assert codec.elements(payload) == decoded.size
    for tile in tiles(decoded.size):
        assert codec.opened(payload)(tile).tobytes() == decoded[tile].tobytes()


KNOWN = {
    "float32": "969a108ed7a3011f",
    "float16": "3bf6e861b468749e",
    "int8": "9926643acd3e1a1d",
    "int4": "a33263ee5d4d8b6a",
}


def test_the_bytes_are_those_that_they_were() -> None:
    """A peer whose program is newer must encode alike: scales first, then the integers; these were made in 2026."""
    values = (np.arange(130, dtype=np.float32) - 60) / 8
    digests = {wire: hashlib.blake2b(Codec(wire).encode(values), digest_size=8).hexdigest() for wire in KNOWN}
    assert digests == KNOWN
