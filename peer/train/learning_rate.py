"""Learning rate as a function of (round, step), so that a late joiner is at the right rate."""

from __future__ import annotations

import math

from peer.spec import RunSpec


def steps_before(spec: RunSpec, round: int) -> int:
    """Inner steps that one peer makes from the start of the run to anchor `round`."""
    table = spec.round
    first_synchronous = min(round, table.sync_rounds)
    ramp_end = table.sync_rounds + table.ramp_rounds
    ramp = sum(spec.steps_in(number) for number in range(first_synchronous, min(round, ramp_end)))
    return first_synchronous + ramp + max(0, round - ramp_end) * table.steps


def learning_rate(spec: RunSpec, round: int, step: float) -> float:
    """Inner learning rate of inner step `step` (from 0) of round `round`; between two of them at another pace than H.

    Linear warm-up over `inner.warmup_steps`, then a cosine that reaches `inner.final_fraction` of
    the peak at the end of the schedule. A run without an end keeps the peak.
    """
    table = spec.inner
    position = steps_before(spec, round) + step
    if position < table.warmup_steps:
        return table.learning_rate * (position + 1) / table.warmup_steps
    rounds = table.schedule_rounds or spec.run.rounds
    if rounds == 0:
        return table.learning_rate
    total = steps_before(spec, rounds)
    progress = min(1.0, (position - table.warmup_steps) / max(1, total - table.warmup_steps))
    cosine = (1 + math.cos(math.pi * progress)) / 2
    return table.learning_rate * (table.final_fraction + (1 - table.final_fraction) * cosine)
