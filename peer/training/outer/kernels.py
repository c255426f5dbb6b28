"""The arithmetic of a round, one layer at a time on the model's device: encode, apply, and continue from the new
anchor.

A peer's residual is what it has produced less what decided updates counted. Only a decided update reduces it, neither
sending nor voting does, so that after a missed commit, a void part or a crash exactly the right amount is still owed.
Everything is single float32 multiplications, additions and subtractions in a fixed order: equal bits everywhere.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

import torch
from torch import Tensor

from peer.consensus.codec.codec import Codec
from peer.consensus.codec.torch_codec import DecodeSlice, TorchCodec
from peer.consensus.protocol.layout import Part
from peer.node.host.device import assert_index, is_out_of_memory
from peer.training.outer.copy_stream import copied, copy_over, octets_on, octets_on_host, upload
from peer.training.outer.layer_tensors import LayerTensors, Origin
from peer.training.outer.outer_step import outer_kernel, tile_of, tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class PartUpdate:
    """What a decided update does to one part."""

    part: Part
    outer: tuple[float, float] | None
    """Learning rate and momentum of the outer step; None if the part is rolled back."""
    mean: bytes | None
    """The encoded mean pseudo-gradient; None if it is void."""
    mine: bytes | None
    """This peer's contribution, encoded, if it counts."""
    kept: float | None
    """The share of the residual that stays, if the contribution was missed."""
    gives_up: bool
    """Whether the rest of the residual is too old."""
    own: float | None
    """The weight of a peer's own parameters if it trained on meanwhile and merges by interpolation."""


class Kernels(Protocol):
    """The arithmetic on one layer at a time, or one part of it. Payloads are encoded by the run's codec."""

    def progress(self, t: LayerTensors) -> None:
        """Add the progress since the start to the residual; later progress is measured from here."""

    def encode(self, t: LayerTensors, part: Part) -> bytes:
        """Encode the residual."""

    def apply(self, t: LayerTensors, updates: Sequence[PartUpdate]) -> float:
        """Outer step, settlement and new local parameters of all parts. Returns the norm of what was given up."""

    def begin(self, t: LayerTensors) -> None:
        """Set the local parameters to the anchor less the residual. All progress must be in the residual. With a
        sparse codec they are set to the anchor itself: most of the residual is owed for many rounds, and peers that
        took it along would share little."""

    def keep_start(self, t: LayerTensors) -> None:
        """Keep the start of the present steps before anything else changes the anchor, the residual or the
        parameters."""

    def counted(self, t: LayerTensors, part: Part, payload: bytes) -> float:
        """Subtract this peer's counted contribution from the residual: what stays is its rounding error. Returns its
        squared norm."""

    def restored(self, t: LayerTensors, part: Part, payload: bytes) -> None:
        """Set the residual to what was offered; what a sparse codec left out stays in it."""

    def give_up(self, t: LayerTensors, part: Part) -> float:
        """Set the residual to 0; returns its norm."""


CPU = torch.device("cpu")
APART = 2
"""Threads that work on layers at a time: one applies, one submits."""


@dataclass(slots=True)
class Scratch:
    """Buffers of one tile each, float32 on one device."""

    since_N: Tensor
    mean_N: Tensor
    mine_N: Tensor
    other_N: Tensor
    _end: torch.cuda.Event | None = None
    """The end of a GPU's work with them, which may be queued and not yet begun."""

    def take(self) -> None:
        """What the present stream does with the buffers follows what another stream did."""
        if self._end is not None:
            torch.cuda.current_stream(self.device).wait_event(self._end)

    def give_back(self) -> None:
        if self.device.type == "cuda":
            self._end = torch.cuda.current_stream(self.device).record_event()

    @classmethod
    def on(cls, device: torch.device) -> Scratch:
        since_N, mean_N, mine_N, other_N = (torch.empty(tile_of(device), device=device) for _ in range(4))
        return cls(since_N, mean_N, mine_N, other_N)

    @property
    def device(self) -> torch.device:
        return self.since_N.device

    def here(self, values: Tensor) -> Tensor:
        """The values on this device; no copy if they already lie there."""
        if values.device == self.device:
            return values
        return upload(values, self.device) if values.device.type == "cpu" else values.to(self.device)

    def opened(self, codec: TorchCodec, payload: bytes) -> DecodeSlice:
        """An object that decodes its slices; on the processor if the device has no memory: an update is not left
        half applied."""
        return _from_units(codec.codec.unit, self._opened(codec, payload))

    def _opened(self, codec: TorchCodec, payload: bytes) -> DecodeSlice:
        on_host = _opened_on_host(codec.codec, payload)
        if self.device == CPU:
            return on_host
        try:
            on_device = codec.opened(octets_on(payload, self.device))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return on_host

        def decode(where: slice, buffer: Tensor) -> Tensor:
            try:
                return on_device(where, buffer)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            return on_host(where, buffer)

        return decode


def _from_units(unit: int, decode: DecodeSlice) -> DecodeSlice:
    """Decodes slices that begin anywhere, if their whole units fit into the buffer."""

    def decode_from(where: slice, buffer: Tensor) -> Tensor:
        before = where.start % unit
        return decode(slice(where.start - before, where.stop), buffer)[before:]

    return decode_from


