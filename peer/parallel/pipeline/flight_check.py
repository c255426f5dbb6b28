"""Checks whether what a home sends can be what it should have computed, by comparison with its earlier messages.

Bounds are wide, so that no honest home is ever named, through warm-up, another precision or odd texts. What they let
through, such as gradients with the wrong sign or noise of the usual size, only a trial can show: whether the loss falls
when activations move down the gradient.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

KNOWN_FROM = 8
"""Arrivals after which a history says what is usual."""
MEMORY = 0.05
"""Share of the newest arrival in the running mean."""
SPREADS = 6.0
RMS_FACTOR = 16.0
"""An RMS off by less than this factor is never odd."""
LOSS_NATS = 2.0
"""Likewise, of a loss."""
ZEROS = 0.5
"""A larger share of tokens whose values are all 0 is odd, whatever came before."""
TRIAL_ONE_IN = 100
"""Steps of which one begins with a trial, and the first of every round: nobody knows when."""
TRIALS = 2
"""With other texts: only who fails in all of them is named."""
DESCENT = 0.03
"""How far a trial goes down a gradient, token by token, by the norm of its hidden values: further than int8 on the line
rounds, and no further than a loss falls straight."""
LEAST_FALL = 0.2
"""Of the fall of the loss that a gradient promises. Honest ones keep 0.93 to 1.09 of it, noise 0.05 at most, a turned
sign -1 [exp]."""
FINEST = 1e-4
"""A promise of a smaller share of the loss is too small to tell from rounding."""


class RunningMean:
    """Mean and spread of a figure, the newest counting most."""

    def __init__(self) -> None:
        self.seen, self.mean, self._variance = 0, 0.0, 0.0

    def is_odd(self, value: float, slack: float) -> bool:
        """Whether it is further from the mean than `slack` and some spreads; never before enough was seen."""
        spread = math.sqrt(self._variance)
        return self.seen >= KNOWN_FROM and abs(value - self.mean) > slack + SPREADS * spread

    def add(self, value: float) -> None:
        self.seen += 1
        share = max(MEMORY, 1 / self.seen)
        difference = value - self.mean
        self.mean += share * difference
        self._variance = (1 - share) * (self._variance + share * difference * difference)


class ArrivalHistory:
    """Of what one home sends in one direction."""

    def __init__(self) -> None:
        self._log_rms, self._loss = RunningMean(), RunningMean()

    @torch.no_grad()
    def fault_of(self, values: Tensor) -> str | None:
        """What is odd about hidden values or gradients (…, H), which are finite; None if nothing is."""
        if not values.numel():
            return None
        rms = values.float().square().mean(dim=-1).sqrt().flatten()
        is_zero = rms == 0
        logs = torch.where(is_zero, 0.0, rms.clamp_min(torch.finfo(torch.float32).tiny).log())
        zeros, total = torch.stack([is_zero.sum().double(), logs.sum().double()]).tolist()
        if zeros > ZEROS * rms.numel():
            return f"zeros for {zeros:.0f} of {rms.numel()} tokens"
        log_rms = total / (rms.numel() - zeros)
        if self._log_rms.is_odd(log_rms, math.log(RMS_FACTOR)):
            usual = math.exp(self._log_rms.mean)
            return f"values with an RMS of {math.exp(log_rms):.2g} per token where {usual:.2g} is usual"
        self._log_rms.add(log_rms)
        return None

    def fault_of_loss(self, loss: float) -> str | None:
        """What is odd about a finite loss in nats per token; None if nothing is."""
        if self._loss.is_odd(loss, LOSS_NATS):
            return f"a loss of {loss:.2f} nats per token where {self._loss.mean:.2f} is usual"
        self._loss.add(loss)
        return None


def fault_of_descent(before: float, behind: float, promised: float) -> str | None:
    """What is odd about a gradient, down which hidden values went from a loss `before` to one `behind`, that
    `promised` such a fall; None if nothing is."""
    if promised < FINEST * before or before - behind >= LEAST_FALL * promised:
        return None
    share = (before - behind) / promised
    return f"a gradient down which the loss falls by {share:.2f} of what it promises, where honest ones keep nearly 1"
