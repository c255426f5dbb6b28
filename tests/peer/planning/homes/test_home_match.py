"""Which homes would train together, by the cost of every other advice, and how little a liar changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from peer.planning.homes.home_match import HomeMatching
from peer.planning.placement.block_shares import StageHome
from peer.planning.plan.cluster_cost import ONE_WAY_S, room_of_stage, smallest_cluster
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import HOME_FLOPS
from peer.schema import spec as specs

SPEC = specs.load("llama-1b")
SHAPE = shape_of(SPEC)
MATCHING = HomeMatching(SHAPE, SPEC)
THIRD = room_of_stage(SHAPE, SPEC, 3)
HOME = StageHome(tokens_per_s=HOME_FLOPS / SHAPE.flops_per_token(SPEC.model.context), room_bytes=THIRD, upload_bps=20e6)


def test_homes_alike_have_the_speed_that_advice_names() -> None:
    (match,) = MATCHING.matches(dict.fromkeys("abc", HOME), {})
    advised = smallest_cluster(SHAPE, SPEC, THIRD, 20e6)
    assert advised is not None
    assert advised.homes == len(match.homes) == 3
    assert match.tokens_per_s == pytest.approx(advised.tokens_per_s)


def test_two_of_them_have_no_room() -> None:
    assert MATCHING.matches(dict.fromkeys("ab", HOME), {}) == ()
    assert MATCHING.matches({}, {}) == ()


def test_stages_lie_in_the_order_of_the_shortest_round_trips() -> None:
    """A line of three homes: both ends are far from each other."""
    homes = dict.fromkeys("abc", replace(HOME, upload_bps=1e9))
    trips = {frozenset("ab"): 0.3, frozenset("ac"): 0.02, frozenset("bc"): 0.02}
    (match,) = MATCHING.matches(homes, trips)
    assert match.homes[1] == "c"
    every = [MATCHING.rated(order, homes, trips) for order in permutations("abc")]
    assert match.tokens_per_s == pytest.approx(max(every))
    assert max(every) > min(every)


def test_six_homes_of_three_speeds_and_two_lines_are_grouped_as_well_as_by_hand() -> None:
    """The best two clusters of three, all ways tried."""
    kinds = [(speed, line) for speed in (1.0, 2.0, 4.0) for line in (20e6, 100e6)]
    homes = {
        f"{at}": replace(HOME, tokens_per_s=speed * HOME.tokens_per_s, upload_bps=line)
        for at, (speed, line) in enumerate(kinds)
    }  # fmt: skip
    found = sum(match.tokens_per_s for match in MATCHING.matches(homes, {}))
    best = max(
        MATCHING.rated(order[:3], homes, {}) + MATCHING.rated(order[3:], homes, {}) for order in permutations(homes)
    )
    assert found >= 0.999 * best


def test_an_offer_of_a_billion_gigabytes_and_tokens_counts_as_a_plausible_one() -> None:
    liar = StageHome(tokens_per_s=1e9, room_bytes=1e18, upload_bps=1e15)
    found = MATCHING.matches({"a": HOME, "b": HOME, "c": HOME, "x": liar}, {})
    honest = MATCHING.matches({"a": HOME, "b": HOME, "c": HOME, "x": replace(HOME, room_bytes=1e10)}, {})
    assert sum(match.tokens_per_s for match in found) <= 10 * sum(match.tokens_per_s for match in honest)


@pytest.mark.parametrize("order", ["", "a", "aab", "abx", "ab"])
def test_no_speed_for_an_order_that_is_none(order: str) -> None:
    assert MATCHING.rated(tuple(order), dict.fromkeys("abc", HOME), {}) == 0.0


def test_round_trips_that_are_not_measured_are_assumed() -> None:
    homes = dict.fromkeys("abc", HOME)
    assumed = {frozenset(pair): 2 * ONE_WAY_S for pair in ("ab", "ac", "bc")}
    assert MATCHING.rated(("a", "b", "c"), homes, {}) == MATCHING.rated(("a", "b", "c"), homes, assumed)


def test_what_is_lacking_is_said_in_words() -> None:
    assert MATCHING.missing_words({"a": HOME}) == (
        f"looking for other homes: 1 is here, the model needs 3 of {THIRD / 1e9:.2g} GB"
    )
    tiny = replace(HOME, room_bytes=1e6)
    assert "none of which has room for a stage" in MATCHING.missing_words({"a": tiny, "b": tiny})
