"""A grid of which only some groups are simulated, message by message; the others are drawn from what those did."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from peer.consensus.rounds.timeouts import KNOWN
from peer.node.lifecycle.pace import MOST, reference, steps_at
from peer.planning.simulate.grid import Grid, Spread, alone
from peer.planning.simulate.grid_part import Agreed, Seats, Times, groups_along
from peer.planning.simulate.group import Sink
from peer.planning.simulate.scenario import ChurnEvent, Scenario

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


SAMPLES = 16
"""Groups along each side that are simulated."""
CALIBRATED = 60
"""Rounds for which they are."""
LOSSES = ("crash", "leave")


class Estimate(Grid):
    """A grid of which only some groups are simulated."""

    def __init__(
        self, setting: Scenario, sides: tuple[int, ...], sink: Sink | None = None, far: Spread = alone
    ) -> None:
        super().__init__(setting, sides, sink, far)
        self._dice = np.random.Generator(np.random.PCG64([setting.seed, 0xA99]))
        self._libraries = [Library(side) for side in sides]
        self._step_s = np.array([machine.step_s for machine in setting.machines])
        self._spread = np.array([machine.spread for machine in setting.machines])
        self._speeds = [round(1000 * setting.step_tokens / machine.step_s) for machine in setting.machines]
        """Declared, in thousandths of a token per second."""
        self._submit_s = np.array([machine.submit_s for machine in setting.machines])
        self._ahead = deque(self.changes)
        self._gone_at = np.full(len(setting.machines), np.inf)
        """When whoever has a seat is gone; infinity while somebody is there."""
        self._lost_in = np.full(math.prod(sides), -CALM)
        """The round in which a seat lost its peer last."""
        self._since: list[Seats] = []
        """Of each side, for each group, how many rounds ago it lost a member, `CALM` at most."""

    def chosen(self, side: int) -> Sequence[int]:
        """Along each side those to which most happens, and others evenly over the grid; a row for each attack."""
        groups = groups_along(self.sides, side)
        happens = Counter(change.peer for change in self.changes if change.what in LOSSES)
        busy = sorted(range(len(groups)), key=lambda number: -sum(happens[int(seat)] for seat in groups[number]))
        step = max(1, len(groups) // (SAMPLES // 2))
        attacked = list(self.attacked().values())[: SAMPLES // 2] if side == 0 else []
        found = dict.fromkeys([*attacked, *busy[: SAMPLES // 2], *range(step // 2, len(groups), step), *busy])
        numbers = sorted(list(found)[:SAMPLES])
        return self.told_first(numbers) if side == 0 else numbers

    def side_round(self, side: int, times: Times) -> Agreed:
        """Simulate some, learn from them, draw the others."""
        if side == 0:
            if len(self.trained_s) == KNOWN:  # until then groups wait as long as the spec allows
                self._libraries = [Library(side) for side in self.sides]
            self._look_at_churn(times)
            times = np.where(self._gone_at <= times, np.nan, times)
        if len(self.trained_s) - (side > 0) >= CALIBRATED:
            return self._drawn(side, times)
        exact = super().side_round(side, times)
        along = groups_along(self.sides, side)
        # Whoever passes on what a group agreed on is ready when it has that.
        ready, stopped = (exact.ready, exact.stopped) if side == 0 else (times, np.full_like(times, np.nan))
        for number in self.simulated[side]:
            seats, since = along[number][along[number] < len(times)], int(self._since[side][number])
            self._libraries[side].add(ready[seats], stopped[seats], exact.decided[seats], since)
        drawn = self._drawn(side, times)
        known = np.isin(np.arange(len(times)), along[list(self.simulated[side])])
        return Agreed(*(np.where(known, one, other) for one, other in zip(exact.fields(), drawn.fields(), strict=True)))

    def told(self) -> str:
        """In words, whose events are told, and until when."""
        who, rounds = super().told(), self.setting.rounds
        return who if rounds <= CALIBRATED else f"{who}, for the first {CALIBRATED} of {rounds} rounds"

    def scale(self, attack: str = "") -> float:
        """Groups for each that is simulated, and rounds for each in which it is; of an attack, attackers for each."""
        rounds = self.setting.rounds / min(self.setting.rounds, CALIBRATED)
        if attack:
            attackers = sum(machine.attack == attack for machine in self.setting.machines)
            return rounds * attackers / self.sums()[0].attackers[attack]
        groups = sum(math.prod(self.sides) // side for side in self.sides)
        return rounds * groups / max(1, sum(found.groups for found in self.sums()))

    def _look_at_churn(self, times: Times) -> None:
        """Who is gone, or will be before this round is over, if it takes as long as the one before.

        Whoever comes while a round goes on takes part in the next.
        """
        now, number = float(np.nanmedian(times)), len(self.began) - 1
        first_s = float(self._step_s.max()) * self.setting.spec.steps_in(0)
        usual_s = now - float(np.nanmedian(self.began[-2])) if number else first_s
        while self._ahead and self._ahead[0].at_s <= now:
            change = self._ahead.popleft()
            if change.what in LOSSES:
                self._loses(change, number)
            else:
                self._gone_at[change.peer] = np.inf
        for change in takewhile(lambda change: change.at_s <= now + usual_s, self._ahead):
            if change.what in LOSSES:
                self._loses(change, number)
        since = np.clip(number - self._lost_in, 0, CALM)
        self._since = [since[groups_along(self.sides, side)].min(axis=1) for side in range(len(self.sides))]

    def _loses(self, change: ChurnEvent, round: int) -> None:
        if np.isinf(self._gone_at[change.peer]):
            self._gone_at[change.peer], self._lost_in[change.peer] = change.at_s, round

    def _drawn(self, side: int, times: Times) -> Agreed:
        """Every group along a side, by what is known of such groups."""
        if side:
            drawn = self._draw(side, np.where(self._gone_at <= times, np.nan, times))
            return Agreed(times, drawn.stopped, np.maximum(drawn.decided, times), times * 0, times * 0)
        step_s = self._step_s * np.exp(self._spread * self._dice.standard_normal(len(times)))
        in_time = self.setting.spec.round.max_train_s // step_s
        part_s = np.maximum(1, np.minimum(in_time, self._steps(len(self.began) - 1))) * step_s
        ready = times + part_s + self._submit_s
        drawn = self._draw(side, np.where(self._gone_at <= ready, np.nan, ready))
        decided = np.maximum(drawn.decided, times)
        # Whoever goes on to the next round makes no more steps for this one.
        trained_s = np.fmin(part_s, np.fmin(drawn.stopped, decided) - times)
        trained_s = np.where(trained_s > 0, trained_s, np.nan)
        steps = np.maximum(1, np.floor(trained_s / step_s + 1e-6))
        return Agreed(ready, drawn.stopped, decided, trained_s, steps * self.setting.step_tokens)

    def _draw(self, side: int, ready: Times) -> Drawn:
        """Shape (seats,): of every group along a side, whose members are ready at these times."""
        found = Drawn(np.full_like(ready, np.nan), np.full_like(ready, np.nan))
        for members, since in zip(groups_along(self.sides, side), self._since[side], strict=True):
            taken = members[members < len(ready)]
            drawn = self._libraries[side].draw(ready[taken], int(since), self._dice)
            found.decided[taken], found.stopped[taken] = drawn.decided, drawn.stopped
        return found

    def _steps(self, round: int) -> NDArray[np.int64]:
        """Shape (seats,): what part of the round from anchor `round` is each seat's, by its pace and declared speed."""
        whole, pace = self.setting.spec.steps_in(round), self.setting.spec.round.pace
        if pace != "speed":
            return np.full(len(self._speeds), MOST * whole if pace == "time" else whole)
        found = np.zeros(len(self._speeds), dtype=np.int64)
        for members in groups_along(self.sides, 0):
            seats = members[members < len(found)]
            fastest = reference([self._speeds[seat] for seat in seats])
            found[seats] = [steps_at(self._speeds[seat], fastest, whole) for seat in seats]
        return found
