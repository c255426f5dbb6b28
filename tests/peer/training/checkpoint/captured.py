"""Layers whose every number is told, to be captured."""

from __future__ import annotations

import torch
from torch import Tensor

from peer.training.outer.layer_tensors import LayerTensors, Origin

CPU = torch.device("cpu")


def layer(
    elements: int,
    *,
    theta: float = 0.0,
    residual: float = 0.0,
    start: Tensor | None = None,
    local: Tensor | None = None,
) -> LayerTensors:
    """Of two parameters. Unless told, `start` is 7 and `local` 8."""
    local = torch.full((elements,), 8.0) if local is None else local
    cut = elements // 3
    made = LayerTensors(
        first=0, local=((slice(0, cut), local[:cut]), (slice(cut, elements), local[cut:])),
        residual=torch.full((elements,), residual), theta=torch.full((elements,), theta),
        momentum=torch.zeros(elements),
    )  # fmt: skip
    made.room_for_start().copy_(torch.full((elements,), 7.0) if start is None else start)
    made.start = Origin.KEPT
    return made


def start_of(t: LayerTensors) -> Tensor:
    """Where its steps began, whatever that follows from; with a dense codec."""
    if t.start is Origin.KEPT:
        return t.kept
    local = torch.cat([parameter for _, parameter in t.local])
    return local if t.start is Origin.AT_PARAMETERS else t.theta - t.residual
