"""The timing of a cluster's steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, median_high, stdev

LEAST_STEPS = 2
"""Fewer steps say nothing."""
MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""The standard error of a median divided by that of a mean, of normally distributed values."""


@dataclass(frozen=True)
class StepTimes:
    """The timing of one step."""

    step_s: float
    flights: int
    tokens: int
    """Of all flights together."""
    flight_s: Mapping[str, float]
    """By peer: the seconds of computing that its stage needed for a micro-batch, forward and backward."""


@dataclass(frozen=True, kw_only=True)
class MedianTimes:
    """The medians of some steps."""

    step_s: float
    flights: int
    """In a step."""
    tokens: int
    """In a flight."""
    flight_s: Mapping[str, float]
    """By peer: the seconds of computing for a flight, forward and backward."""
    error: float = 0.0
    """The relative standard error of the least certain of these medians."""

    @classmethod
    def of(cls, steps: Sequence[StepTimes]) -> MedianTimes | None:
        """None for too few steps."""
        if len(steps) < LEAST_STEPS:
            return None
        flights = median_high(step.flights for step in steps)
        timed_s = {peer: [step.flight_s[peer] for step in steps] for peer in steps[-1].flight_s}
        errors = (MEDIAN_ERROR * stdev(each) / math.sqrt(len(each)) / mean(each) for each in timed_s.values())
        return cls(
            step_s=median(step.step_s for step in steps), flights=flights,
            tokens=median_high(step.tokens for step in steps) // flights,
            flight_s={peer: median(each) for peer, each in timed_s.items()}, error=max(errors),
        )  # fmt: skip
