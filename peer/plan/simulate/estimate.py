"""A grid of groups too large for every message: what groups do is drawn from what a few of them did.

For the first rounds some groups along each side are simulated message by message, among drawn ones, so that their
members begin when members of such a grid begin. From each of their rounds is kept how much later than the last member
that gave something half of the group had what it decided, and how much earlier or later each member had it, or that it
had nothing. All other groups draw from these, along their side, at random by the seed: from rounds in which a group
had lost a member as lately as they have. Training times are drawn as simulated peers draw them, and churn is the same
schedule of the same seats. Of each side those groups are simulated to which most happens, since that is rare, and a row
with an attacker of each kind: what attackers are penalised for is scaled by their number, all else by that of groups.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from peer.plan.simulate.grid import Grid
from peer.plan.simulate.group import Sink
from peer.plan.simulate.part import Agreed, Times
from peer.plan.simulate.setting import Setting
from peer.plan.simulate.sides import Seats, groups_along
from peer.train.pace import MOST, reference, steps_at

SAMPLES = 8
"""Groups along each side that are simulated."""
CALIBRATED = 60
"""Rounds for which they are."""
CALM = 3
"""Rounds after which a loss is past: whoever is gone counts in the electorate for two."""


class Library:
    """What groups along one side did: one row per round of a group, by the rounds since it lost a member."""

    def __init__(self, members: int) -> None:
        self._rows: list[list[tuple[float, Times]]] = [[] for _ in range(CALM + 1)]
        self._members = members

    def add(self, agreed: Agreed, since: int) -> None:
        """One more round of a group; nothing is learned from one in which nobody decided anything."""
        if np.isnan(agreed.decided).all() or np.isnan(agreed.ready).all():
            return
        middle, there = float(np.nanmedian(agreed.decided)), ~np.isnan(agreed.ready)
        offsets = np.resize(agreed.decided[there] - middle, self._members)
        self._rows[since].append((middle - float(np.nanmax(agreed.ready)), offsets))

    def draw(self, since: Seats, dice: np.random.Generator) -> tuple[Times, NDArray[np.float64]]:
        """Of groups that lost a member so many rounds ago: delays, shape (groups,), and offsets (groups, members)."""
        delays, offsets = np.zeros(len(since)), np.zeros((len(since), self._members))
        for group, rounds in enumerate(since):
            # Of what never happened the next quieter thing is taken.
            rows = next((rows for rows in self._rows[rounds:] if rows), [])
            if rows:
                delays[group], offsets[group] = rows[int(dice.integers(len(rows)))]
        return delays, offsets


class Estimate(Grid):
    """A grid of which only some groups are simulated."""

    def __init__(self, setting: Setting, sides: tuple[int, ...], sink: Sink | None = None) -> None:
        super().__init__(setting, sides, sink)
        self._dice = np.random.Generator(np.random.PCG64([setting.seed, 0xA99]))
        self._libraries = [Library(side) for side in sides]
        self._step_s = np.array([machine.step_s for machine in setting.machines])
        self._spread = np.array([machine.spread for machine in setting.machines])
        self._speeds = [round(1000 * setting.step_tokens / machine.step_s) for machine in setting.machines]
        """Declared, in thousandths of a token per second."""
        self._freeze_s = np.array([machine.freeze_s for machine in setting.machines])
        self._next = 0
        self._gone_at = np.full(len(setting.machines), np.inf)
        """When whoever has a seat is gone; infinity while somebody is there."""
        self._lost_in = np.full(math.prod(sides), -CALM)
        """The round in which a seat lost its peer last."""
        self._since: list[Seats] = []
        """Of each side, for each group, how many rounds ago it lost a member, `CALM` at most."""

    def chosen(self, side: int) -> Sequence[int]:
        """Along each side those to which most happens, and others evenly over the grid; a row for each attack."""
        groups = groups_along(self.sides, side)
        happens = Counter(change.peer for change in self.changes if change.what in ("crash", "leave"))
        busy = sorted(range(len(groups)), key=lambda number: -sum(happens[int(seat)] for seat in groups[number]))
        step = max(1, len(groups) // (SAMPLES // 2))
        attacked = list(self.attacked().values())[: SAMPLES // 2] if side == 0 else []
        found = dict.fromkeys([*attacked, *busy[: SAMPLES // 2], *range(step // 2, len(groups), step), *busy])
        numbers = sorted(list(found)[:SAMPLES])
        return self.told_first(numbers) if side == 0 else numbers

    def side_round(self, side: int, times: Times) -> Agreed:
        """Simulate some, learn from them, draw the others."""
        if side == 0:
            self._look_at_churn(times)
            times = np.where(self._gone_at <= times, np.nan, times)
        drawn = self._drawn(side, times)
        if len(self.trained_s) - (side > 0) >= CALIBRATED:
            return drawn
        exact = super().side_round(side, times)
        along = self.mine.sides[side]
        for number in along.groups:
            seats = along.seats[number]
            seats = seats[seats < len(times)]
            found = Agreed(*(what[seats] for what in exact.fields()))
            self._libraries[side].add(found, int(self._since[side][number]))
            for into, what in zip(drawn.fields(), found.fields(), strict=True):
                into[seats] = what
        return drawn

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
        """Who is gone, or will be before this round is over, if it takes as long as the one before."""
        now, number = float(np.nanmedian(times)), len(self.began) - 1
        usual_s = now - float(np.nanmedian(self.began[-2])) if number else float(self._step_s.max()) * 60
        while self._next < len(self.changes) and self.changes[self._next].at_s <= now + usual_s:
            change = self.changes[self._next]
            if change.what in ("crash", "leave"):
                self._gone_at[change.peer], self._lost_in[change.peer] = change.at_s, number
            else:
                self._gone_at[change.peer] = np.inf
            self._next += 1
        since = np.clip(number - self._lost_in, 0, CALM)
        self._since = [since[groups_along(self.sides, side)].min(axis=1) for side in range(len(self.sides))]

    def _drawn(self, side: int, times: Times) -> Agreed:
        """Every group along a side, by what is known of such groups."""
        trained_s, steps, ready = np.zeros_like(times), np.zeros_like(times), times
        if side == 0:
            step_s = self._step_s * np.exp(self._spread * self._dice.standard_normal(len(times)))
            in_time = self.setting.spec.round.max_train_s // step_s
            steps = np.maximum(1, np.minimum(in_time, self._steps(len(self.began) - 1)))
            trained_s = steps * step_s
            ready = times + trained_s + self._freeze_s
            ready = np.where(self._gone_at <= ready, np.nan, ready)
        seats = groups_along(self.sides, side)
        delays, offsets = self._libraries[side].draw(self._since[side], self._dice)
        padded = np.append(ready, np.full(math.prod(self.sides) - len(ready), np.nan))
        in_groups = padded[seats]
        some = ~np.isnan(in_groups).all(axis=1)
        last = np.full(len(seats), np.nan)
        last[some] = np.nanmax(in_groups[some], axis=1)
        whole = np.full(math.prod(self.sides), np.nan)
        whole[seats] = np.where(np.isnan(in_groups), np.nan, (last + delays)[:, None] + offsets)
        return Agreed(ready.copy(), whole[: len(times)].copy(), trained_s, steps * self.setting.step_tokens)

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