def _opened_on_host(codec: Codec, payload: bytes) -> DecodeSlice:
    """In numpy, which is faster there than torch's operations."""
    decode_tile = codec.opened(payload)

    def decode(where: slice, buffer: Tensor) -> Tensor:
        values, elements = buffer[: codec.padded_elements(where.stop - where.start)], where.stop - where.start
        if values.device == CPU:
            decode_tile(where, values.numpy())
        else:
            values.copy_(torch.from_numpy(decode_tile(where)))
        return values[:elements]

    return decode


class TorchKernels:
    """In torch operations where the parameters are; vectors elsewhere are copied there and back. A tile goes through
    all operations before the next one: so memory is read once, and the work needs only a few tiles beside the model."""

    def __init__(self, codec: Codec, device: torch.device = CPU) -> None:
        """`device` must give the bits of a processor; tensors on another device are processed by the processor."""
        assert_index(device)
        self._codec = codec
        self._mine, self._means = TorchCodec(codec), TorchCodec(codec.of_means)
        self._scratches = {each: SimpleQueue[Scratch]() for each in {device, CPU}}
        for _ in range(APART):  # a device that is full later would have no room for them
            self._scratches[device].put(Scratch.on(device))

    @torch.no_grad()
    def progress(self, t: LayerTensors) -> None:
        with self._scratch(t) as scratch:
            for tile in tiles(t.elements, scratch.device):
                residual = scratch.here(t.residual[tile])
                residual.add_(self._since(t, tile, scratch))
                _put(residual, t.residual[tile])
        t.start = Origin.AT_PARAMETERS

    def encode(self, t: LayerTensors, part: Part) -> bytes:
        residual = t.residual[t.of(part)]
        with self._scratch(t) as scratch:
            if scratch.device == CPU:
                return self._codec.encode(residual.cpu().numpy())  # several times faster than torch's operations
            return octets_on_host(self._mine.encode(scratch.here(residual), tile_of(scratch.device)))

    @torch.no_grad()
    def apply(self, t: LayerTensors, updates: Sequence[PartUpdate]) -> float:
        with self._scratch(t) as scratch:
            given_up = [self._apply_part(t, update, scratch) for update in updates]
        t.start = Origin.AT_ANCHOR
        return math.hypot(*given_up)

    def _apply_part(self, t: LayerTensors, update: PartUpdate, scratch: Scratch) -> float:
        mean = None if update.mean is None else scratch.opened(self._means, update.mean)
        mine = None if update.mine is None else scratch.opened(self._mine, update.mine)
        given_up = list[float]()
        for tile, where in _meeting(t, update.part, scratch.device):
            theta, momentum, residual = (scratch.here(vector[where]) for vector in (t.theta, t.momentum, t.residual))
            since = self._since(t, where, scratch) if update.own is None else None
            gradient = None if mean is None else mean(tile, scratch.mean_N)
            offered = None if mine is None else mine(tile, scratch.mine_N)
            if update.outer is not None:
                outer_kernel(theta, momentum, gradient, scratch.other_N, *update.outer)
            if offered is not None:
                residual.sub_(offered)
            elif update.kept is not None:
                residual.mul_(update.kept)
            if update.gives_up:
                given_up.append(_norm(residual))
                residual.zero_()
            if since is not None:
                residual.add_(since)
            else:
                self._interpolate(t, where, theta, residual, update.own or 0.0, scratch)
            self._continue_theta(t, where, theta, residual, scratch)
            for changed, vector in ((theta, t.theta), (momentum, t.momentum), (residual, t.residual)):
                _put(changed, vector[where])
        return math.hypot(*given_up)

    def _since(self, t: LayerTensors, where: slice, scratch: Scratch) -> Tensor:
        """The progress since the start, in `scratch`."""
        since = scratch.since_N[: where.stop - where.start]
        start: Tensor | None = None
        if t.start is Origin.KEPT:
            start = scratch.here(t.kept[where])
        elif t.start is Origin.AT_ANCHOR:
            start = self._beginning(scratch.here(t.theta[where]), scratch.here(t.residual[where]), since)
        for some, values in _within(t.local, where):
            now = scratch.here(values).to(torch.float32)
            torch.sub(now if start is None else start[some], now, out=since[some])
        return since

    def _beginning(self, theta: Tensor, residual: Tensor, out: Tensor) -> Tensor:
        """Where steps begin at an anchor."""
        return out.copy_(theta) if self._codec.is_sparse else torch.sub(theta, residual, out=out)

    def _interpolate(
        self, t: LayerTensors, where: slice, theta: Tensor, residual: Tensor, own: float, scratch: Scratch
    ) -> None:
        for some, values in _within(t.local, where):
            now = scratch.here(values).to(torch.float32)
            interpolate(residual[some], theta[some], now, own, scratch.other_N)

    def _continue_theta(self, t: LayerTensors, where: slice, theta: Tensor, residual: Tensor, scratch: Scratch) -> None:
        """Set the parameters to the start of the next steps, rounded to their dtype."""
        start = self._beginning(theta, residual, scratch.other_N[: theta.numel()])
        for some, values in _within(t.local, where):
            _put(start[some], values)

    @torch.no_grad()
    def begin(self, t: LayerTensors) -> None:
        with self._scratch(t) as scratch:
            for tile in tiles(t.elements, scratch.device):
                self._continue_theta(t, tile, scratch.here(t.theta[tile]), scratch.here(t.residual[tile]), scratch)
        t.start = Origin.AT_ANCHOR

    @torch.no_grad()
    def keep_start(self, t: LayerTensors) -> None:
        if t.start is Origin.KEPT:
            return
        kept = t.room_for_start()
        with self._scratch(t) as scratch:
            for tile in tiles(t.elements, scratch.device):
                start = scratch.since_N[: tile.stop - tile.start]
                if t.start is Origin.AT_ANCHOR:
                    self._beginning(scratch.here(t.theta[tile]), scratch.here(t.residual[tile]), start)
                else:
                    for some, values in _within(t.local, tile):
                        start[some] = scratch.here(values)
                _put(start, kept[tile])
        t.start = Origin.KEPT

    @torch.no_grad()
    def counted(self, t: LayerTensors, part: Part, payload: bytes) -> float:
        squared = list[float]()

        def count(mine: Tensor, offered: Tensor) -> None:
            mine.sub_(offered)
            squared.append(_norm(offered) ** 2)

        self._settle(t, part, payload, count)
        return math.fsum(squared)

    @torch.no_grad()
    def restored(self, t: LayerTensors, part: Part, payload: bytes) -> None:
        def restore(mine: Tensor, offered: Tensor) -> None:
            mine.copy_(torch.where(offered != 0, offered, mine) if self._codec.is_sparse else offered)

        self._settle(t, part, payload, restore)

    @torch.no_grad()
    def give_up(self, t: LayerTensors, part: Part) -> float:
        self.keep_start(t)
        norms = []
        for _, where in _meeting(t, part, t.residual.device):
            norms.append(_norm(t.residual[where]))
            t.residual[where].zero_()
        return math.hypot(*norms)

    def _settle(self, t: LayerTensors, part: Part, payload: bytes, change: Callable[[Tensor, Tensor], object]) -> None:
        """Apply `change` to the residual with the values of `payload`, tile by tile."""
        self.keep_start(t)
        with self._scratch(t) as scratch:
            offered = scratch.opened(self._mine, payload)
            for tile, where in _meeting(t, part, scratch.device):
                here = scratch.here(t.residual[where])
                change(here, offered(tile, scratch.mine_N))
                _put(here, t.residual[where])

    @contextmanager
    def _scratch(self, t: LayerTensors) -> Iterator[Scratch]:
        """Where the work on a layer is done, of this thread alone inside."""
        lies = t.local[0][1].device
        free = self._scratches[lies if lies in self._scratches else CPU]
        try:
            scratch = free.get_nowait()
        except Empty:
            scratch = Scratch.on(lies if lies in self._scratches else CPU)
        scratch.take()
        yield scratch
        scratch.give_back()
        free.put(scratch)


