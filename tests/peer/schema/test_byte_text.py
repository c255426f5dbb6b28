"""Amounts as people read them."""

from __future__ import annotations

import pytest

from peer.schema.byte_text import format_line_rate


@pytest.mark.parametrize(
    ("mbps", "text"), [(0.4, "0.4 Mbit/s"), (18.44, "18.4 Mbit/s"), (99.96, "100 Mbit/s"), (1150.0, "1,150 Mbit/s")]
)
def test_a_line_of_any_rate_has_no_exponent(mbps: float, text: str) -> None:
    assert format_line_rate(mbps) == text
