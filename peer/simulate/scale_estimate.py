"""A grid of groups too large for every message: what groups do is drawn from what a few of them did.

For the first rounds some groups along each side are simulated message by message, among drawn ones, so that their
members begin when members of such a grid begin. All other groups draw from what these did along their side (`library`),
at random by the seed; what was done before groups knew their deadlines is forgotten as soon as they do. Training times
are drawn as simulated peers draw them, and churn is the same schedule of the same seats. Of each side those groups are
simulated to which most happens, since that is rare, and a row with an attacker of each kind: what attackers are
penalised for is scaled by their number, all else by that of groups.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from peer.lifecycle.pace import MOST, reference, steps_at
from peer.rounds.timeouts import KNOWN
from peer.simulate.group import Sink
from peer.simulate.scale import Grid, Spread, alone
from peer.simulate.scale_axes import Seats, groups_along
from peer.simulate.scale_library import CALM, Drawn, Library
from peer.simulate.scale_part import Agreed, Times
from peer.simulate.scenario import ChurnEvent, Scenario

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
        self._freeze_s = np.array([machine.freeze_s for machine in setting.machines])
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
        ready = times + part_s + self._freeze_s
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
