"""What drawn groups do: what simulated ones did in a like case."""

from __future__ import annotations

import numpy as np
import pytest

from peer.planning.simulate.estimate import CALM, Library

NOBODY = NOTHING = WHOLE = float("nan")


def dice() -> np.random.Generator:
    """The same for every test."""
    return np.random.Generator(np.random.PCG64(1))


def learned(*rounds: tuple[list[float], list[float], int]) -> Library:
    """From rounds: when members were ready, when they had what was decided, how many rounds ago one was lost."""
    library = Library(members=4)
    for ready, decided, since in rounds:
        library.add(np.array(ready), np.full(len(ready), WHOLE), np.array(decided), since)
    return library


def drawn(library: Library, ready: list[float], since: int = CALM) -> list[float]:
    """When the members of a group have what it decides."""
    return library.draw(np.array(ready), since, dice()).decided.tolist()


def test_a_group_that_waits_takes_as_long_from_its_last_member_on() -> None:
    """Two seconds after it, whoever that is."""
    library = learned(([0.0, 0.0, 1.0], [3.0, 3.0, 3.0], CALM))
    assert drawn(library, [10.0, 11.5, 10.0]) == [13.5, 13.5, 13.5]


def test_a_group_that_goes_on_without_its_last_member_takes_as_long_from_the_others_on() -> None:
    """Who is late has it with them, and stops a second before."""
    library = Library(members=3)
    library.add(np.array([0.0, 0.0, 9.0]), np.array([WHOLE, WHOLE, 4.0]), np.array([5.0, 5.0, 5.5]), CALM)
    found = library.draw(np.array([32.0, 20.0, 20.0]), CALM, dice())
    assert found.decided.tolist() == [25.5, 25.0, 25.0]
    np.testing.assert_equal(found.stopped, [24.0, WHOLE, WHOLE])


def test_the_round_that_is_most_alike_is_drawn_most_often() -> None:
    """Of nine, three are neighbours: 6 of 11 draws are of the nearest."""
    library = learned(*[([0.0, 0.0, float(late)], [2.0 * late] * 3, CALM) for late in range(9)])
    one = dice()
    delays = [library.draw(np.array([0.0, 0.0, 4.2]), CALM, one).decided[0] - 4.2 for _ in range(600)]
    assert {round(delay) for delay in delays} == {3, 4, 5}
    assert sum(round(delay) == 4 for delay in delays) == pytest.approx(600 * 6 / 11, rel=0.15)


def test_of_two_that_are_late_another_round_is_drawn_than_of_one() -> None:
    """The last is as late in both."""
    library = learned(([0.0, 0.0, 0.0, 9.0], [5.0] * 4, CALM), ([0.0, 0.0, 9.0, 9.0], [12.0] * 4, CALM))
    assert drawn(library, [0.0, 8.5, 0.0, 0.0])[0] == 5.0
    assert drawn(library, [0.0, 8.5, 8.5, 0.0])[0] == pytest.approx(8.5 + 3.0)


def test_a_loss_makes_a_round_another_one() -> None:
    """Of what never happened the next quieter thing is taken."""
    library = learned(([0.0, 0.0], [1.0, 1.0], CALM), ([0.0, 0.0], [9.0, 9.0], 1))
    assert [drawn(library, [0.0, 0.0], since)[0] for since in range(CALM + 1)] == [9.0, 9.0, 1.0, 1.0]


def test_who_knows_nothing_so_quiet_takes_what_was_less_quiet() -> None:
    """Nothing is decided in no time."""
    library = learned(([0.0, 0.0], [9.0, 9.0], 1), ([0.0, 0.0], [20.0, 20.0], 0))
    assert drawn(library, [0.0, 0.0], CALM) == [9.0, 9.0]


def test_who_was_not_there_has_nothing_and_neither_has_who_missed_it() -> None:
    """The last of three missed it, so the last of those who are there misses it."""
    library = learned(([0.0, 1.0, 2.0], [2.5, 2.5, NOBODY], CALM))
    np.testing.assert_equal(drawn(library, [NOBODY, 11.0, 10.0]), [NOBODY, NOBODY, 11.5])


def test_of_more_members_than_there_were_the_first_do_as_the_first_did() -> None:
    """Four beside two."""
    library = learned(([0.0, 2.0], [3.0, 4.0], CALM))
    assert drawn(library, [0.0, 0.0, 0.0, 2.0]) == [3.0, 3.0, 3.0, 4.0]


def test_where_nothing_was_decided_nothing_is() -> None:
    """And so it is where nothing is known, or nobody is there."""
    failed = learned(([0.0, 1.0], [NOTHING, NOTHING], CALM))
    nobody = learned(([NOBODY, NOBODY], [NOTHING, NOTHING], 0))
    for library in (failed, nobody, Library(members=2)):
        np.testing.assert_equal(drawn(library, [5.0, 6.0]), [NOTHING, NOTHING])
    np.testing.assert_equal(drawn(learned(([0.0], [1.0], CALM)), [NOBODY, NOBODY]), [NOTHING, NOTHING])


def test_groups_fail_as_often_as_they_did() -> None:
    """Three in four."""
    library = learned(*[([0.0, 0.0], [NOTHING] * 2 if number % 4 else [1.0] * 2, CALM) for number in range(64)])
    one = dice()
    failed = [bool(np.isnan(library.draw(np.zeros(2), CALM, one).decided).all()) for _ in range(400)]
    assert sum(failed) / 400 == pytest.approx(0.75, abs=0.25)
