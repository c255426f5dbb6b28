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
"""The number of arrivals after which a history is known well enough."""
MEMORY = 0.05
"""The weight of the newest arrival in the running mean."""
SPREADS = 6.0
RMS_FACTOR = 16.0
"""An RMS that differs by less than this factor never counts as a fault."""
LOSS_NATS = 2.0
"""A loss that differs by less than this is never odd. An odd one is no fault: of small models and single texts an
honest one is at 11 nats where 3 are usual [exp]. It is a reason for a trial."""
ZEROS = 0.5
"""A larger share of tokens whose values are all 0 is always a fault."""
TRIAL_ONE_IN = 100
"""One of this many steps begins with a trial; nobody can predict which. So does the first of a round, and of a new
cluster, if no trial was made for TRIAL_APART steps, and the step after one with an odd loss."""
TRIAL_APART = 20
"""The two flights of a trial, alone in the pipeline, take 0.7 of a step's time with three homes [exp]. Where a round is
a step or two, one in each would cost a third of all time."""
TRIALS = 3
"""The number of trials, with different texts: a home is accused only if it fails in all of them."""
DESCENT = 0.03
"""How far a trial descends along a gradient, per token, relative to the norm of its hidden values: further than the
rounding of int8 on the wire, and no further than the loss falls linearly."""
LEAST_FALL = 0.2
"""The least fraction of the fall that a gradient promises. Honest gradients reach 0.93 to 1.09 of it, noise at most
0.05, a gradient with the wrong sign -1 [exp]."""
FINEST = 1e-4
"""A promised fall that is a smaller share of the loss cannot be told from rounding."""


class RunningMean:
    """The running mean and standard deviation of a value; new values count most."""

    def __init__(self) -> None:
        self.seen, self.mean, self._variance = 0, 0.0, 0.0

    def is_odd(self, value: float, slack: float) -> bool:
        """Whether a value differs from the mean by more than `slack` plus some standard deviations; never before
        enough values were seen."""
        spread = math.sqrt(self._variance)
        return self.seen >= KNOWN_FROM and abs(value - self.mean) > slack + SPREADS * spread

    def add(self, value: float) -> None:
        self.seen += 1
        share = max(MEMORY, 1 / self.seen)
        difference = value - self.mean
        self.mean += share * difference
        self._variance = (1 - share) * (self._variance + share * difference * difference)


class ArrivalHistory:
    """The history of what one home sends in one direction."""

    def __init__(self) -> None:
        self._log_rms, self._loss = RunningMean(), RunningMean()

    @torch.no_grad()
    def fault_of(self, values: Tensor) -> str | None:
        """The fault in finite hidden values or gradients of shape (…, H), in words; None if there is none."""
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

    def is_odd_loss(self, loss: float) -> bool:
        """Whether a finite loss in nats per token is far from what is usual. It is part of the history in any case: a
        loss that stays high after a bad outer step is soon usual."""
        is_odd = self._loss.is_odd(loss, LOSS_NATS)
        self._loss.add(loss)
        return is_odd


def fault_of_descent(before: float, behind: float, promised: float) -> str | None:
    """The fault in a gradient, in words; None if there is none. `before` and `behind` are the losses before and
    after hidden values were moved down the gradient, and `promised` is the fall that it promises."""
    if promised < FINEST * before or before - behind >= LEAST_FALL * promised:
        return None
    share = (before - behind) / promised
    return f"a gradient down which the loss falls by {share:.2f} of what it promises, where honest ones keep nearly 1"
