"""How much of a round is this peer's part: H steps, its share of them by its speed, or what fits into the time.

`round.pace` says which. Where all peers make H steps, the slowest decides how long a round takes. With a share by speed
(DyLU, arXiv:2401.09135) or by time alone (A-EDiT, arXiv:2412.07210) all are ready at about the same moment, each with
the steps that it could make, and updates weigh them by tokens.

Time counts from when this peer heard that its anchor was agreed, before it computed the anchor. All peers hear that
within about a second. So no clocks are compared, and a delay in one round does not carry over into the next.

The learning rate follows the share that is done, not the steps: a peer that makes H/4 steps goes through the same
rates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from statistics import median

from peer.schema.spec import RunSpec

MOST = 2
"""Times H: tokens beyond that count nothing (`RunSpec.tokens_cap`), so no more steps are made."""
LEAST = 16
"""H over this is the smallest part: what others say of their speed makes nobody's part smaller."""
SLACK = 100
"""One in so many."""
KNOWN = 3
"""Steps after which this peer knows its speed."""
LEAST_MEASURED, MOST_MEASURED, MEASURED_S = 8, 128, 20.0
"""The newest steps that are looked at: those of so many seconds, but at least and at most so many."""
OUTLIER = 3.0
"""A step counts as at most so many median steps: a laptop that slept is not slow."""


def reference(speeds: Collection[int]) -> int:
    """The robust maximum of positive speeds; 0 if there are none.

    Of three or more, the fastest tenth, rounded up to k peers, is left out: the result is the (k + 1)th fastest. While
    at most k peers lie, or measure nonsense, it lies between the (k + 1)th fastest of the honest peers and their
    fastest: one of the k + 1 fastest is honest, and the result is at most its speed; k + 1 of the honest report at
    least what the (k + 1)th fastest of them does, so the result is at least that. Of two it is the faster: each can
    stop a run of two anyway.
    """
    ranked = sorted(speeds, reverse=True)
    if len(ranked) < 3:
        return max(ranked, default=0)
    return ranked[-(-len(ranked) // 10)]


def steps_at(speed: int, reference: int, steps: int) -> int:
    """⌊speed / reference · H⌋, at least H / `LEAST` and at most `MOST` · H; H while a speed is unknown (0).

    Between the bounds this takes at most as long as H steps at the reference speed, and at most one step less. A peer
    that lacks at most a hundredth of its length (`SLACK`) for one more step is given that step: two measurements of the
    same speed differ by as much, and a peer with a step less would wait for a whole step.
    """
    if speed <= 0 or reference <= 0:
        return steps
    whole, rest = divmod(speed * steps, reference)
    if rest and (whole + 1) * reference * SLACK <= speed * steps * (SLACK + 1):
        whole += 1
    return min(max(1, steps // LEAST, whole), MOST * steps)


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of this peer's newest inner steps."""

    steps: tuple[tuple[float, int], ...] = ()
    """Seconds and tokens of each."""
    step_s: float = 0.0
    """Seconds per step; 0 while they are not known."""
    tokens_per_s: float = 0.0
    """0 while it is not known."""

    def add(self, seconds: float, tokens: int) -> Speed:
        steps = (*self.steps, (seconds, tokens))[-MOST_MEASURED:]
        while len(steps) > LEAST_MEASURED and sum(seconds for seconds, _ in steps) > MEASURED_S:
            steps = steps[1:]
        if len(steps) < KNOWN:
            return Speed(steps)
        longest_s = OUTLIER * median(seconds for seconds, _ in steps)
        total_s = sum(min(seconds, longest_s) for seconds, _ in steps)
        if total_s <= 0:
            return replace(self, steps=steps)
        return Speed(steps, total_s / len(steps), sum(tokens for _, tokens in steps) / total_s)


@dataclass(frozen=True, slots=True)
class Pace:
    """When this peer's part of a round is done."""

    spec: RunSpec
    speed: Speed = Speed()
    others: tuple[int, ...] = ()
    """Thousandths of a token per second."""
    late_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """My own speed while I train, the rests that my owner asks for included; 0 while it is not known."""
        return round(self.speed.tokens_per_s, 3)

    @property
    def step_s(self) -> float:
        """Seconds of an inner step of mine, rests included; 0 while that is not known."""
        return self.speed.step_s

    @property
    def others_tokens_per_s(self) -> tuple[float, ...]:
        """The speeds that the others in the electorate report."""
        return tuple(each / 1000 for each in self.others)

    def stepped(self, seconds: float, tokens: int) -> Pace:
        """I made an inner step, rest included."""
        return replace(self, speed=self.speed.add(seconds, tokens))

    def heard(self, speeds: Mapping[str, float]) -> Pace:
        """The tokens per second that the others in the electorate report, all of them."""
        return replace(self, others=tuple(whole for speed in speeds.values() if (whole := _milli(speed)) > 0))

    def was_late(self, seconds: float) -> Pace:
        """My part of the newest round came later than those of half of all, by so many seconds. A peer that trains
        on meanwhile would be as late in every round, since its period begins as it submits. So its next part is
        smaller by the steps of that time, by at most half, and then all are ready together."""
        return replace(self, late_s=seconds)

    def expected(self, round: int) -> int:
        """How many inner steps this peer will probably make towards the round from anchor `round`; for people."""
        if not self.speed.step_s:
            return min(self.spec.steps_in(round), self.steps(round))
        in_time = self.spec.round.max_train_s / self.speed.step_s
        return max(1, int(min(in_time, self.steps(round))))

    def steps(self, round: int) -> int:
        """The number of inner steps in my part of the round from anchor `round`, if the time suffices."""
        steps, pace = self.spec.steps_in(round), self.spec.round.pace
        if pace == "time":
            return MOST * steps
        if pace == "steps":
            return steps
        mine = _milli(self.tokens_per_s)
        return self._less_lateness(steps_at(mine, reference((mine, *self.others)), steps))

    def _less_lateness(self, steps: int) -> int:
        if self.spec.round.overlap != "streaming" or not self.speed.step_s:
            return steps
        return max(1, steps - min(steps // 2, int(self.late_s / self.speed.step_s)))

    def share(self, round: int, steps: int, elapsed_s: float) -> float:
        """The share of my part that is done after so many steps; 1 or more if no further step is to be made. A step
        that would end after `round.max_train_s` is not begun, but one is always made."""
        if steps == 0:
            return 0.0
        limit_s = self.spec.round.max_train_s
        if elapsed_s + self.speed.step_s > limit_s:
            return max(1.0, elapsed_s / limit_s)
        return max(steps / self.steps(round), elapsed_s / limit_s)

    def position(self, round: int, steps: int, elapsed_s: float) -> float:
        """Where the next step stands between step 0 and step H of the round, for the learning rate: less than H.
        Steps after my part is done stay at the last rate. Where all make H steps the clock does not matter, so that
        an interrupted peer makes the same steps again, to the bit."""
        if steps == 0:
            return 0.0
        whole = self.spec.steps_in(round)
        if self.spec.round.pace == "steps":
            return min(whole - 1.0, steps)
        by_time = whole * (elapsed_s / self.spec.round.max_train_s)
        if self.spec.round.pace == "time":
            return min(whole - 1.0, by_time)
        return min(whole - 1.0, max(steps * whole / self.steps(round), by_time))


def _milli(tokens_per_s: float) -> int:
    """In whole thousandths of a token per second."""
    return round(1000 * tokens_per_s)
