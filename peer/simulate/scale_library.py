"""What groups of a grid did, to draw from what others of them do.

Of each round is kept whether the group had what it decided before the last of its members would have been ready, how
long it took, when each member had it, and when those stopped that were asked for what they had. Whoever draws takes a
round in which as lately a member had been lost, and in which as many were about as late: a group waits for somebody
who is a little late, and has one who is much later stop, or goes on without it, unless that one is to coordinate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peer.simulate.scale_part import Times

CALM = 3
"""Rounds after which a loss is past: whoever is gone counts in the electorate for two."""


@dataclass(frozen=True)
class Past:
    """One round of one group that was simulated."""

    waited: bool
    """Whether the last of its members was ready, or would have been, before half of the group had what it decided."""
    delay_s: float
    """Until half of the group had it: from when the last was ready, or half of them if it is not waited for. NaN if
    nothing was decided."""
    offsets_s: Times
    """Shape (members,): how much later than half of the group each had it, in the order in which they are ready. NaN
    for one that had nothing in time."""
    stops_s: Times
    """Shape (members,): likewise how much later than that each stopped for it. NaN for one that made its whole part."""


@dataclass(frozen=True)
class Drawn:
    """What a group does, by members."""

    decided: Times
    """When each has what is decided; NaN for one that has nothing."""
    stopped: Times
    """When each stops short of its whole part; NaN for one that makes it."""


class Library:
    """What groups along one side did, by the rounds since they lost a member. A full one has so many `members`."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._pasts: list[list[Past]] = [[] for _ in range(CALM + 1)]
        self._lateness_s: list[list[Times]] = [[] for _ in range(CALM + 1)]
        """Of each of them, shape (members,): how much later than half of them each was ready, in that order."""

    def add(self, ready: Times, stopped: Times, decided: Times, since: int) -> None:
        """One more round of a group: when its members were ready or would have been, stopped before that, and had what
        was decided."""
        there = np.flatnonzero(~np.isnan(ready))
        if not len(there):
            return
        order = there[np.argsort(ready[there], kind="stable")]
        half, last = float(np.median(ready[there])), float(ready[there].max())
        middle = math.nan if np.isnan(decided[order]).all() else float(np.nanmedian(decided[order]))
        waited = middle >= last
        delay_s = middle - (last if waited else half)
        self._pasts[since].append(Past(waited, delay_s, decided[order] - middle, stopped[order] - middle))
        self._lateness_s[since].append(_as_many(ready[order] - half, self._members))

    def draw(self, ready: Times, since: int, dice: np.random.Generator) -> Drawn:
        """What a group does whose members would be ready at these times; NaN for who is not there.

        Drawn from the nearest neighbours in how late all were, as many as the root of how many rounds are known (Lall
        and Sharma, A nearest neighbor bootstrap for resampling hydrologic time series, 1996).
        """
        there = np.flatnonzero(~np.isnan(ready))
        # Of what never happened the next quieter thing is taken, or else the next one that is less quiet.
        known = next((of for of in (*range(since, CALM + 1), *range(since)[::-1]) if self._pasts[of]), None)
        drawn = Drawn(np.full(len(ready), np.nan), np.full(len(ready), np.nan))
        if known is None or not len(there):
            return drawn
        order = there[np.argsort(ready[there], kind="stable")]
        half, last = float(np.median(ready[there])), float(ready[order[-1]])
        nearest = _nearest(np.array(self._lateness_s[known]), _as_many(ready[order] - half, self._members))
        past = self._pasts[known][nearest[_rank(len(nearest), dice)]]
        middle = (last if past.waited else half) + past.delay_s
        drawn.decided[order] = middle + _as_many(past.offsets_s, len(order))
        drawn.stopped[order] = middle + _as_many(past.stops_s, len(order))
        return drawn


def _as_many(of_members: Times, number: int) -> Times:
    """Shape (number,): who is late matters, so the last stay; of early members that are too few, the first stands."""
    return of_members[np.maximum(np.arange(number) - number + len(of_members), 0)]


def _nearest(known_s: NDArray[np.float64], lateness_s: Times) -> NDArray[np.intp]:
    """Of rounds, shape (rounds, members), the root of their number that come nearest to one, nearest first."""
    number = math.isqrt(len(known_s))
    away_s = np.abs(known_s - lateness_s).sum(axis=1)
    nearest = np.argpartition(away_s, number - 1)[:number]
    found: NDArray[np.intp] = nearest[np.argsort(away_s[nearest], kind="stable")]
    return found


def _rank(number: int, dice: np.random.Generator) -> int:
    """Of so many neighbours the j-th with a probability of 1/j over what that comes to for all."""
    up_to = np.cumsum(1 / np.arange(1, number + 1))
    return int(np.searchsorted(up_to, dice.random() * up_to[-1], side="right"))
