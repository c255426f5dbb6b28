"""Groups of homes against brute force, by a speed that is made up."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from peer.planning.homes.home_groups import MOST_RATED, HomeGroup, Rate, group_homes


def bottleneck(speeds: list[float], rooms: list[float], whole: float) -> Rate:
    """A cluster of S homes is as fast as S times its slowest, and loses a tenth for each home."""

    def rate(group: frozenset[int]) -> HomeGroup | None:
        if sum(rooms[home] for home in group) < whole:
            return None
        order = tuple(sorted(group, key=lambda home: (-speeds[home], home)))
        return HomeGroup(homes=order, tokens_per_s=min(speeds[home] for home in group) * len(group) * 0.9 ** len(group))

    return rate


def groupings(homes: list[int]) -> Iterator[list[frozenset[int]]]:
    """All ways to put homes into groups."""
    if not homes:
        yield []
        return
    first, rest = homes[0], homes[1:]
    for groups in groupings(rest):
        yield [frozenset({first}), *groups]
        for at, group in enumerate(groups):
            yield [*groups[:at], group | {first}, *groups[at + 1 :]]


def total(groups: list[frozenset[int]], rate: Callable[[frozenset[int]], HomeGroup | None]) -> float:
    found = (rate(group) for group in groups if len(group) >= 2)
    return sum(group.tokens_per_s for group in found if group is not None)


@pytest.mark.parametrize("seed", range(12))
def test_close_to_brute_force(seed: int) -> None:
    drawn = random.Random(seed)
    speeds, rooms = [drawn.choice([1.0, 2.0, 4.0]) for _ in range(7)], [drawn.choice([3.0, 4.0, 6.0]) for _ in range(7)]
    rate = bottleneck(speeds, rooms, whole=9.0)
    best = max(total(groups, rate) for groups in groupings(list(range(7))))
    rankings = [sorted(range(7), key=lambda home: -speeds[home]), sorted(range(7), key=lambda home: -rooms[home])]
    found = group_homes(rankings, 2, 7, rate)
    assert sum(group.tokens_per_s for group in found) >= 0.95 * best
    named = [home for group in found for home in group.homes]
    assert len(named) == len(set(named)), "no home is in two groups"


def test_no_group_where_all_together_do_not_hold_the_model() -> None:
    assert group_homes([[0, 1, 2]], 2, 3, bottleneck([1.0] * 3, [1.0] * 3, whole=4.0)) == ()


def test_many_homes_are_not_looked_at_in_all_ways() -> None:
    asked: list[frozenset[int]] = []
    rate = bottleneck([float(1 + number % 5) for number in range(32)], [4.0] * 32, whole=9.0)

    def counted(group: frozenset[int]) -> HomeGroup | None:
        asked.append(group)
        return rate(group)

    assert group_homes([list(range(32))], 3, 8, counted)
    assert len(asked) <= MOST_RATED
