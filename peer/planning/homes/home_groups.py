"""Puts homes that cannot hold a model alone into groups that can: each a cluster with ordered stages and a lead.

Which homes make how many tokens per second together is for the caller to say; here only the grouping is searched: of
few homes the best one, of many by moves and swaps between groups from some first groupings. The same homes give the
same groups, whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

FEW = 8
"""Of up to so many homes the best grouping is found: they have 2^8 sets."""
MOST_RATED = 400
"""The number of sets of homes whose speed is asked for in one search."""
LEAST_GAIN = 1e-9
"""A smaller gain, relative to all, is rounding."""


@dataclass(frozen=True, kw_only=True)
class HomeGroup:
    """Homes that train one copy of a model together."""

    homes: tuple[int, ...]
    """Their numbers in the order of the stages, the lead first."""
    tokens_per_s: float


Rate = Callable[[frozenset[int]], HomeGroup | None]
"""The best cluster of exactly these homes; None if they cannot hold the model."""
_Groups = tuple[frozenset[int], ...]


class _BudgetSpent(Exception):
    """No further set of homes is looked at."""


def group_homes(rankings: Sequence[Sequence[int]], fewest: int, most: int, rate: Rate) -> tuple[HomeGroup, ...]:
    """The groups that make the most tokens per second in total, as far as the search finds them, the fastest first.
    Homes that would only delay others are in none.

    Each of the `rankings` names all homes, like beside like: the first groupings are cut from them. A group has from
    `fewest` to `most` homes.
    """
    known: dict[frozenset[int], HomeGroup | None] = {}

    def rated(group: frozenset[int]) -> float:
        if not fewest <= len(group) <= most:
            return 0.0
        if group not in known:
            if len(known) >= MOST_RATED:
                raise _BudgetSpent
            known[group] = rate(group)
        found = known[group]
        return found.tokens_per_s if found is not None else 0.0

    best: _Groups = ()
    best_speed = 0.0
    if len(rankings[0]) <= FEW:
        chosen = [known[group] for group in _best_of_few(sorted(rankings[0]), rated)]
        return _fastest_first(chosen)
    try:
        for start in _starts(rankings, fewest, most):
            for groups, speed in _climbed(start, rated):
                if speed > best_speed * (1 + LEAST_GAIN):
                    best, best_speed = groups, speed
    except _BudgetSpent:
        pass  # what was found is good; to look at everything would take hours
    return _fastest_first([known.get(group) for group in best])


def _fastest_first(found: Iterable[HomeGroup | None]) -> tuple[HomeGroup, ...]:
    groups = [group for group in found if group is not None]
    return tuple(sorted(groups, key=lambda group: (-group.tokens_per_s, group.homes)))


def _best_of_few(homes: Sequence[int], rated: Callable[[frozenset[int]], float]) -> _Groups:
    """The groups with the most tokens per second: of each set of homes, the first is in none, or in one with some of
    the others."""
    best: dict[frozenset[int], tuple[float, _Groups]] = {frozenset(): (0.0, ())}
    for number in range(1, len(homes) + 1):
        for some in map(frozenset, combinations(homes, number)):
            first = min(some)
            best[some] = best[some - {first}]
            for size in range(number):
                for others in combinations(sorted(some - {first}), size):
                    group = frozenset((first, *others))
                    speed, groups = best[some - group]
                    if (faster := speed + rated(group)) > best[some][0] * (1 + LEAST_GAIN):
                        best[some] = faster, (group, *groups)
    return best[frozenset(homes)][1]


def _starts(rankings: Sequence[Sequence[int]], fewest: int, most: int) -> Iterator[_Groups]:
    """Groupings into as many groups as there can be, and into fewer, all homes in some group; the last set is of those
    that are left over."""
    for ranking in rankings:
        for count in range(len(ranking) // max(1, fewest), 0, -1):
            size = min(most, len(ranking) // count)
            groups = [frozenset(ranking[at * size : (at + 1) * size]) for at in range(count)]
            yield (*groups, frozenset(ranking) - frozenset().union(*groups))


def _climbed(start: _Groups, rated: Callable[[frozenset[int]], float]) -> Iterator[tuple[_Groups, float]]:
    """The first groups and ever better ones, with the tokens per second of all together. The last set is of the homes
    in no group."""

    def speeds_of(groups: _Groups) -> list[float]:
        return [*map(rated, groups[:-1]), 0.0]

    groups, speeds = start, speeds_of(start)
    yield groups[:-1], sum(speeds)
    improved = True
    while improved:
        improved = False
        for one, other, changed_one, changed_other in _moves(groups):
            last = len(groups) - 1
            new = rated(changed_one) + (rated(changed_other) if other != last else 0.0)
            if new > (speeds[one] + speeds[other]) + LEAST_GAIN * sum(speeds):
                changed = list(groups)
                changed[one], changed[other] = changed_one, changed_other
                groups = tuple(changed)
                speeds = speeds_of(groups)
                yield groups[:-1], sum(speeds)
                improved = True
                break


def _moves(groups: _Groups) -> Iterator[tuple[int, int, frozenset[int], frozenset[int]]]:
    """Two sets by number and what they become: a home goes from one to the other, or two change places."""
    for one in range(len(groups) - 1):
        for other in range(one + 1, len(groups)):
            here, there = groups[one], groups[other]
            for home in sorted(here):
                yield one, other, here - {home}, there | {home}
            for home in sorted(there):
                yield one, other, here | {home}, there - {home}
            for mine in sorted(here):
                for theirs in sorted(there):
                    yield one, other, here - {mine} | {theirs}, there - {theirs} | {mine}
