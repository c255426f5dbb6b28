"""The outer step: Nesterov momentum on agreed pseudo-gradients, the same bits on every processor.

Only separate element-wise float32 multiplications, additions and subtractions in a fixed order:
a fused multiply-add rounds once where these round twice, and not every processor fuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgpack
import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from peer.codec.blockwise import Floats
from peer.codec.codec import TILE, Codec, tiles
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


class OuterState:
    """Parameters θ and outer momentum m (flat float32 on the CPU), round number, and the committed data cursors."""

    def __init__(self, theta: Tensor, momentum: Tensor, round: int, cursors: Mapping[int, int]) -> None:
        assert theta.dtype == momentum.dtype == torch.float32
        assert theta.dim() == 1
        assert theta.shape == momentum.shape
        self.theta, self.momentum = theta, momentum
        self.round = round
        self.cursors = dict(cursors)

    @classmethod
    def initial(cls, flat: Tensor) -> OuterState:
        """Anchor 0 of a run whose first parameters are `flat`, which it keeps and changes in place."""
        return cls(flat, torch.zeros_like(flat), 0, {})

    @torch.no_grad()
    def become(self, theta: Tensor, momentum: Tensor, round: int, cursors: Iterable[tuple[int, int]]) -> None:
        """Take over these values, in place."""
        self.theta.copy_(theta)
        self.momentum.copy_(momentum)
        self.round, self.cursors = round, dict(cursors)

    def arrive(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Advance the cursors past `ranges`; this is the next round's anchor."""
        for shard, _, end in ranges:
            self.cursors[shard] = max(self.cursors.get(shard, 0), end)
        self.round += 1

    def state_digest(self) -> bytes:
        """BLAKE3-256 over θ, then m (little-endian float32), then the cursors in order of their shards."""
        state = blake3()
        for vector in (self.theta, self.momentum):
            state.update(vector.numpy().astype("<f4", copy=False).view("u1").data)
        state.update(msgpack.packb([[shard, self.cursors[shard]] for shard in sorted(self.cursors)]))
        return state.digest()


def advance(anchor: OuterState, update: Update, spec: RunSpec, layout: Sequence[Part], load: LoadObject) -> None:
    """Move `anchor` in place to the next one, as `update` decided; `load` gives the means that it names.

    `layout` are all parts of the model, of which the update averages one fragment; what is rolled back stays as it is.
    """
    assert update.round == anchor.round + 1, f"update {update.round} does not follow round {anchor.round}"
    pieces = divide(layout, spec.round.fragments)[anchor.round % spec.round.fragments].parts
    payloads = [None if name == VOID else load(name) for name in update.parts]  # or else, before anything has changed
    codec, factor = Codec(spec.codec.wire).of_means, momentum_at(spec, anchor.round)
    theta, momentum, scratch = anchor.theta.numpy(), anchor.momentum.numpy(), np.empty(TILE, np.float32)
    for part, (piece, payload) in enumerate(zip(pieces, payloads, strict=True)):
        if update.rolled_back(part):
            continue
        mean = None if payload is None else reader(codec, payload)
        for tile in tiles(piece.size):
            where = slice(piece.start + tile.start, piece.start + tile.stop)
            gradient = None if mean is None else mean(tile)
            outer_kernel(theta[where], momentum[where], gradient, scratch, spec.outer.learning_rate, factor)
    anchor.arrive([item for member in update.members for item in member.ranges])


def reader(codec: Codec, payload: bytes) -> Read:
    """Decodes a part tile by tile: as a whole, all parts would take as much memory as the model."""
    decode, scratch = codec.opened(payload), np.empty(TILE, np.float32)

    def read(tile: slice) -> Floats:
        elements = tile.stop - tile.start
        return decode(tile, scratch[: codec.whole(elements)])[:elements]

    return read
