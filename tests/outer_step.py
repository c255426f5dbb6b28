"""The outer step of the product, on whole tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from peer.training.outer.outer_step import outer_kernel


def outer_step(theta: Tensor, momentum: Tensor, mean: Tensor | None, learning_rate: float, factor: float) -> None:
    """Update `theta` and `momentum` in place."""
    outer_kernel(theta, momentum, mean, torch.empty_like(theta), learning_rate, factor)
