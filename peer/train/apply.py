"""What a decided update does to a peer, one layer after the other, tile by tile.

Outer step, settlement and new local parameters of a tile come one after the other before the next tile is touched, so
that what they share is read from memory once: two thirds of the time of the same operations over whole vectors, and
the same bits.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from peer.codec.blockwise import Floats
from peer.codec.codec import TILE, Codec, tiles
from peer.model.flat import FlatParameters, Values
from peer.protocol.block import VOID, PartOutcome, Update
from peer.protocol.layout import Part
from peer.spec import RunSpec
from peer.store.contributions import Contribution
from peer.train.outer import OuterState, Read, momentum_at, outer_kernel, reader
from peer.train.residual import Residual, interpolate

Means = Mapping[bytes, bytes]
"""Encoded means by digest."""


@dataclass(frozen=True, kw_only=True)
class LayerUpdate:
    """An update, every byte of it in memory and checked, and what it changes."""

    spec: RunSpec
    update: Update
    means: Means
    mine: Contribution | None
    outcomes: Sequence[PartOutcome]
    """By part."""
    parts: Sequence[Part]
    anchor: OuterState
    residual: Residual
    start: Tensor
    flat: FlatParameters
    own: float | None = None
    """How much of its own parameters a peer keeps that trained on meanwhile, if it merges by interpolation."""
    given_up: list[float] | None = None
    """Norms of what was owed and is given up for its age, tile by tile; None where nothing is."""

    def apply(self) -> float:
        """All layers. Returns the norm of what was given up."""
        for number in range(len(self.flat.layers)):
            self.apply_layer(number)
        return math.hypot(*self.given_up or ())

    def apply_layer(self, number: int) -> None:
        """Outer step, settlement and new local parameters of one layer; of one that the round does not average, none.

        What was learned of that is collected all the same.
        """
        layer = self.flat.of_layer(number)
        here = [(part, piece) for part, piece in enumerate(self.parts) if piece.layer == number]
        for part, piece in here:
            self._apply_part(part, piece, layer)
        if not here:
            for where, values in layer:
                self.residual.add_progress(where, self.start[where], values)
            return
        self.flat.set_layer(number, layer)

    def _apply_part(self, part: int, piece: Part, layer: Values) -> None:
        mean, mine, missed = self._mean(part), self._counted(part), self.outcomes[part] is PartOutcome.MISSED
        outer, factor = self.spec.outer, momentum_at(self.spec, self.update.round - 1)
        gamma, rolled_back = np.float32(self.spec.round.gamma), self.update.rolled_back(part)
        numbered = [(where, values.numpy()) for where, values in layer]
        vectors = (self.anchor.theta, self.anchor.momentum, self.residual.flat, self.start)
        theta_N, momentum_N, residual_N, start_N = (vector.numpy() for vector in vectors)
        scratch = np.empty(TILE, np.float32)
        for tile in tiles(piece.size):
            where = slice(piece.start + tile.start, piece.start + tile.stop)
            theta, residual = theta_N[where], residual_N[where]
            if not rolled_back:
                gradient = None if mean is None else mean(tile)
                outer_kernel(theta, momentum_N[where], gradient, scratch, outer.learning_rate, factor)
            if mine is not None:
                residual -= mine(tile)
            elif missed:
                residual *= gamma
            if self.given_up is not None:
                self.given_up.append(float(np.linalg.norm(residual.astype(np.float64))))
                residual[:] = 0
            for some, values in _within(numbered, where):
                self._go_on(theta_N[some], residual_N[some], start_N[some], values, scratch)

    def _go_on(self, theta: Floats, residual: Floats, start: Floats, values: Floats, scratch: Floats) -> None:
        """Collect what was learned since the freeze, and set the local parameters to where it goes on from."""
        if self.own is None:
            residual += np.subtract(start, values, out=scratch[: start.size])
        else:
            interpolate(residual, theta, values, self.own)
        if self._codec.is_sparse:
            start[:] = theta
        else:
            np.subtract(theta, residual, out=start)
        values[:] = start

    def _mean(self, part: int) -> Read | None:
        name = self.update.parts[part]
        return None if name == VOID else reader(self._codec.of_means, self.means[name])

    def _counted(self, part: int) -> Read | None:
        """My contribution to this part, if it counts."""
        if self.outcomes[part] is not PartOutcome.COUNTED:
            return None
        assert self.mine is not None
        return reader(self._codec, self.mine.payload(part))

    @property
    def _codec(self) -> Codec:
        return Codec(self.spec.codec.wire)


def _within(layer: Sequence[tuple[slice, Floats]], where: slice) -> Iterator[tuple[slice, Floats]]:
    """The parameters of a layer that lie in `where`, as far as they do."""
    first = bisect_right(layer, where.start, key=lambda each: each[0].start) - 1
    for lies, values in layer[first:]:
        if lies.start >= where.stop:
            return
        some = slice(max(lies.start, where.start), min(lies.stop, where.stop))
        yield some, values[some.start - lies.start : some.stop - lies.start]
