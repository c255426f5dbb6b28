"""What groups of a grid did, to draw from what others of them do.

Of each round is kept whether the group waited for the last of its members, how long it took from there, and when each
member had what it decided. Whoever draws takes a round in which as lately a member had been lost, and in which the last
was about as late: a group waits for somebody who is a little late, and goes on without one who is much later.
"""

from __future__ import annotations

import math
from bisect import bisect, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from peer.plan.simulate.part import Times

CALM = 3
"""Rounds after which a loss is past: whoever is gone counts in the electorate for two."""


@dataclass(frozen=True)
class Past:
    """One round of one group that was simulated."""

    lateness_s: float
    """How much later than half of its members the last of them could begin."""
    waited: bool
    """Whether the group waited for that one."""
    delay_s: float
    """Until half of the group had what it decided: from when the last could begin, or half of them if it is not waited
    for."""
    offsets_s: Times
    """Shape (members,): how much later than half of the group each had it, in the order in which they could begin. NaN
    for one that had nothing in time."""


class Library:
    """What groups along one side did, by the rounds since they lost a member."""

    def __init__(self) -> None:
        self._pasts: list[list[Past]] = [[] for _ in range(CALM + 1)]
        """By lateness."""

    def add(self, began: Times, decided: Times, since: int) -> None:
        """One more round of a group whose members could begin, and had what was decided, at these times."""
        there = ~np.isnan(began)
        if np.isnan(decided[there]).all():
            return  # nothing is learned from a round in which nobody decided anything
        order = np.argsort(began[there], kind="stable")
        ends = decided[there][order]
        half, last, middle = float(np.median(began[there])), float(began[there].max()), float(np.nanmedian(ends))
        waited = middle >= last
        past = Past(last - half, waited, middle - (last if waited else half), ends - middle)
        insort(self._pasts[since], past, key=_lateness)

    def draw(self, began: Times, since: int, dice: np.random.Generator) -> Times:
        """When the members of a group that can begin at these times have what it decides; NaN for who has nothing.

        Drawn from the nearest neighbours in lateness, as many as the root of how many rounds are known (Lall and
        Sharma, A nearest neighbor bootstrap for resampling hydrologic time series, 1996).
        """
        there = np.flatnonzero(~np.isnan(began))
        # Of what never happened the next quieter thing is taken.
        known = next((pasts for pasts in self._pasts[since:] if pasts), [])
        ends = began.copy()
        if not known or not len(there):
            return ends
        half, last = float(np.median(began[there])), float(began[there].max())
        nearest = _nearest(known, last - half)
        past = nearest[_rank(len(nearest), dice)]
        # Who is late matters, so ranks are counted from the last; of early members that were too few, the first stands.
        ranks = np.maximum(np.arange(len(there)) - len(there) + len(past.offsets_s), 0)
        order = there[np.argsort(began[there], kind="stable")]
        ends[order] = (last if past.waited else half) + past.delay_s + past.offsets_s[ranks]
        return np.maximum(ends, began)


def _lateness(past: Past) -> float:
    return past.lateness_s


def _nearest(known: Sequence[Past], lateness_s: float) -> Sequence[Past]:
    """Of those that are known, by lateness, the root of their number that come nearest to one."""
    number = math.isqrt(len(known))
    place = bisect(known, lateness_s, key=_lateness)
    around = known[max(0, place - number) : place + number]
    return sorted(around, key=lambda past: abs(past.lateness_s - lateness_s))[:number]


def _rank(number: int, dice: np.random.Generator) -> int:
    """Of so many neighbours the j-th with a probability of 1/j over what that comes to for all."""
    up_to = np.cumsum(1 / np.arange(1, number + 1))
    return int(np.searchsorted(up_to, dice.random() * up_to[-1], side="right"))
