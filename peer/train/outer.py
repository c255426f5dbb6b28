"""The outer step: Nesterov momentum on agreed pseudo-gradients, the same bits on every processor.

Only separate element-wise float32 multiplications, additions and subtractions in a fixed order:
a fused multiply-add rounds once where these round twice, and not every processor fuses.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from peer.codec.blockwise import Floats
from peer.spec import RunSpec

CHUNK = 1 << 15
"""Elements that are worked on at a time: what all operations go over stays in the processor's cache."""


@torch.no_grad()
def outer_step(theta: Tensor, momentum: Tensor, mean: Tensor | None, learning_rate: float, factor: float) -> None:
    """Update `theta` and `momentum` in place (all flat float32 on the CPU, of equal length).

    With μ = `factor` and the mean pseudo-gradient g (θ_anchor − θ_local; None means zero):
    v ← μ v + g, then θ ← θ − lr (μ v + g), as torch.optim.SGD with nesterov (arXiv:2311.08105).
    """
    assert theta.dtype == momentum.dtype == torch.float32
    assert theta.shape == momentum.shape
    assert mean is None or (mean.dtype == torch.float32 and mean.shape == theta.shape)
    parameters, velocities = theta.numpy(), momentum.numpy()
    gradients = None if mean is None else mean.numpy()
    scratch = np.empty(min(CHUNK, theta.numel()), np.float32)
    for start in range(0, theta.numel(), CHUNK):
        part = slice(start, min(start + CHUNK, theta.numel()))
        gradient = None if gradients is None else gradients[part]
        outer_kernel(parameters[part], velocities[part], gradient, scratch, learning_rate, factor)


def outer_kernel(
    theta: Floats, velocity: Floats, gradient: Floats | None, scratch: Floats, learning_rate: float, factor: float
) -> None:
    """`outer_step` of few elements; `scratch` holds at least as many and is overwritten."""
    move = scratch[: theta.size]
    velocity *= np.float32(factor)
    if gradient is not None:
        velocity += gradient
    np.multiply(velocity, np.float32(factor), out=move)
    if gradient is not None:
        move += gradient
    move *= np.float32(learning_rate)
    theta -= move


def momentum_at(spec: RunSpec, round: int) -> float:
    """Outer momentum of the step from anchor `round`: it grows linearly from 0 over the warm-up.

    A fragment that was averaged n times before is as far as the whole model is after n rounds.
    """
    table, done = spec.outer, round // spec.round.fragments
    if done >= table.momentum_warmup_rounds:
        return table.momentum
    return table.momentum * done / table.momentum_warmup_rounds
