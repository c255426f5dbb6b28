"""The anchor: the outer state that has the same bits on every peer of the round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgpack
import torch
from blake3 import blake3
from torch import Tensor

from peer.codec.codec import Codec
from peer.protocol.block import VOID, Update
from peer.protocol.layout import Part as Piece
from peer.protocol.layout import divide
from peer.spec import RunSpec
from peer.train.outer import momentum_at, outer_step

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
