"""The sparse layouts: what is sent, what is refused, and that every machine chooses alike."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.consensus.codec.codec import FORMATS, Codec, Floats, weighted_mean
from peer.consensus.codec.topk import CHUNK, IN_CONTRIBUTION, IN_MEAN, largest, packed_places, unpacked_places

CONTRIBUTION, MEAN = Codec("sparse"), Codec("sparse").of_means
BOTH = pytest.mark.parametrize(("codec", "kept"), [(CONTRIBUTION, IN_CONTRIBUTION), (MEAN, IN_MEAN)])


def heavy(elements: int, seed: int = 1) -> Floats:
    """Values as updates have them: most are small."""
    dice = np.random.default_rng(seed)
    return (dice.standard_normal(elements) * dice.exponential(1e-3, elements)).astype(np.float32)


def kept_by_hand(values: Floats, kept: int) -> set[int]:
    """Places of the largest magnitudes, of equal ones the first, none that is zero."""
    order = sorted(range(values.size), key=lambda at: (-abs(float(values[at])), at))
    return {at for at in order[:kept] if values[at]}


def test_a_mean_is_larger_than_a_contribution_and_all_other_codecs_have_one_size() -> None:
    """116 and 642 bytes for 4,096 elements; a chunk that is not full takes as much."""
    assert [codec.part_bytes(elements) for codec in (CONTRIBUTION, MEAN) for elements in (1, CHUNK, CHUNK + 1)] == [
        116, 116, 232, 642, 642, 1284,
    ]  # fmt: skip
    assert all(Codec(wire).of_means == Codec(wire) for wire in FORMATS if wire != "sparse")


@BOTH
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_the_largest_are_sent_and_nothing_else(codec: Codec, kept: int, data: st.DataObject) -> None:
    """With many of equal size, few that are not zero, or a chunk that is not full."""
    elements = data.draw(st.integers(1, 2 * CHUNK))
    dice = np.random.default_rng(data.draw(st.integers(0, 1000)))
    values = dice.integers(-3, 4, elements).astype(np.float32) * (dice.random(elements) < data.draw(st.floats(0, 1)))
    decoded = codec.decode(codec.encode(values.astype(np.float32)))
    for start in range(0, elements, CHUNK):
        chunk = values[start : start + CHUNK].astype(np.float32)
        assert set(np.flatnonzero(decoded[start : start + CHUNK]).tolist()) == kept_by_hand(chunk, kept)
    assert (decoded[elements:] == 0).all()


def test_each_is_sent_with_its_sign_and_the_nearer_of_two_magnitudes() -> None:
    """The medians of both halves; the largest 64 of normal values are 12 % off, in the mean square."""
    values = np.random.default_rng(3).standard_normal(CHUNK).astype(np.float32)
    decoded = CONTRIBUTION.decode(CONTRIBUTION.encode(values))
    sent = np.flatnonzero(decoded)
    assert len(set(np.abs(decoded[sent]).tolist())) == 2
    assert (np.sign(decoded[sent]) == np.sign(values[sent])).all()
    assert np.sqrt(np.mean((decoded[sent] - values[sent]) ** 2)) < 0.12 * np.sqrt(np.mean(values[sent] ** 2))


def test_a_mean_keeps_what_four_contributions_hold() -> None:
    """4 · 64 places fit into 256: nothing is left out, and 8 bits err by half a level of the largest."""
    parts = [CONTRIBUTION.decode(CONTRIBUTION.encode(heavy(3 * CHUNK, seed))) for seed in range(4)]
    mean = weighted_mean(parts, [3, 1, 4, 1])
    decoded = MEAN.decode(MEAN.encode(mean))
    for start in range(0, mean.size, CHUNK):
        chunk, back = mean[start : start + CHUNK], decoded[start : start + CHUNK]
        assert np.count_nonzero(chunk) <= IN_MEAN
        assert np.max(np.abs(chunk - back)) <= 0.51 * np.max(np.abs(chunk)) / 127 * (1 + 2.0**-7)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), elements=st.integers(1, 3 * CHUNK))
def test_what_was_decoded_is_encoded_to_the_same_bytes(seed: int, elements: int) -> None:
    """A contribution's two magnitudes are fixed points."""
    once = CONTRIBUTION.encode(heavy(elements, seed))
    assert CONTRIBUTION.encode(CONTRIBUTION.decode(once)[:elements]) == once


@BOTH
def test_zeros_stay_zeros(codec: Codec, kept: int) -> None:
    payload = codec.encode(np.zeros(2 * CHUNK, np.float32))
    assert payload == bytes(len(payload))
    assert (codec.decode(payload) == 0).all()
    assert codec.is_finite(payload)


