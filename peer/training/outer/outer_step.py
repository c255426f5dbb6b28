"""The outer step: Nesterov momentum on agreed pseudo-gradients, with the same bits on every processor.

Only separate element-wise float32 multiplications, additions and subtractions in a fixed order: a fused multiply-add
rounds once where these round twice, and not every processor fuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from peer.consensus.codec.blockwise import TILE
from peer.consensus.codec.codec import Codec
from peer.consensus.codec.torch_codec import TorchCodec
from peer.consensus.protocol.block import VOID, Update
from peer.consensus.protocol.layout import Part, divide
from peer.schema.spec import RunSpec
from peer.training.outer.copy_stream import octets_on
from peer.training.outer.outer_state import OuterState

DEVICE_TILE = 1 << 20
"""Elements that a device works on at a time: enough to keep it busy, and little memory beside the model."""


def outer_kernel(
    theta: Tensor, velocity: Tensor, gradient: Tensor | None, scratch: Tensor, learning_rate: float, factor: float
) -> None:
    """Update `theta` and `velocity` in place; `scratch` holds at least as many elements and is overwritten.

    With μ = `factor` and the mean pseudo-gradient g (θ_anchor − θ_local; None means zero):
    v ← μ v + g, then θ ← θ − lr (μ v + g), as torch.optim.SGD with nesterov (arXiv:2311.08105).
    """
    move = scratch[: theta.numel()]
    velocity.mul_(factor)
    if gradient is not None:
        velocity.add_(gradient)
    torch.mul(velocity, factor, out=move)
    if gradient is not None:
        move.add_(gradient)
    theta.sub_(move.mul_(learning_rate))


def momentum_at(spec: RunSpec, round: int) -> float:
    """Outer momentum of the step from anchor `round`: it grows linearly from 0 over the warm-up. A fragment that was
    averaged n times before counts like a whole model after n rounds."""
    table, done = spec.outer, round // spec.round.fragments
    if done >= table.momentum_warmup_rounds:
        return table.momentum
    return table.momentum * done / table.momentum_warmup_rounds


LoadObject = Callable[[bytes], bytes]
"""Bytes of an encoded mean by its digest."""


@torch.no_grad()
def advance(anchor: OuterState, update: Update, spec: RunSpec, layout: Sequence[Part], load: LoadObject) -> None:
    """Move `anchor` in place to the next one, as `update` decided; `load` gives the means that it names. `layout`
    are all parts of the model, of which the update averages one fragment; rolled back parts stay as they are. Only
    means of the layers in `anchor` are loaded."""
    assert update.round == anchor.round + 1, f"update {update.round} does not follow round {anchor.round}"
    pieces = divide(layout, spec.round.fragments)[anchor.round % spec.round.fragments].parts
    held = [(part, piece) for part, piece in enumerate(pieces) if piece.layer in anchor.layers]
    # Or else, before anything has changed.
    wire = Codec(spec.codec.wire)
    payloads = {
        part: None if update.parts[part] == VOID else wire.without_rows(load(update.parts[part]), piece.size)
        for part, piece in held
    }
    codec, factor = TorchCodec(wire.of_means), momentum_at(spec, anchor.round)
    for part, piece in held:
        if update.rolled_back(part):
            continue
        (theta, momentum), payload = anchor.holding(piece), payloads[part]
        mean = None if payload is None else codec.opened(octets_on(payload, theta.device))
        buffer, scratch = (torch.empty(tile_of(theta.device), device=theta.device) for _ in range(2))
        for tile in tiles(piece.size, theta.device):
            gradient = None if mean is None else mean(tile, buffer)
            outer_kernel(theta[tile], momentum[tile], gradient, scratch, spec.outer.learning_rate, factor)
    anchor.arrive([item for member in update.members for item in member.ranges], spec.windows_most)


def tile_of(device: torch.device) -> int:
    """Elements of a tile on this device, whole units of every format. On a processor so few that they stay in its
    cache, and that torch uses no further thread for them, since threads that wait for each other stall where the
    machine has other work."""
    return TILE if device.type == "cpu" else DEVICE_TILE


def tiles(elements: int, device: torch.device) -> Iterator[slice]:
    size = tile_of(device)
    return (slice(first, min(first + size, elements)) for first in range(0, elements, size))
