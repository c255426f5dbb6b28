"""Homes that look for others, in virtual time: what each says, what it believes, and that nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from dht.records import SoughtHomes, short_id
from peer.planning.homes.home_match import HomeMatching
from peer.planning.homes.home_search import (
    ASKED_S,
    FOLLOW_S,
    GATHER_S,
    GIVE_S,
    LONGEST_OUT_S,
    SETTLE_S,
    Follow,
    Gather,
    HomeSearch,
    Look,
    Next,
)
from peer.planning.plan.model_shape import shape_of
from peer.schema import spec as specs

SPEC = specs.load("llama-1b")
MATCHING = HomeMatching(shape_of(SPEC), SPEC)
OFFER = SoughtHomes(memory_gb=10.0, tokens_per_s=100.0, upload_mbps=50.0)
"""Three such homes hold the model, two do not."""
LOOK_S = 2.0
IDS = [f"12D3Koo-home-{number}" for number in range(6)]


class Homes:
    """Searches of some homes on one board, with every message delivered; `silent` ones say nothing any more."""

    def __init__(self, count: int, offer: Callable[[int], SoughtHomes] = lambda number: OFFER) -> None:
        self.now = 0.0
        self.offers = {IDS[number]: offer(number) for number in range(count)}
        self.board: dict[str, SoughtHomes] = dict(self.offers)
        self.searches = {
            peer: HomeSearch(peer, MATCHING.matches, MATCHING.rated) for peer in self.offers
        }  # fmt: skip
        self.does: dict[str, Next] = {}
        self.silent: set[str] = set()
        self.lines: dict[str, str] = {}
        """Of each home that has found a cluster, the lead."""

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += LOOK_S
            for peer, search in self.searches.items():
                if peer not in self.silent and peer not in self.lines:
                    self._let(peer, search)

    def _let(self, peer: str, search: HomeSearch) -> None:
        does = self.does[peer] = search.look(dict(self.board), self.now)
        self.board[peer] = self.offers[peer]
        match does:
            case Gather(match=match, is_given=is_given):
                names = tuple(map(short_id, match.homes))
                self.board[peer] = replace(self.offers[peer], gathers=names, expects=match.tokens_per_s)
                if is_given:
                    self.lines[peer] = peer
            case Follow(lead=lead) if lead in self.searches and lead not in self.silent:
                gathers = self.does.get(lead)
                if self.searches[lead].asks(peer, self.now) and isinstance(gathers, Gather) and gathers.is_complete:
                    self.searches[lead].given(peer)
                    self.lines[peer] = lead


def test_three_homes_alike_find_each_other_and_one_leads() -> None:
    homes = Homes(3)
    homes.pass_time(SETTLE_S + 20)
    assert homes.lines.keys() == set(IDS[:3])
    assert len(set(homes.lines.values())) == 1


def test_two_homes_wait_for_a_third_and_say_so() -> None:
    homes = Homes(2)
    homes.pass_time(10 * GATHER_S)
    assert homes.lines == {}
    assert all(does == Look() for does in homes.does.values())
    search = homes.searches[IDS[0]]
    assert MATCHING.missing_words(search.homes) == ("looking for other homes: 2 are here, the model needs 3 of 10 GB")


def test_six_homes_make_two_clusters_of_the_near_ones() -> None:
    def near(number: int) -> SoughtHomes:
        """Two towns, three homes in each."""
        others = (other for other in range(6) if other != number)
        return replace(
            OFFER, trips_ms=tuple((short_id(IDS[other]), 10 if other % 2 == number % 2 else 400) for other in others)
        )

    homes = Homes(6, near)
    homes.pass_time(SETTLE_S + 20)
    towns = [{peer for peer, lead in homes.lines.items() if lead == chief} for chief in set(homes.lines.values())]
    assert sorted(map(sorted, towns)) == [IDS[0::2], IDS[1::2]]


def test_who_does_not_come_is_left_out_and_another_takes_the_place() -> None:
    homes = Homes(3)
    homes.silent.add(IDS[2])
    homes.pass_time(SETTLE_S + 3 * GATHER_S)
    assert homes.lines == {}
    late = IDS[3]
    homes.offers[late] = homes.board[late] = OFFER
    homes.searches[late] = HomeSearch(late, MATCHING.matches, MATCHING.rated, now=homes.now)
    homes.pass_time(10 * GATHER_S)
    assert homes.lines.keys() == {IDS[0], IDS[1], late}


def test_a_lead_that_gathers_and_never_gives_its_line_is_left_out() -> None:
    """A liar names two others, and is silent; they go on with the next home."""
    homes = Homes(4)
    liar = IDS[3]
    homes.silent.add(liar)
    homes.board[liar] = replace(OFFER, gathers=tuple(map(short_id, (liar, IDS[0], IDS[1]))), expects=1e9)
    homes.pass_time(FOLLOW_S + 2 * GATHER_S + SETTLE_S)
    assert homes.lines.keys() == set(IDS[:3])
    assert liar not in homes.lines.values()


def test_a_lead_of_a_cluster_that_lacks_a_home_comes_first_and_only_for_a_time() -> None:
    homes = Homes(3)
    homes.board["lead"] = SoughtHomes(leads=True, free=1, expects=1e9)
    homes.pass_time(LOOK_S)
    assert set(homes.does.values()) == {Follow(lead="lead")}
    homes.pass_time(FOLLOW_S + SETTLE_S + 30)
    assert homes.lines.keys() == set(IDS[:3]), "a lead that is silent is not waited for"


def test_a_home_without_a_group_becomes_a_spare() -> None:
    homes = Homes(1)
    homes.board["lead"] = SoughtHomes(leads=True, expects=50.0)
    homes.pass_time(LOOK_S)
    assert homes.does[IDS[0]] == Follow(lead="lead")


def test_a_gathering_in_which_the_model_does_not_fit_is_not_followed() -> None:
    homes = Homes(3)
    homes.board[IDS[2]] = replace(OFFER, gathers=tuple(map(short_id, (IDS[2], IDS[0]))), expects=1e9)
    homes.silent.add(IDS[2])
    homes.pass_time(SETTLE_S)
    assert Follow(lead=IDS[2]) not in homes.does.values()


def test_a_slow_gathering_is_not_followed() -> None:
    """With three fast homes here, a lead that names this one and two of a tenth of the speed."""

    def speed(number: int) -> SoughtHomes:
        return replace(OFFER, tokens_per_s=100.0 if number < 3 else 10.0)

    homes = Homes(5, speed)
    slow = IDS[4]
    homes.board[slow] = replace(speed(4), gathers=tuple(map(short_id, (slow, IDS[3], IDS[0]))), expects=1e9)
    homes.silent.add(slow)
    homes.pass_time(LOOK_S)
    assert homes.does[IDS[0]] != Follow(lead=slow)


def test_a_liar_with_a_billion_gigabytes_and_tokens_changes_no_order_of_the_others() -> None:
    """It counts as one home that holds the model and is ten times as fast as the median."""
    homes = Homes(4, lambda number: OFFER if number else replace(OFFER, memory_gb=1e9, tokens_per_s=1e9))
    homes.silent.add(IDS[0])
    homes.pass_time(4 * GATHER_S + SETTLE_S)
    assert homes.lines.keys() == set(IDS[1:4])


def test_thousands_of_offers_are_not_all_read() -> None:
    asked: list[int] = []

    def matches(homes, trips):  # type: ignore[no-untyped-def]
        asked.append(len(homes))
        return ()

    search = HomeSearch(IDS[0], matches, MATCHING.rated)
    board = {f"fake-{number}": OFFER for number in range(5000)} | {IDS[0]: OFFER}
    search.look(board, 0.0)
    search.look(board, 1.0)
    assert asked == [32], "and not again while nothing has changed"
    assert IDS[0] in search.homes


def test_a_worker_that_fetches_no_line_holds_nobody_up() -> None:
    """All have asked; one never comes back for the line. The lead begins, and others find its free place."""
    homes = Homes(3)
    homes.pass_time(SETTLE_S + LOOK_S)
    lead = next(peer for peer, does in homes.does.items() if isinstance(does, Gather))
    lazy = next(peer for peer in IDS[:3] if peer != lead)
    homes.silent.add(lazy)
    homes.pass_time(ASKED_S + GIVE_S + 4 * LOOK_S)
    assert homes.lines.keys() == set(IDS[:3]) - {lazy}


def test_who_was_left_out_counts_again_later() -> None:
    search = HomeSearch(IDS[0], MATCHING.matches, MATCHING.rated, avoid=(IDS[1],))
    board = dict.fromkeys(IDS[:3], OFFER)
    search.look(board, 1.0)
    assert IDS[1] not in search.homes
    search.look(board, LONGEST_OUT_S + 1.0)
    assert IDS[1] in search.homes


@pytest.mark.parametrize("order", [(0, 0, 1), (0, 1), (0,), ()])
def test_gatherings_that_make_no_sense(order: tuple[int, ...]) -> None:
    homes = dict.fromkeys(IDS[:3], OFFER)
    gathers = tuple(short_id(IDS[number]) for number in order)
    search = HomeSearch(IDS[1], MATCHING.matches, MATCHING.rated)
    does = search.look(homes | {IDS[0]: replace(OFFER, gathers=gathers)}, 0.0)
    assert isinstance(does, Look)


def test_equal_boards_give_equal_groups() -> None:
    board = dict.fromkeys(IDS, OFFER)
    leads = []
    for peer in IDS:
        search = HomeSearch(peer, MATCHING.matches, MATCHING.rated)
        search.look(board, 0.0)
        leads.append(isinstance(search.look(board, SETTLE_S), Gather))
    assert sum(leads) == 2
    assert all(one <= other for one, other in pairwise(sorted(leads)))
