"""What a checkpoint stores of one layer: only what does not follow, to the bit, from the anchor and the residual.

Inner steps begin at θ less the residual, with a sparse codec at θ itself. If they did, `start` is not stored; if none
was made since, `local` is not stored either.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from peer.training.outer.copy_stream import copy_over
from peer.training.outer.layer_tensors import LayerTensors, Origin

CHUNK = 1 << 20
"""Elements that are computed at a time."""


def derived_start(theta: Tensor, residual: Tensor, *, sparse: bool) -> Tensor:
    """The start of inner steps after an update: of a layer or a piece of it, float32."""
    return theta if sparse else theta - residual


@torch.no_grad()
def load_layer(t: LayerTensors, stored: Mapping[str, Tensor], *, sparse: bool, known: bool) -> None:
    """Load a layer of a checkpoint in place. The anchor is loaded already, if it is `known`. If not, and if `start`
    was to follow from the anchor, the progress since `start` is unknown."""
    copy_over(stored["residual"], t.residual)
    start, local = stored.get("start"), stored.get("local")
    for first in range(0, t.elements, CHUNK):
        piece = slice(first, first + CHUNK)
        begun = derived_start(t.theta[piece], t.residual[piece], sparse=sparse) if start is None else start[piece]
        _set_local(t, piece, begun if local is None else local[piece])
    if start is None:
        t.start = Origin.AT_ANCHOR if known else Origin.AT_PARAMETERS
    elif local is None:
        t.start = Origin.AT_PARAMETERS
    else:
        copy_over(start, t.room_for_start())
        t.start = Origin.KEPT


def _set_local(t: LayerTensors, piece: slice, values: Tensor) -> None:
    for where, parameter in t.local:
        first, last = max(where.start, piece.start), min(where.stop, piece.start + values.numel())
        if first < last:
            parameter[first - where.start : last - where.start].copy_(values[first - piece.start : last - piece.start])
