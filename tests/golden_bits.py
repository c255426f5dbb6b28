"""What the arithmetic of a round makes of drawn layers on a device, as one digest for each operation.

`tests/golden/arithmetic.json` was written by the numpy arithmetic before it left.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from peer.consensus.protocol.layout import Part
from peer.training.outer.kernels import PartUpdate, TorchKernels
from peer.training.outer.layer_tensors import LayerTensors, Origin
from tests.drawn_layers import DrawnLayer, drawn_layer

GOLDEN: dict[str, str] = json.loads((Path(__file__).parent / "golden" / "arithmetic.json").read_text())
"""Digests by operation."""
LAYERS = 2000
THREADS = (1, 2, 7)
APPLIED = {
    "apply counted": dict(outer=(0.7, 0.9), mean=True, mine=True),
    "apply missed": dict(outer=(0.7, 0.9), mean=True, kept=0.75),
    "apply void": dict(outer=(0.7, 0.9), kept=0.5),
    "apply rolled back": dict(outer=None),
    "apply too old": dict(outer=(0.7, 0.0), mean=True, kept=0.5, gives_up=True),
    "apply interpolated": dict(outer=(0.7, 0.9), mean=True, mine=True, own=0.5),
}


def digest_of(operation: str, device: torch.device, threads: Callable[[int], None] = torch.set_num_threads) -> str:
    """Of layers of every kind: plain, denormal, huge, of mixed sizes, mostly zeros of both signs, infinite, equal."""
    found = blake3()
    for number in range(LAYERS):
        threads(THREADS[number % len(THREADS)])
        drawn = drawn_layer(number)
        layer, now = on_device(drawn, device)
        kernels, part = TorchKernels(drawn.codec, device), Part(0, 0, len(drawn.now))
        if operation == "encode":
            found.update(kernels.encode(layer, part))
            continue
        _do(kernels, operation, layer, part, drawn)
        kernels.keep_start(layer)
        for vector in (layer.theta, layer.momentum, layer.residual, now, layer.kept):
            found.update(octets(vector))
    return found.hexdigest()


def _do(kernels: TorchKernels, operation: str, layer: LayerTensors, part: Part, drawn: DrawnLayer) -> None:
    if operation in APPLIED:
        kernels.apply(layer, [_update(part, drawn, **APPLIED[operation])])
    elif operation in {"progress", "begin"}:
        getattr(kernels, operation)(layer)
    elif operation == "give_up":
        kernels.give_up(layer, part)
    else:
        getattr(kernels, operation)(layer, part, drawn.mine)


def _update(
    part: Part, drawn: DrawnLayer, *, outer: tuple[float, float] | None, mean: bool = False, mine: bool = False,
    kept: float | None = None, gives_up: bool = False, own: float | None = None,
) -> PartUpdate:  # fmt: skip
    return PartUpdate(
        part=part, outer=outer, mean=drawn.mean if mean else None, mine=drawn.mine if mine else None, kept=kept,
        gives_up=gives_up, own=own,
    )  # fmt: skip


def on_device(drawn: DrawnLayer, device: torch.device) -> tuple[LayerTensors, Tensor]:
    """The layer, and its parameters."""
    theta, momentum, residual, start, now = (
        torch.from_numpy(vector).to(device, copy=True)
        for vector in (drawn.theta, drawn.momentum, drawn.residual, drawn.start, drawn.now)
    )
    local = ((slice(0, drawn.cut), now[: drawn.cut]), (slice(drawn.cut, len(now)), now[drawn.cut :]))
    layer = LayerTensors(first=0, local=local, residual=residual, theta=theta, momentum=momentum)
    layer.room_for_start().copy_(start)
    layer.start = Origin.KEPT
    return layer, now


def octets(vector: Tensor) -> bytes:
    """Its bits; any two NaN are alike."""
    values = vector.cpu().numpy().copy()
    bits = values.view(np.uint32)
    bits[np.isnan(values)] = 0x7FC00000
    return bits.tobytes()
