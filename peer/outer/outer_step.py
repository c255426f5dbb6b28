"""The outer step: Nesterov momentum on agreed pseudo-gradients, the same bits on every processor.

Only separate element-wise float32 multiplications, additions and subtractions in a fixed order:
a fused multiply-add rounds once where these round twice, and not every processor fuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from peer.codec.blockwise import Floats
from peer.codec.codec import TILE, Codec, tiles
from peer.outer.outer_state import OuterState
from peer.protocol.block import VOID, Update
from peer.protocol.layout import Part, divide
from peer.spec import RunSpec


def outer_kernel(
    theta: Floats, velocity: Floats, gradient: Floats | None, scratch: Floats, learning_rate: float, factor: float
) -> None:
    """Update `theta` and `velocity` in place; `scratch` holds at least as many elements and is overwritten.

    With μ = `factor` and the mean pseudo-gradient g (θ_anchor − θ_local; None means zero):
    v ← μ v + g, then θ ← θ − lr (μ v + g), as torch.optim.SGD with nesterov (arXiv:2311.08105).
    """
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


LoadObject = Callable[[bytes], bytes]
"""Bytes of an encoded mean by its digest."""
Read = Callable[[slice], Floats]
"""The values of a tile of a part. They are there until the next tile is read."""


def advance(anchor: OuterState, update: Update, spec: RunSpec, layout: Sequence[Part], load: LoadObject) -> None:
    """Move `anchor` in place to the next one, as `update` decided; `load` gives the means that it names.

    `layout` are all parts of the model, of which the update averages one fragment; what is rolled back stays as it is.
    """
    assert update.round == anchor.round + 1, f"update {update.round} does not follow round {anchor.round}"
    pieces = divide(layout, spec.round.fragments)[anchor.round % spec.round.fragments].parts
    payloads = [None if name == VOID else load(name) for name in update.parts]  # or else, before anything has changed
    codec, factor = Codec(spec.codec.wire).of_means, momentum_at(spec, anchor.round)
    scratch = np.empty(TILE, np.float32)
    for part, (piece, payload) in enumerate(zip(pieces, payloads, strict=True)):
        if update.rolled_back(part):
            continue
        mean = None if payload is None else reader(codec, payload)
        theta, momentum = (vector[anchor.of(piece)].numpy() for vector in anchor.layer(piece.layer))
        for tile in tiles(piece.size):
            gradient = None if mean is None else mean(tile)
            outer_kernel(theta[tile], momentum[tile], gradient, scratch, spec.outer.learning_rate, factor)
    anchor.arrive([item for member in update.members for item in member.ranges])


def reader(codec: Codec, payload: bytes) -> Read:
    """Decodes a part tile by tile: as a whole, all parts would take as much memory as the model."""
    decode, scratch = codec.opened(payload), np.empty(TILE, np.float32)

    def read(tile: slice) -> Floats:
        elements = tile.stop - tile.start
        return decode(tile, scratch[: codec.whole(elements)])[:elements]

    return read
