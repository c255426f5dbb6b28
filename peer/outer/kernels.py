"""The arithmetic of a round, on one layer where it lies: what was learned, encoded, counted, given up, gone on from.

A peer's residual is what it has produced minus what decided updates counted. Never sending, never voting: only a
decided update moves work out, so that a missed commit, a void part, a crash and a fork all end with the right amount
owed. Everything is single float32 multiplications, additions and subtractions in a fixed order: equal bits everywhere.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from peer.codec.blockwise import Floats
from peer.codec.codec import TILE, Codec, tiles
from peer.outer.outer_step import outer_kernel, reader
from peer.protocol.layout import Part

CHUNK = 1 << 16
"""Elements that are worked on at a time: what several operations go over stays in the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTensors:
    """One layer of a model and of all that goes with it, where it lies. They are changed in place."""

    first: int
    """Where the layer begins in the whole model, in elements."""
    local: tuple[tuple[slice, Tensor], ...]
    """The parameters that are trained, flat, of any floating dtype; and where each lies in the layer, in order."""
    start: Tensor
    """Where the present stretch of inner steps began. This and what follows is flat float32, of the whole layer."""
    residual: Tensor
    """What is owed, in the units of Δ."""
    theta: Tensor
    momentum: Tensor

    def of(self, part: Part) -> slice:
        """Where a part of the model lies in this layer."""
        return slice(part.start - self.first, part.start - self.first + part.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartUpdate:
    """What a decided update does to one part."""

    outer: tuple[float, float] | None
    """Learning rate and momentum of the outer step; None where the update is rolled back."""
    mean: bytes | None
    """The encoded mean pseudo-gradient; None where it is void."""
    mine: bytes | None
    """What this peer has offered, encoded, if it counts."""
    kept: float | None
    """The share of what is owed that stays, if what was offered was missed."""
    gives_up: bool
    """Whether what is still owed is too old."""
    own: float | None
    """How much of its own parameters a peer keeps that trained on meanwhile, if it merges by interpolation."""


class Kernels(Protocol):
    """One layer at a time, or one part of it. Payloads are encoded by the run's codec."""

    def progress(self, t: LayerTensors) -> None:
        """Owe what was learned since `start`; what comes is measured from here."""

    def encode(self, t: LayerTensors, part: Part) -> bytes:
        """What is owed."""

    def apply(self, t: LayerTensors, part: Part, update: PartUpdate) -> float:
        """Outer step, settlement and new local parameters. Returns the norm of what was given up."""

    def begin(self, t: LayerTensors, part: Part) -> None:
        """Have as local parameters what the anchor less the residual is. All progress is in the residual before.

        With a sparse codec the anchor itself: most is owed for many rounds, and peers who took it along would share
        little.
        """

    def counted(self, t: LayerTensors, part: Part, payload: bytes) -> float:
        """What this peer has offered is owed no more: what stays is what encoding left. Returns its squared norm."""

    def returned(self, t: LayerTensors, part: Part, payload: bytes) -> None:
        """An update that had counted this was undone by fork choice: it is owed again."""

    def restored(self, t: LayerTensors, part: Part, payload: bytes) -> None:
        """After a crash: at least what had been offered is owed. What a sparse codec left out stays as it is."""

    def give_up(self, t: LayerTensors, part: Part) -> float:
        """Owe nothing. Returns the norm of what was owed."""


class HostKernels:
    """On the processor, by numpy. Parameters on a device are copied here, and back where they change.

    Outer step, settlement and new local parameters of a tile come one after the other before the next tile is touched,
    so that what they share is read from memory once: two thirds of the time of the same operations over whole vectors.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    @torch.no_grad()
    def progress(self, t: LayerTensors) -> None:
        for where, parameter in t.local:
            now, residual, start = _here(parameter), t.residual[where], t.start[where]
            scratch = torch.empty(min(CHUNK, now.numel()), dtype=torch.float32)
            for first in range(0, now.numel(), CHUNK):
                piece = slice(first, min(first + CHUNK, now.numel()))
                residual[piece].add_(torch.sub(start[piece], now[piece], out=scratch[: piece.stop - piece.start]))
                start[piece] = now[piece]

    def encode(self, t: LayerTensors, part: Part) -> bytes:
        return self._codec.encode(t.residual[t.of(part)].numpy())

    @torch.no_grad()
    def apply(self, t: LayerTensors, part: Part, update: PartUpdate) -> float:
        mean = None if update.mean is None else reader(self._codec.of_means, update.mean)
        mine = None if update.mine is None else reader(self._codec, update.mine)
        vectors = (vector[t.of(part)].numpy() for vector in (t.theta, t.momentum, t.residual, t.start))
        theta_N, momentum_N, residual_N, start_N = vectors
        local = [(where, piece, _here(piece)) for where, piece in _pieces(t, part)]
        numbered = [(where, values.numpy()) for where, _, values in local]
        scratch, given_up = np.empty(TILE, np.float32), list[float]()
        for tile in tiles(part.size):
            theta, residual = theta_N[tile], residual_N[tile]
            if update.outer is not None:
                gradient = None if mean is None else mean(tile)
                outer_kernel(theta, momentum_N[tile], gradient, scratch, *update.outer)
            if mine is not None:
                residual -= mine(tile)
            elif update.kept is not None:
                residual *= np.float32(update.kept)
            if update.gives_up:
                given_up.append(float(np.linalg.norm(residual.astype(np.float64))))
                residual[:] = 0
            for some, values in _within(numbered, tile):
                self._go_on(theta_N[some], residual_N[some], start_N[some], values, scratch, update.own)
        for _, piece, changed in local:
            _put_back(piece, changed)
        return math.hypot(*given_up)

    def _go_on(
        self, theta: Floats, residual: Floats, start: Floats, values: Floats, scratch: Floats, own: float | None
    ) -> None:
        """Collect what was learned since the submission, and set the local parameters to where it goes on from."""
        if own is None:
            residual += np.subtract(start, values, out=scratch[: start.size])
        else:
            interpolate(residual, theta, values, own)
        if self._codec.is_sparse:
            start[:] = theta
        else:
            np.subtract(theta, residual, out=start)
        values[:] = start

    @torch.no_grad()
    def begin(self, t: LayerTensors, part: Part) -> None:
        here = t.of(part)
        if self._codec.is_sparse:
            t.start[here] = t.theta[here]
        else:
            torch.sub(t.theta[here], t.residual[here], out=t.start[here])
        for where, piece in _pieces(t, part):
            piece.copy_(t.start[here][where])

    @torch.no_grad()
    def counted(self, t: LayerTensors, part: Part, payload: bytes) -> float:
        decoded = self._decoded(part, payload)
        t.residual[t.of(part)].sub_(decoded)
        return float(torch.linalg.vector_norm(decoded, dtype=torch.float64)) ** 2

    @torch.no_grad()
    def returned(self, t: LayerTensors, part: Part, payload: bytes) -> None:
        t.residual[t.of(part)].add_(self._decoded(part, payload))

    @torch.no_grad()
    def restored(self, t: LayerTensors, part: Part, payload: bytes) -> None:
        decoded, mine = self._decoded(part, payload), t.residual[t.of(part)]
        mine.copy_(torch.where(decoded != 0, decoded, mine) if self._codec.is_sparse else decoded)

    @torch.no_grad()
    def give_up(self, t: LayerTensors, part: Part) -> float:
        mine = t.residual[t.of(part)]
        norm = float(torch.linalg.vector_norm(mine, dtype=torch.float64))
        mine.zero_()
        return norm

    def _decoded(self, part: Part, payload: bytes) -> Tensor:
        return torch.from_numpy(self._codec.decode(payload)[: part.size])


def interpolate(residual: Floats, theta: Floats, now: Floats, own: float) -> None:
    """Owe what lies between the new anchor θ and a point `own` of the way from θ − residual to the parameters `now`.

    That point, (1 − α) (θ − residual) + α now, is streaming DiLoCo's merge (arXiv:2501.18512). The books are not
    exact any more: progress since the submission counts α of itself, and so does what `now` has not followed of θ.
    """
    apart = theta - residual
    apart -= now
    apart *= np.float32(own)
    residual += apart


Elements = TypeVar("Elements", Tensor, Floats)


def _pieces(t: LayerTensors, part: Part) -> list[tuple[slice, Tensor]]:
    """The parameters of a part as far as they lie in it, and where, counted from its beginning."""
    here = t.of(part)
    return [(slice(some.start - here.start, some.stop - here.start), piece) for some, piece in _within(t.local, here)]


def _within(lying: Sequence[tuple[slice, Elements]], where: slice) -> Iterator[tuple[slice, Elements]]:
    """What lies in `where`, as far as it does."""
    first = bisect_right(lying, where.start, key=lambda each: each[0].start) - 1
    for lies, values in lying[first:]:
        if lies.start >= where.stop:
            return
        some = slice(max(lies.start, where.start), min(lies.stop, where.stop))
        yield some, values[some.start - lies.start : some.stop - lies.start]


def _here(parameter: Tensor) -> Tensor:
    """Its values, float32 in main memory: no copy if it can be."""
    return parameter.to("cpu", torch.float32)


def _put_back(parameter: Tensor, values: Tensor) -> None:
    """Have `values`, which `_here` gave and one has changed, rounded to the parameter's dtype."""
    if values.data_ptr() != parameter.data_ptr():
        parameter.copy_(values)
    else:
        increment_version(parameter)  # or a backward pass would not notice that its forward pass read another