@BOTH
def test_extremes(codec: Codec, kept: int) -> None:
    """The largest saturate, the smallest come to no harm."""
    values = np.zeros(2 * CHUNK, np.float32)
    values[:CHUNK] = 3e38
    values[CHUNK:] = 1e-45
    payload = codec.encode(values)
    decoded = codec.decode(payload)
    assert codec.is_finite(payload)
    assert (decoded[:kept] > 9e37).all()
    assert np.isfinite(decoded).all()
    assert (np.abs(decoded[CHUNK:]) <= 1e-38).all()


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so_and_spoils_only_its_chunk(codec: Codec, kept: int, bad: float) -> None:
    values = heavy(2 * CHUNK)
    values[100] = bad
    payload = codec.encode(values)
    decoded = codec.decode(payload)
    assert not codec.is_finite(payload)
    assert np.isnan(decoded[:CHUNK]).any()
    assert np.isfinite(decoded[CHUNK:]).all()


# ---- bytes that nobody encodes


@BOTH
@given(noise=st.binary(min_size=1284, max_size=1284))
def test_any_bytes_of_the_right_size_decode_and_what_is_called_finite_is(codec: Codec, kept: int, noise: bytes) -> None:
    payload = noise[: codec.part_bytes(2 * CHUNK)]
    decoded = codec.decode(payload)
    assert decoded.size == 2 * CHUNK
    assert not codec.is_finite(payload) or np.isfinite(decoded).all()


@BOTH
@pytest.mark.parametrize("size", [1, 115, 117, 641, 643])
def test_bytes_of_another_size_are_refused(codec: Codec, kept: int, size: int) -> None:
    with pytest.raises(ValueError, match="no whole units"):
        codec.decode(bytes(size))


@BOTH
@pytest.mark.parametrize("forge", ["swapped", "said twice"])
def test_places_out_of_order_and_two_values_of_one_place_are_nan(codec: Codec, kept: int, forge: str) -> None:
    """Whichever of two values a processor would write last would be its own; so it is neither."""
    payload = bytearray(codec.encode(heavy(2 * CHUNK)))
    levels, places_bytes = (size * 2 for size in FORMATS[codec.wire].sections[:2])
    section = np.frombuffer(bytes(payload[levels : levels + places_bytes]), np.uint8).reshape(2, -1)
    places = unpacked_places(section)
    if forge == "swapped":
        places[0, [3, 4]] = places[0, [4, 3]]
    else:
        values_at = levels + places_bytes
        payload[values_at] ^= 0b0110_1100 if kept == IN_CONTRIBUTION else 1
        values = codec.decode(bytes(payload))[:CHUNK]
        signs = np.sign(values[places[0]])
        first = next(at for at in range(kept - 1) if signs[at] != signs[at + 1])
        places[0, first + 1] = places[0, first]
    payload[levels : levels + places_bytes] = packed_places(places).tobytes()
    decoded = codec.decode(bytes(payload))
    assert np.isnan(decoded[:CHUNK]).all()
    assert np.isfinite(decoded[CHUNK:]).all()
    assert not codec.is_finite(bytes(payload))


@given(seed=st.integers(0, 1000))
def test_places_are_packed_into_12_bits(seed: int) -> None:
    places = np.random.default_rng(seed).integers(0, CHUNK, (3, 64))
    packed = packed_places(places)
    assert packed.shape == (3, 96)
    assert np.array_equal(unpacked_places(packed), places)


def test_of_equal_magnitudes_the_first_are_chosen() -> None:
    """Else two machines, whose selection goes other ways, would encode one mean to different bytes."""
    rows = np.ones((1, CHUNK), np.float32)
    rows[0, ::2] = -1
    rows[0, 4000] = 2
    assert largest(rows, 64).tolist() == [[*range(63), 4000]]


@pytest.mark.slow
def test_error_feedback_sends_everything_in_the_end() -> None:
    """What was not among the largest grows until it is: the sum of what was sent follows what was produced."""
    dice = np.random.default_rng(1)
    direction = dice.normal(0, 1e-3, CHUNK)
    residual, sent, rounds = np.zeros(CHUNK, np.float32), np.zeros(CHUNK), 2000
    for _ in range(rounds):
        residual += direction.astype(np.float32)
        decoded = CONTRIBUTION.decode(CONTRIBUTION.encode(residual))
        residual -= decoded
        sent += decoded
    produced = rounds * direction
    assert np.max(np.abs(produced - sent - residual)) < 1e-2
    assert np.linalg.norm(residual) < 0.06 * np.linalg.norm(produced)


KNOWN = {"sparse": "8564a36d94e3e711", "sparse mean": "492e7f7926d9e1eb"}


def test_the_bytes_are_those_that_they_were() -> None:
    """A peer whose program is newer must encode alike; these were made in 2026."""
    values = ((np.arange(5000, dtype=np.float32) * 37) % 1009 - 500) / 8
    digests = {wire: hashlib.blake2b(Codec(wire).encode(values), digest_size=8).hexdigest() for wire in KNOWN}
    assert digests == KNOWN
