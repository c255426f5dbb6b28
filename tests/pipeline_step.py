"""What an inner step of a model in stages takes, by the formula of AMP: the plan is held against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Some consecutive blocks on one peer."""

    blocks: int
    micro_s: float
    """Forward and backward of one micro-batch."""


def pipeline_step_s(stages: Sequence[Stage], cut_s: Sequence[float], micro_batches: int) -> float:
    """AMP's T = Σ e + Σ c + (B − 1) · max e (arXiv:2210.07297): fill, then the slowest stage sets the pace.

    `cut_s` is of each cut, both ways of one micro-batch. A cut that is slower than every stage sets the pace instead,
    which AMP leaves out and DT-FM's overlapped streams do not (arXiv:2206.01288, section 2): ours takes the larger.
    """
    assert len(cut_s) == len(stages) - 1
    assert micro_batches >= 1
    slowest = max([stage.micro_s for stage in stages] + list(cut_s))
    return sum(stage.micro_s for stage in stages) + sum(cut_s) + (micro_batches - 1) * slowest


class PlayedStep:
    """A step of a pipeline in virtual time: each home computes one flight after another, the way back first, and its
    line carries one after another to either neighbour. A backward pass takes three times as long as a forward pass, and
    the last stage makes both at once."""

    def __init__(
        self, forward_s: Sequence[float], passing_s: Sequence[float], *, one_way_s: float, flights: int, at_once: int
    ) -> None:
        """`forward_s` and `passing_s` are of one flight, by stage."""
        self._forward_s, self._passing_s, self._one_way_s = forward_s, passing_s, one_way_s
        self._flights, self._at_once = flights, at_once
        self._departed = self._landed = 0
        self._last = len(forward_s) - 1
        self._here: list[dict[bool, int]] = [{True: 0, False: 0} for _ in forward_s]
        """The flights that wait at each stage, by whether they go back."""
        self._leaving: list[list[tuple[int, bool]]] = [[] for _ in forward_s]
        self._computes, self._sends = [False] * len(forward_s), [False] * len(forward_s)
        self._clock = FakeClock()

    def seconds(self) -> float:
        self._compute(0)
        while self._landed < self._flights:
            self._clock.next()
        return self._clock.now_s

    def _compute(self, stage: int) -> None:
        here = self._here[stage]
        may_depart = stage == 0 and self._departed < min(self._flights, self._landed + self._at_once)
        is_back = here[True] > 0
        if self._computes[stage] or not (is_back or here[False] or may_depart):
            return
        if stage == 0 and not is_back:
            self._departed += 1
        else:
            here[is_back] -= 1
        takes = 3 if is_back or stage == self._last else 1
        self._computes[stage] = True
        self._clock.later(takes * self._forward_s[stage], lambda: self._computed(stage, is_back=is_back))

    def _computed(self, stage: int, *, is_back: bool) -> None:
        self._computes[stage] = False
        if is_back and stage == 0:
            self._landed += 1
        else:
            turns = is_back or stage == self._last
            self._leaving[stage].append((stage - 1 if turns else stage + 1, turns))
            self._send(stage)
        self._compute(stage)

    def _send(self, stage: int) -> None:
        if self._sends[stage] or not self._leaving[stage]:
            return
        to, is_back = self._leaving[stage].pop(0)
        self._sends[stage] = True

        def carried() -> None:
            self._sends[stage] = False
            self._clock.later(self._one_way_s, lambda: self._arrived(to, is_back=is_back))
            self._send(stage)

        self._clock.later(self._passing_s[stage], carried)

    def _arrived(self, stage: int, *, is_back: bool) -> None:
        self._here[stage][is_back] += 1
        self._compute(stage)


class FakeClock:
    """Calls what is due, in order of time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._due, (self.now_s + seconds, self._count, call))

    def next(self) -> None:
        self.now_s, _, call = heappop(self._due)
        call()
