"""Delayed Nesterov: an outer step for updates that arrive one at a time (arXiv:2401.09135, algorithm 3, with c = 0).

For benchmarks only. A run keeps a total order by rounds, in which all contributions of a
round are one mean and one `outer_kernel`.
"""

from __future__ import annotations

import torch
from torch import Tensor


class DelayedNesterov:
    """Momentum μ = `factor` is renewed once in N = `period` pushes, from the mean of their pseudo-gradients.

    Of N pushes g₁ … g_N the last turns v into μ v + ḡ, with ḡ their mean. Each moves θ by −lr g / N, and the last by
    −lr μ v besides: together by −lr (ḡ + μ v), which is one Nesterov step on ḡ. With N = 1 it is `outer_kernel`.
    """

    def __init__(self, theta: Tensor, *, period: int, learning_rate: float, factor: float) -> None:
        assert period >= 1
        self.theta = theta
        """Updated in place."""
        self.momentum, self._buffer = torch.zeros_like(theta), torch.zeros_like(theta)
        self._period, self._learning_rate, self._factor = period, learning_rate, factor
        self._pushes = 0

    @torch.no_grad()
    def push(self, gradient: Tensor) -> None:
        """One pseudo-gradient (θ_before − θ_local, in the shape of θ), which is applied at once."""
        self._pushes += 1
        self._buffer.add_(gradient)
        move = gradient / self._period
        if self._pushes % self._period == 0:
            self.momentum.mul_(self._factor).add_(self._buffer / self._period)
            self._buffer.zero_()
            move += self.momentum * self._factor
        self.theta.sub_(move * self._learning_rate)
