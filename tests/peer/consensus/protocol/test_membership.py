"""A vote is earned by accepted contributions, and the electorate grows by a bounded share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.consensus.protocol.block import ContributionHeader, Roster, Tenure, Update
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.membership import (
    FORGOTTEN_AFTER,
    GROWTH,
    MAX_TENURES,
    SEATS,
    VOTES_AFTER,
    elect_follows,
    next_electorate,
    tenures_after,
    trusted,
)
from tests.peer.consensus.rounds.build import HEAD, NAMES, PARTS, header, update

ALL = tuple(header(name) for name in NAMES)
ROWS = tuple(range(len(PARTS)))
NO_LIST = Roster()


def beside(*newcomers: str, **changes: object) -> Update:
    """An update in which the three founders and these count everywhere."""
    members = (*ALL, *(header(name) for name in newcomers))
    everybody = (1 << len(members)) - 1
    return update(members=members, contributors=(everybody,) * len(PARTS), **changes)  # type: ignore[arg-type]


def tenure_of(peer: str, tenures: tuple[Tenure, ...]) -> Tenure | None:
    return next((tenure for tenure in tenures if tenure.peer == peer), None)


def knowing(*tenures: Tenure, **changes: object) -> ChainHead:
    return replace(HEAD, tenures=tenures, **changes)  # type: ignore[arg-type]


def earned(*peers: str) -> tuple[Tenure, ...]:
    return tuple(Tenure(peer, VOTES_AFTER, 0) for peer in peers)


def elected(
    head: ChainHead, *members: ContributionHeader, tenures: tuple[Tenure, ...] = (), roster: Roster = NO_LIST
) -> set[str]:
    return set(next_electorate(head, members, tenures or head.tenures, roster))


def test_a_newcomer_has_a_vote_after_so_many_accepted_rounds() -> None:
    """Each counts once, and no more are counted than a vote takes."""
    head = HEAD
    for accepted in range(1, VOTES_AFTER + 2):
        tenures = tenures_after(head, replace(beside("x"), round=head.round + 1), ROWS, ())
        head = replace(head, tenures=tenures, round=head.round + 1)
        assert tenure_of("x", tenures) == Tenure("x", min(accepted, VOTES_AFTER), head.round, head.round)
        assert ("x" in trusted(head)) == (accepted >= VOTES_AFTER)
        assert ("x" in elected(head, *ALL, header("x"))) == (accepted >= VOTES_AFTER)


@pytest.mark.parametrize(
    ("contributors", "weights"),
    [((0b0111, 0b0111, 0b1111), None), ((0b0111,) * 3, None), ((0b1111,) * 3, ((21_845, 21_845, 21_845, 0),))],
    ids=["in one part of three", "in none", "with no weight"],
)
def test_what_is_not_accepted_earns_nothing(
    contributors: tuple[int, ...], weights: tuple[tuple[int, ...], ...] | None
) -> None:
    """To be a member, to pledge, or to say whose state one has, is not enough."""
    made = replace(beside("x"), contributors=contributors)
    made = made if weights is None else replace(made, weights=weights)
    assert tenure_of("x", tenures_after(HEAD, made, ROWS, ())) is None


def test_a_voter_that_gives_nothing_keeps_its_vote() -> None:
    """It is paused, or slow: it has earned it before."""
    members = (*ALL[:2], header("p2", root=b"", tokens=0))
    made = update(members=members, contributors=(3, 3, 3))
    assert tenure_of("p2", made.tenures) == Tenure("p2", VOTES_AFTER, 1, 0)
    assert "p2" in next_electorate(HEAD, members, made.tenures, NO_LIST)


def test_a_convict_has_earned_nothing() -> None:
    assert tenure_of("x", tenures_after(knowing(*earned("x")), beside("x"), ROWS, {"x"})) is None


def test_who_was_away_for_long_is_a_newcomer_again() -> None:
    """One round less, and it is not."""
    for away in (FORGOTTEN_AFTER, FORGOTTEN_AFTER + 1):
        head = knowing(*earned("x"), round=away - 1)
        made = replace(update(), round=away)
        assert (tenure_of("x", tenures_after(head, made, ROWS, ())) is None) == (away > FORGOTTEN_AFTER)


def test_names_do_not_push_out_who_has_earned_a_vote() -> None:
    """Two hundred that were accepted once; those with a vote stay in the list, which is full."""
    many = tuple(Tenure(f"a{index:03}", 1, 0) for index in range(MAX_TENURES))
    tenures = tenures_after(knowing(*many, *earned("x")), update(), ROWS, ())
    assert len(tenures) == MAX_TENURES
    assert {"x", *NAMES} <= {tenure.peer for tenure in tenures}
    assert list(tenures) == sorted(tenures, key=lambda tenure: tenure.peer)


@pytest.mark.parametrize(("voters", "room"), [(1, 1), (3, 1), (8, 1), (16, 2), (24, 3), (40, 5), (42, 5)])
def test_the_electorate_grows_by_a_share_of_itself(voters: int, room: int) -> None:
    """And by one at least; those who wait come in later, in an order that nobody chooses."""
    assert room == max(1, voters // GROWTH)
    names = tuple(f"p{index:02}" for index in range(voters))
    waiting = tuple(f"x{index:02}" for index in range(16))
    head = replace(HEAD, electorate=names, members=names, tenures=earned(*waiting))
    found = elected(head, *(header(name) for name in (*names, *waiting)))
    assert found >= set(names)
    assert len(found - set(names)) == min(room, SEATS - voters)


def test_a_voter_that_is_away_goes_by_the_signed_word_of_more_than_half_of_the_voters() -> None:
    """Missed rounds cost nobody a vote, and a coordinator has no say in it."""
    assert elected(HEAD, *ALL[:2]) == set(NAMES)
    assert elected(replace(HEAD, members=NAMES[:2]), *ALL[:2]) == set(NAMES)
    assert elected(HEAD, header("p0", away=("p2",)), ALL[1]) == set(NAMES)
    both = (header("p0", away=("p2",)), header("p1", away=("p2",)))
    assert elected(HEAD, *both) == {"p0", "p1"}
    assert elected(HEAD, *both, ALL[2]) == set(NAMES), "it is here"
    guest = header("x", away=("p2",))
    assert elected(HEAD, both[0], ALL[1], guest) == set(NAMES), "who does not vote has no word in this"


def test_strangers_hold_less_than_a_third_of_the_votes_also_once_others_leave() -> None:
    """The organiser's list names whom it knows; without a name on it nobody is counted."""
    head = knowing(*earned("x", "y", "z"))
    known = Roster(1, NAMES)
    guests = [header(name) for name in ("x", "y", "z")]
    assert len(elected(head, *ALL, *guests)) == 4
    assert len(elected(head, *ALL, *guests, roster=known)) == 4
    four = replace(head, electorate=(*NAMES, "x"), members=(*NAMES, "x"))
    assert len(elected(four, *ALL, *guests, roster=known)) == 4, "a second of five is more than a third"
    gone = (header("p0", leaving=True), *ALL[1:], *guests)
    assert elected(four, *gone, roster=known) == {"p1", "p2"}


