"""What a header may say: each number has a bound on both sides, and an honest header is always within."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.consensus.aggregation.evidence import AggregationRules
from peer.consensus.protocol.block import CURSOR_END, MAX_RANGES
from peer.consensus.protocol.bounds import MOST_BPS, OLDEST, fault_of_header, within
from peer.consensus.protocol.messages import Promise, decode, encode
from tests.peer.consensus.rounds.build import header, place, rules

RULES = replace(rules("p0"), step_tokens=512, context=64, tokens_cap=20_480, steps_cap=80, shards=64)
HONEST = {"tokens": 20_480, "steps": 40, "ranges": ((0, 7, 207), (3, 0, 120))}
MOST_STEPS = 80 * 9
"""Those of as many rounds as pass until work is too old, and one."""
HUGE = (1 << 63) - 1


def rule_of(**changes: Any) -> str:
    return fault_of_header(RULES, header("p0", **{**HONEST, **changes}))[0]


def test_an_honest_header_is_within() -> None:
    assert rule_of() == ""
    assert rule_of(tokens=0, steps=0, ranges=(), root=b"") == ""


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("TOKENS", {"tokens": 20_481}),
        ("TOKENS", {"tokens": 40_960}),
        ("TOKENS", {"tokens": -1, "ranges": ()}),
        ("TOKENS", {"tokens": HUGE}),
        ("STEPS", {"steps": -1}),
        ("STEPS", {"steps": MOST_STEPS + 1}),
        ("STEPS", {"steps": HUGE, "tokens": HUGE}),
        ("STALENESS", {"staleness": -1}),
        ("STALENESS", {"staleness": OLDEST + 1}),
        ("BANDWIDTH", {"bandwidth_bps": -1}),
        ("BANDWIDTH", {"bandwidth_bps": MOST_BPS + 1}),
        ("RANGES", {"ranges": ((0, 7, 208), (3, 0, 120))}),
        ("RANGES", {"ranges": ((0, 0, HUGE),)}),
        ("RANGES", {"ranges": tuple((shard, 0, HUGE) for shard in range(64))}),
        ("RANGES", {"ranges": ((0, CURSOR_END, CURSOR_END + 1),)}),
        ("RANGES", {"ranges": ((64, 0, 1),)}),
        ("RANGES", {"ranges": ((-1, 0, 1),)}),
        ("RANGES", {"ranges": ((0, -5, 1),)}),
        ("RANGES", {"ranges": ((0, 5, 5),)}),
        ("RANGES", {"ranges": ((0, 5, 4),)}),
        ("RANGES", {"ranges": ((0, 0, 9), (0, 8, 12))}),
        ("RANGES", {"ranges": ((0, 5, 9), (0, 1, 2))}),
    ],
)
def test_each_number_has_a_bound_on_both_sides(rule: str, changes: dict[str, Any]) -> None:
    """And what exceeds it can be read by everybody, or it could not be held against its author."""
    assert rule_of(**changes) == rule
    promise = Promise(place(), header("p0", **{**HONEST, **changes}))
    assert decode(encode(promise)) == promise


def test_windows_are_bounded_by_steps_where_tokens_are_predicted_ones() -> None:
    """Of which a window may have few; a peer that says more windows than its steps can read is refused as ever."""
    predicted = replace(RULES, aggregation=AggregationRules(weigh="predicted"))
    few = header("p0", **{**HONEST, "tokens": 300})
    assert fault_of_header(RULES, few)[0] == "RANGES"
    assert fault_of_header(predicted, few) == ("", "")
    assert within(predicted, few) == few
    more = replace(few, ranges=((0, 7, 208), (3, 0, 120)))
    assert fault_of_header(predicted, more)[0] == "RANGES"
    assert fault_of_header(predicted, within(predicted, more)) == ("", "")
    assert fault_of_header(predicted, replace(few, tokens=20_481))[0] == "TOKENS"


numbers = st.integers(0, HUGE)
ranges = st.lists(st.tuples(st.integers(0, 63), st.integers(0, 1 << 40), st.integers(1, 10**6)), max_size=20)


@given(tokens=numbers, steps=numbers, staleness=numbers, bps=numbers, read=ranges)
def test_who_has_read_more_than_counts_says_no_more(
    tokens: int, steps: int, staleness: int, bps: int, read: list[tuple[int, int, int]]
) -> None:
    """A peer that was alone for weeks is honest, and its header is taken."""
    said = tuple((shard, first, first + windows) for shard, first, windows in read)
    honest = header("p0", tokens=tokens, steps=steps, staleness=staleness, bandwidth_bps=bps, ranges=said)
    cut = within(RULES, honest)
    assert fault_of_header(RULES, cut) == ("", "")
    for shard, first, last in cut.ranges:
        assert any(known == shard and begin <= first < last <= end for known, begin, end in said)
    assert within(RULES, cut) == cut


def test_an_honest_header_says_all_that_it_read() -> None:
    """Up to the most ranges that fit."""
    honest = header("p0", **HONEST)
    assert within(RULES, honest) == honest
    many = tuple((0, 2 * index, 2 * index + 1) for index in range(MAX_RANGES + 5))
    cut = within(RULES, header("p0", tokens=10**6, steps=MOST_STEPS, ranges=many))
    assert cut.ranges == many[: cut.tokens // 64][:MAX_RANGES]
