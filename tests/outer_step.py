"""The outer step of the product, on whole tensors."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from peer.outer.outer_step import outer_kernel


def outer_step(theta: Tensor, momentum: Tensor, mean: Tensor | None, learning_rate: float, factor: float) -> None:
    """Update `theta` and `momentum` in place."""
    gradient, scratch = None if mean is None else mean.numpy(), np.empty(theta.numel(), np.float32)
    outer_kernel(theta.numpy(), momentum.numpy(), gradient, scratch, learning_rate, factor)