def test_whom_the_organiser_keeps_out_is_out_at_once_and_who_comes_back_is_in_at_once() -> None:
    known = Roster(1, NAMES, ("p2",))
    assert elected(HEAD, *ALL, roster=known) == {"p0", "p1"}
    fewer = replace(HEAD, electorate=NAMES[:1], members=NAMES[:1], tenures=earned(*NAMES))
    assert elected(fewer, *ALL, roster=Roster(1, NAMES)) == set(NAMES)


def test_who_leaves_is_out() -> None:
    assert elected(HEAD, *ALL[:2], header("p2", leaving=True)) == {"p0", "p1"}


def test_if_all_voters_leave_those_whose_work_was_accepted_take_over() -> None:
    """Nobody else is left to ask; with nobody at all the last electorate stays."""
    leavers = tuple(header(name, leaving=True) for name in NAMES)
    newcomers = (header("x"), header("y"))
    assert elected(HEAD, *leavers, *newcomers, tenures=(Tenure("x", 1, 1), *earned(*NAMES))) == {"x"}
    assert elected(HEAD, *leavers, *newcomers, tenures=earned(*NAMES)) == set(NAMES)


def test_the_electorate_that_an_update_names_is_the_one_that_everybody_computes() -> None:
    made = replace(update(members=ALL[:2], contributors=(3, 3, 3)), elect=NAMES)
    assert elect_follows(HEAD, made)
    for other in (NAMES[:2], NAMES[1:], (*NAMES, "x"), NAMES[::-1]):
        assert not elect_follows(HEAD, replace(made, elect=other))


def test_a_coordinator_has_led_and_so_have_those_whose_turn_came_before() -> None:
    """So the one whose turn is longest ago leads next, and nothing that is written into an update changes that."""
    first, second, third = HEAD.order
    after = HEAD.after(update(coordinator=first, ballot=0))
    assert after.order == (*order_of(after, second, third), first)
    passed_over = HEAD.after(update(coordinator=second, ballot=1))
    assert passed_over.order[0] == third


def order_of(head: ChainHead, *peers: str) -> tuple[str, ...]:
    return tuple(sorted(peers, key=head.order.index))
