"""A vote is earned by accepted contributions, and the electorate grows by a bounded share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.consensus.protocol.block import ContributionHeader, Tenure, Update
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.membership import (
    FORGOTTEN_AFTER,
    GROWTH,
    MAX_TENURES,
    VOTES_AFTER,
    elect_follows,
    next_electorate,
    tenures_after,
    trusted,
)
from tests.peer.consensus.rounds.build import HEAD, NAMES, PARTS, header, update

ALL = tuple(header(name) for name in NAMES)
ROWS = tuple(range(len(PARTS)))


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
    head: ChainHead, *members: ContributionHeader, tenures: tuple[Tenure, ...] = (), **more: object
) -> set[str]:
    return set(next_electorate(head, members, tenures or head.tenures, **more))  # type: ignore[arg-type]


def test_a_newcomer_has_a_vote_after_so_many_accepted_rounds() -> None:
    """Each counts once, and no more are counted than a vote takes."""
    head = HEAD
    for accepted in range(1, VOTES_AFTER + 2):
        tenures = tenures_after(head, replace(beside("x"), round=head.round + 1), ROWS, ())
        head = replace(head, tenures=tenures, round=head.round + 1)
        assert tenure_of("x", tenures) == Tenure("x", min(accepted, VOTES_AFTER), head.round)
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
    assert tenure_of("p2", made.tenures) == Tenure("p2", VOTES_AFTER, 1)
    assert "p2" in next_electorate(HEAD, members, made.tenures)


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


@pytest.mark.parametrize(("voters", "room"), [(1, 1), (2, 1), (3, 1), (5, 1), (6, 2), (12, 4), (48, 16)])
def test_the_electorate_grows_by_a_share_of_itself(voters: int, room: int) -> None:
    """And by one at least; those who wait come in later, in an order that nobody chooses."""
    assert room == max(1, voters // GROWTH)
    names = tuple(f"p{index:02}" for index in range(voters))
    waiting = tuple(f"x{index:02}" for index in range(16))
    head = replace(HEAD, electorate=names, members=names, tenures=earned(*waiting))
    found = elected(head, *(header(name) for name in (*names, *waiting)))
    assert found >= set(names)
    assert len(found - set(names)) == min(room, 64 - voters)


def test_where_a_majority_is_lost_all_who_have_earned_a_vote_come_in() -> None:
    """One of three founders is left, with four who have earned theirs: the group must not hang on few."""
    late = ("w", "x", "y", "z")
    members = (ALL[0], *(header(name) for name in (*late, "zz")))
    assert elected(knowing(*earned(*late)), *members) == {"p0", *late, "p1", "p2"}
    assert elected(knowing(*earned(*late)), *members, gone={"p1", "p2"}) == {"p0", *late}


def test_a_voter_that_missed_one_round_keeps_its_vote_and_one_that_missed_two_does_not() -> None:
    """Those who were no member of the update before either are out."""
    assert elected(HEAD, *ALL[:2]) == set(NAMES)
    assert elected(replace(HEAD, members=NAMES[:2]), *ALL[:2]) == set(NAMES[:2])


def test_who_leaves_is_out() -> None:
    assert elected(HEAD, *ALL[:2], header("p2", leaving=True)) == {"p0", "p1"}


def test_if_all_voters_leave_those_whose_work_was_accepted_take_over() -> None:
    """Nobody else is left to ask; with nobody at all the last electorate stays."""
    leavers = tuple(header(name, leaving=True) for name in NAMES)
    newcomers = (header("x"), header("y"))
    assert elected(HEAD, *leavers, *newcomers, tenures=(Tenure("x", 1, 1), *earned(*NAMES))) == {"x"}
    assert elected(HEAD, *leavers, *newcomers, tenures=earned(*NAMES)) == set(NAMES)


def test_only_earlier_voters_may_be_left_out_by_a_coordinator() -> None:
    """Of the others each is in or out by the one function."""
    made = replace(update(members=ALL[:2], contributors=(3, 3, 3)), elect=NAMES)
    assert elect_follows(HEAD, made)
    assert elect_follows(HEAD, replace(made, elect=NAMES[:2]))
    assert not elect_follows(HEAD, replace(made, elect=NAMES[1:]))
    assert not elect_follows(HEAD, replace(made, elect=(*NAMES, "x")))
    assert not elect_follows(HEAD, replace(made, elect=NAMES[::-1]))
