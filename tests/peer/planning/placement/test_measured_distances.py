"""Delays between peers, from what both ends of a pair tell."""

from __future__ import annotations

import pytest

from peer.planning.placement.pairwise_network import MOST_RTT_S, Distances


def test_a_delay_is_half_of_a_round_trip_and_the_mean_of_what_both_ends_tell() -> None:
    distances = Distances()
    distances.tell("a", {"b": 0.1, "c": None})
    distances.tell("b", {"a": 0.3, "c": 0.02})
    told = distances.one_way_s()
    assert told == {frozenset("ab"): pytest.approx(0.1), frozenset("bc"): pytest.approx(0.01)}


def test_what_is_told_anew_stands_instead_of_what_was_told() -> None:
    distances = Distances()
    distances.tell("a", {"b": 0.1, "c": 0.1})
    distances.tell("a", {"b": 0.2})
    assert distances.one_way_s() == {frozenset("ab"): pytest.approx(0.1)}


def test_whoever_is_no_member_is_forgotten() -> None:
    distances = Distances()
    distances.tell("a", {"b": 0.1})
    distances.tell("stranger", {"a": 0.1})
    distances.keep({"a", "b"})
    assert set(distances.one_way_s()) == {frozenset("ab")}


@pytest.mark.parametrize("rtt_s", [-1.0, float("nan"), float("inf"), 1.01 * MOST_RTT_S])
def test_what_cannot_be_is_not_believed(rtt_s: float) -> None:
    distances = Distances()
    distances.tell("a", {"b": rtt_s})
    assert distances.one_way_s() == {}
