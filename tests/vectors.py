"""A model's vectors, which the product keeps by layer, in one piece; and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from peer.training.outer.outer_state import OuterState
from peer.training.train.trainer import LocalTrainer


def whole(layers: Sequence[Tensor]) -> Tensor:
    """A copy of all layers, one after the other."""
    return torch.cat(list(layers))


def fill(layers: Sequence[Tensor], flat: Tensor) -> None:
    """Have these values in `layers`."""
    for layer, values in zip(layers, torch.split(flat, [layer.numel() for layer in layers]), strict=True):
        layer.copy_(values)


def starts(trainer: LocalTrainer) -> Tensor:
    """Where the present stretch of a trainer's inner steps began; it is kept from then on."""
    layers = [trainer._backend.layer(number) for number in range(len(trainer.layer_sizes))]
    for layer in layers:
        trainer._kernels.keep_start(layer)
    return whole([layer.kept for layer in layers])


def cut_like(state: OuterState, flat: Tensor) -> tuple[Tensor, ...]:
    return torch.split(flat, state.sizes)
