"""The outer step: Nesterov momentum on agreed pseudo-gradients, the same bits on every processor.

Only separate element-wise float32 multiplications, additions and subtractions in a fixed order:
a fused multiply-add rounds once where these round twice, and not every processor fuses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgpack
import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from peer.codec.blockwise import Floats
from peer.codec.codec import Codec
from peer.protocol.block import VOID, Update
from peer.protocol.layout import Part as Piece
from peer.protocol.layout import divide
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


LoadObject = Callable[[bytes], bytes]
"""Bytes of an encoded mean by its digest."""
Part = tuple[slice, Tensor | None]
"""A slice of the flat vector and its agreed mean; None for a void part, which is zero for everybody."""


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

    def apply(
        self,
        parts: Iterable[Part],
        *,
        learning_rate: float,
        momentum: float,
        ranges: Iterable[tuple[int, int, int]] = (),
        rolled_back: Collection[int] = (),
    ) -> None:
        """Make the outer step to the next anchor in place, and advance the cursors past `ranges`.

        `parts` come in order; those whose numbers are in `rolled_back`, and what is in none, stay as they are.
        """
        covered = 0
        for number, (where, mean) in enumerate(parts):
            assert where.start >= covered, f"a part starts at {where.start}, the one before ended at {covered}"
            if number not in rolled_back:
                outer_step(self.theta[where], self.momentum[where], mean, learning_rate, momentum)
            covered = where.stop
        assert covered <= self.theta.numel(), f"parts end at {covered}, there are {self.theta.numel()} elements"
        self.arrive(ranges)

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


def advance(anchor: OuterState, update: Update, spec: RunSpec, layout: Sequence[Piece], load: LoadObject) -> None:
    """Move `anchor` in place to the next one, as `update` decided; `load` gives the means that it names.

    `layout` are all parts of the model, of which the update averages one fragment.
    """
    assert update.round == anchor.round + 1, f"update {update.round} does not follow round {anchor.round}"
    pieces = divide(layout, spec.round.fragments)[anchor.round % spec.round.fragments].parts
    payloads = [None if name == VOID else load(name) for name in update.parts]  # or else, before anything has changed
    anchor.apply(
        _decoded(Codec(spec.codec.wire).of_means, pieces, payloads),
        learning_rate=spec.outer.learning_rate,
        momentum=momentum_at(spec, anchor.round),
        ranges=[item for member in update.members for item in member.ranges],
        rolled_back={part for part in range(len(pieces)) if update.rolled_back(part)},
    )


def _decoded(codec: Codec, pieces: Sequence[Piece], payloads: Sequence[bytes | None]) -> Iterator[Part]:
    """One after the other, since all of them take as much memory as the model."""
    for piece, payload in zip(pieces, payloads, strict=True):
        mean = None if payload is None else torch.from_numpy(codec.decode(payload)[: piece.size])
        yield slice(piece.start, piece.start + piece.size), mean
