"""Records: the same bytes everywhere, and nothing but records."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.consensus.aggregation.peer_history import MAX_COUNT, MAX_REJECTED, NormStats, PeerHistory, float32

FIXED = settings(derandomize=True, deadline=None)
SIZES = st.floats(0, 1e36)
STATS = st.builds(NormStats, SIZES, SIZES, st.integers(0, 1 << 20), st.integers(0, 1000)).map(NormStats.rounded)
RECORDS = st.builds(
    PeerHistory, st.text(max_size=64), st.integers(0, 1 << 40), st.lists(STATS, max_size=5).map(tuple),
    st.integers(0, 8).flatmap(lambda count: st.binary(min_size=8 * count, max_size=8 * count)),
)  # fmt: skip


@FIXED
@given(RECORDS)
def test_a_record_survives_its_bytes(record: PeerHistory) -> None:
    """Bit for bit, through msgpack."""
    packed = msgpack.packb(record.packed())
    again = PeerHistory.unpacked(msgpack.unpackb(packed, use_list=False))
    assert again == record
    assert msgpack.packb(again.packed()) == packed


def test_golden_bytes() -> None:
    """Little-endian float32, 16 bits, 8 bits."""
    record = PeerHistory("p", 3, (NormStats(1.0, 0.25, 258, 2),), b"12345678")
    assert record.packed() == ("p", 3, bytes.fromhex("0000803f0000803e020102"), b"12345678")


@pytest.mark.slow
@FIXED
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=5).map(tuple),
    )
)
def test_anything_else_is_refused(value: Any) -> None:
    """With ValueError, whatever it is."""
    with pytest.raises(ValueError, match="expected"):
        PeerHistory.unpacked(value)


GOOD = ("p", 3, bytes(11), b"")


@pytest.mark.parametrize(
    "value",
    [
        list(GOOD), (*GOOD, 0), (b"p", *GOOD[1:]), ("p" * 65, *GOOD[1:]), ("p", -1, *GOOD[2:]), ("p", True, *GOOD[2:]),
        ("p", 1 << 63, *GOOD[2:]), ("p", 3, bytes(10), b""), ("p", 3, "", b""), ("p", 3, bytes(11), bytes(7)),
        ("p", 3, bytes(11), bytes(8 * 65)), ("p", 3, b"\x00\x00\xc0\x7f" + bytes(7), b""),
        ("p", 3, b"\x00\x00\x80\x7f" + bytes(7), b""), ("p", 3, b"\x00\x00\x80\xbf" + bytes(7), b""),
    ],
)  # fmt: skip
def test_each_field_is_checked(value: Any) -> None:
    """Types, lengths, and that statistics are finite and not negative."""
    assert PeerHistory.unpacked(GOOD).packed() == GOOD
    with pytest.raises(ValueError, match="expected"):
        PeerHistory.unpacked(value)


def test_what_is_written_is_what_was_rounded() -> None:
    """Counters stop, and what no float32 holds becomes the largest one."""
    assert NormStats(0.1, 1e300, 1 << 30, 999).rounded() == NormStats(
        float32(0.1), 3.4028234663852886e38, MAX_COUNT, MAX_REJECTED
    )
    assert math.isclose(float32(0.1), 0.1, rel_tol=1e-7)
    assert float32(0.1) != 0.1
    assert float32(float32(0.1)) == float32(0.1)