def _meeting(t: LayerTensors, part: Part, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """The overlap of a part and `t`, tile by tile: the slice of the part, and that of `t`. `t` may be a run of a
    layer, which begins and ends anywhere."""
    before = part.start - t.first
    begin, end = max(0, -before), min(part.size, t.elements - before)
    for tile in tiles(part.size, device):
        first, last = max(tile.start, begin), min(tile.stop, end)
        if first < last:
            yield slice(first, last), slice(before + first, before + last)


def interpolate(residual: Tensor, theta: Tensor, now: Tensor, own: float, scratch: Tensor) -> None:
    """Set the residual to the difference between the new anchor θ and a point `own` of the way from θ − residual to
    the parameters `now`.

    That point, (1 − α) (θ − residual) + α now, is streaming DiLoCo's merge (arXiv:2501.18512). The accounts are no
    longer exact: progress since the submission counts α of itself, and so does the part of θ that `now` has not
    followed.
    """
    apart = torch.sub(theta, residual, out=scratch[: theta.numel()])
    residual.add_(apart.sub_(now).mul_(own))


def _within(lying: Sequence[tuple[slice, Tensor]], where: slice) -> Iterator[tuple[slice, Tensor]]:
    """What lies in `where`, as far as it does, and where, counted from its beginning."""
    first = bisect_right(lying, where.start, key=lambda each: each[0].start) - 1
    for lies, values in lying[first:]:
        if lies.start >= where.stop:
            return
        some = slice(max(lies.start, where.start), min(lies.stop, where.stop))
        here = slice(some.start - where.start, some.stop - where.start)
        yield here, values[some.start - lies.start : some.stop - lies.start]


def _put(changed: Tensor, vector: Tensor) -> None:
    """Write back what `_here` gave and an operation has changed."""
    if changed.data_ptr() == vector.data_ptr() and changed.device == vector.device:
        return
    if vector.device.type == "cpu":
        copy_over(changed, vector)
    else:
        vector.copy_(changed)


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(copied(values, CPU), dtype=torch.float64))
