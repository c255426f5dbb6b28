"""What drawn groups do: what simulated ones did in a like case."""

from __future__ import annotations

import numpy as np
import pytest

from peer.plan.simulate.library import CALM, Library

DICE = np.random.Generator(np.random.PCG64(1))
NOBODY = float("nan")


def learned(*rounds: tuple[list[float], list[float], int]) -> Library:
    """From rounds: when members could begin, when they had what was decided, how many rounds ago one was lost."""
    library = Library()
    for began, decided, since in rounds:
        library.add(np.array(began), np.array(decided), since)
    return library


def drawn(library: Library, began: list[float], since: int = CALM) -> list[float]:
    """When the members of a group have what it decides."""
    return library.draw(np.array(began), since, DICE).tolist()


def test_a_group_that_waits_takes_as_long_from_its_last_member_on() -> None:
    """Two seconds after it, whoever that is."""
    library = learned(([0.0, 0.0, 1.0], [3.0, 3.0, 3.0], CALM))
    assert drawn(library, [10.0, 11.5, 10.0]) == [13.5, 13.5, 13.5]


def test_a_group_that_goes_on_without_its_last_member_takes_as_long_from_the_others_on() -> None:
    """Who is late has it when it comes."""
    library = learned(([0.0, 0.0, 9.0], [5.0, 5.0, 9.0], CALM))
    assert drawn(library, [32.0, 20.0, 20.0]) == [32.0, 25.0, 25.0]


def test_the_round_that_is_most_alike_is_drawn_most_often() -> None:
    """Of nine, three are neighbours: 6 of 11 draws are of the nearest."""
    library = learned(*[([0.0, 0.0, float(late)], [2.0 * late] * 3, CALM) for late in range(9)])
    delays = [drawn(library, [0.0, 0.0, 4.2])[0] - 4.2 for _ in range(600)]
    assert {round(delay) for delay in delays} == {3, 4, 5}
    assert sum(round(delay) == 4 for delay in delays) == pytest.approx(600 * 6 / 11, rel=0.15)


def test_a_loss_makes_a_round_another_one() -> None:
    """Of what never happened the next quieter thing is taken."""
    library = learned(([0.0, 0.0], [1.0, 1.0], CALM), ([0.0, 0.0], [9.0, 9.0], 1))
    assert [drawn(library, [0.0, 0.0], since)[0] for since in range(CALM + 1)] == [9.0, 9.0, 1.0, 1.0]


def test_who_was_not_there_has_nothing_and_neither_has_who_missed_it() -> None:
    """The last of three missed it, so the last of those who are there misses it."""
    library = learned(([0.0, 1.0, 2.0], [2.5, 2.5, NOBODY], CALM))
    np.testing.assert_equal(drawn(library, [NOBODY, 11.0, 10.0]), [NOBODY, NOBODY, 11.5])


def test_of_more_members_than_there_were_the_first_do_as_the_first_did() -> None:
    """Four beside two."""
    library = learned(([0.0, 2.0], [3.0, 4.0], CALM))
    assert drawn(library, [0.0, 0.0, 0.0, 2.0]) == [3.0, 3.0, 3.0, 4.0]


def test_nothing_is_learned_where_nothing_was_decided() -> None:
    """Whoever draws from that has it as soon as it could begin."""
    library = learned(([0.0, 1.0], [NOBODY, NOBODY], CALM), ([NOBODY, NOBODY], [NOBODY, NOBODY], 0))
    assert drawn(library, [5.0, 6.0]) == [5.0, 6.0]
