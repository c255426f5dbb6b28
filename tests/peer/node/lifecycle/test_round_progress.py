"""What one peer has made, offered and is owed, without a tensor: the same for every host of a lifecycle."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.errors import BadSpec
from peer.consensus.protocol.block import ContributionHeader, PartOutcome, Update
from peer.consensus.protocol.encoding import digest
from peer.consensus.protocol.layout import cut
from peer.node.lifecycle.round_progress import RoundProgress, TooOld
from peer.schema import spec as specs

ME = "p0"
PARTS = cut((4, 4, 4), 4)
MICRO = specs.load("micro")


def progress(**round: Any) -> RoundProgress:
    return RoundProgress(dataclasses.replace(MICRO, round=dataclasses.replace(MICRO.round, **round)), ME, PARTS)


def anchor(round: int) -> bytes:
    return digest("anchor", round)


def update(books: RoundProgress, counts: bool | Sequence[bool]) -> Update:
    """The next one; whether it counts my parts, one by one."""
    parts = len(books.turns.parts(books.round))
    counted = [counts] * parts if isinstance(counts, bool) else counts
    header = ContributionHeader(ME, anchor(books.round), b"", 1, 1, 0, False, (), 0)
    return Update(
        parent=anchor(books.round), round=books.round + 1, time=0, members=(header,), elect=(ME,), parts=(b"",) * parts,
        contributors=tuple(map(int, counted)), weights=((65_536,),), penalties=(), weight=1, ballot=0, coordinator=ME,
    )  # fmt: skip


def a_round(books: RoundProgress, counts: bool | Sequence[bool] = True, tokens: int = 10) -> int:
    """Train, submit, settle; returns the age that was offered."""
    books.stepped(tokens)
    effort = books.offer(anchor(books.round), ())
    books.settle(update(books, counts), True)
    return effort.staleness


def test_more_fragments_than_layers_are_refused() -> None:
    with pytest.raises(BadSpec, match=r"round.fragments is 4"):
        progress(fragments=4)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_steps_at_once_are_steps_one_by_one(tokens: list[int]) -> None:
    """A simulated trainer makes many in one piece of work."""
    one, other = progress(fragments=3), progress(fragments=3)
    for each in tokens:
        one.stepped(each)
    other.stepped(sum(tokens), len(tokens))
    assert one.turns.state() == other.turns.state()
    assert one.step == other.step == len(tokens)
    assert one.offer(anchor(0), ()) == other.offer(anchor(0), ())


def test_what_is_counted_is_offered_once() -> None:
    books = progress()
    books.stepped(10, 2)
    assert (books.fresh, books.offered) == (True, None)
    effort = books.offer(anchor(0), ((1, 0, 2),))
    assert (effort.tokens, effort.steps, effort.ranges, effort.staleness) == (10, 2, ((1, 0, 2),), 0)
    assert (books.fresh, books.offered) == (False, anchor(0))
    with pytest.raises(AssertionError, match="one contribution per anchor"):
        books.offer(anchor(0), ())
    settled = books.settle(update(books, True), True)
    assert set(settled.outcomes) == {PartOutcome.COUNTED}
    assert settled.too_old == TooOld()
    assert (books.round, books.step, books.offered) == (1, 0, None)


def test_only_what_was_counted_in_every_part_is_young_again() -> None:
    books = progress()
    assert [a_round(books, counts) for counts in (False, [True, False, True], True, True)] == [0, 1, 2, 0]


def test_steps_that_did_not_count_are_offered_again() -> None:
    """A norm is held against the steps behind it. What was missed in some parts alone is owed by so much."""
    books = progress()

    def offered(counts: bool | Sequence[bool]) -> int:
        books.stepped(60, 6)
        steps = books.offer(anchor(books.round), ()).steps
        books.settle(update(books, counts), True)
        return steps

    assert [offered(counts) for counts in (False, False, True, [True, False, True], True, True)] == [6, 12, 18, 6, 8, 6]


def test_owed_steps_outlive_a_checkpoint_and_an_offer_that_found_no_room() -> None:
    books = progress()
    a_round(books, False)
    books.stepped(10, 3)
    books.offer(anchor(1), ())
    books.take_back()
    again = progress()
    again.turns.restore(books.turns.state())
    assert again.turns.offer(1, ()) == books.offer(anchor(1), ())
    assert again.turns.state() == books.turns.state()
    older = progress()
    older.turns.restore([work[:4] for work in books.turns.state()])
    older.stepped(10, 2)
    assert older.offer(anchor(0), ()).steps == 2


def test_missed_work_of_which_nothing_stays_has_no_age() -> None:
    """With γ = 0 it is gone, and what follows is fresh."""
    books = progress(gamma=0.0)
    assert [a_round(books, counts) for counts in (False, False, True)] == [0, 0, 0]


def test_who_offered_nothing_grows_older() -> None:
    books = progress()
    books.stepped(10)
    settled = books.settle(update(books, True), submitted=False)
    assert set(settled.outcomes) == {PartOutcome.NOT_SUBMITTED}
    assert books.offer(anchor(1), ()).staleness == 1


def test_an_update_that_does_not_follow_is_our_mistake() -> None:
    books = progress()
    late = update(books, True)
    books.settle(late, True)
    with pytest.raises(AssertionError, match="does not follow round 1"):
        books.settle(late, True)


def test_what_is_too_old_is_named_and_what_came_after_the_submission_stays() -> None:
    books = progress(max_staleness=1)
    a_round(books, False)
    books.stepped(10)
    books.offer(anchor(1), ())
    books.stepped(7, 3)
    settled = books.settle(update(books, False), True)
    assert settled.too_old == TooOld(fragments=(0,), dropped=(), everything=False)
    effort = books.offer(anchor(2), ())
    assert (effort.tokens, effort.steps, effort.staleness) == (7, 3, 0)


def test_what_was_never_offered_is_dropped_whole() -> None:
    books = progress(max_staleness=1)
    books.stepped(10)
    for too_old in (TooOld(), TooOld(fragments=(0,), dropped=(0,), everything=True)):
        assert books.settle(update(books, True), False).too_old == too_old
    assert not books.fresh


def test_a_fragment_that_waits_for_its_turn_is_not_late() -> None:
    """Only the one that is averaged ages: after six rounds each was missed twice."""
    books = progress(fragments=3, max_staleness=1)
    for number in range(6):
        books.stepped(10)
        books.offer(anchor(number), ())
        too_old = books.settle(update(books, False), True).too_old
        assert too_old.fragments == ((number % 3,) if number >= 3 else ())


def test_a_submission_without_room_is_as_if_there_was_none() -> None:
    """All that came after it belongs to the one that is still to be made."""
    books, steady = (progress(overlap="streaming") for _ in range(2))
    for each in (books, steady):
        each.stepped(10, 2)
    books.offer(anchor(0), ((1, 0, 2),))
    assert (books.step, books.in_training) == (0, 1)
    for each in (books, steady):
        each.stepped(20, 3)
    assert books.take_back() == ((1, 0, 2),)
    assert (books.step, books.in_training, books.offered) == (5, 0, None)
    ranges = ((1, 0, 5),)
    assert books.offer(anchor(0), ranges) == steady.offer(anchor(0), ranges)


@pytest.mark.parametrize(("overlap", "step"), [("streaming", 3), ("layerwise", 0)])
def test_steps_after_the_submission_count_towards_the_next_round(overlap: str, step: int) -> None:
    """Where the run streams."""
    books = progress(overlap=overlap)
    books.stepped(10, 2)
    books.offer(anchor(0), ())
    books.stepped(20, 3)
    assert books.is_ahead == (overlap == "streaming")
    books.settle(update(books, True), True)
    assert (books.step, books.fresh) == (step, True)
    effort = books.offer(anchor(1), ())
    assert (effort.steps, effort.staleness) == (3, 0)


def test_who_stands_elsewhere_has_offered_nothing_there() -> None:
    """What it made is as old there as it is, and no older than the anchor."""
    books = progress()
    a_round(books, False)
    a_round(books, False)
    books.stepped(10, 2)
    books.offer(anchor(2), ())
    books.stand_at(1)
    assert (books.round, books.step, books.offered) == (1, 0, None)
    assert books.turns.work(1).age.staleness(1) == 1
