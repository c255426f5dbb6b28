"""Where a round's vectors lie beside the model: θ and momentum, residual and start, each as large as the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch
from torch import Tensor

from peer.consensus.codec.state_digest import FLOAT32_BYTES
from peer.training.model.flat_parameters import FlatParameters
from peer.training.outer.copy_stream import copied, copy_over
from peer.training.outer.layer_tensors import LayerTensors, Origin
from peer.training.outer.outer_state import OuterState

CPU = torch.device("cpu")
DEVICE_SHARE = 0.9
"""Of a device's free memory that is planned with: allocators leave gaps."""
MEMORY_SHARE = 0.5
"""Of the main memory that is available: other programs want some of it tomorrow."""


class Place(StrEnum):
    DEVICE = "device"
    MEMORY = "main memory"
    FILE = "mapped file"
    """The system may evict its pages at any time, and reads them again."""


@dataclass(frozen=True, kw_only=True)
class VectorSlots:
    """The place of the two vectors that a round's end needs (θ, momentum), and of the two that its beginning needs
    as well."""

    outer: Place
    own: Place

    def __str__(self) -> str:
        if self.outer is self.own:
            return f"anchor and residual in {self.outer}"
        return f"anchor in {self.outer}, residual in {self.own}"


def choose_slots(parameters: int, device: torch.device, spare_bytes: int, available_bytes: int) -> VectorSlots:
    """The places where the vectors fit.

    `spare_bytes` are those of the device beyond training; `available_bytes` are of main memory. The vectors that are
    needed at both the beginning and the end of a round get onto a device first.
    """
    pair_bytes = 2 * FLOAT32_BYTES * parameters
    room_bytes = 0 if device.type == "cpu" else int(DEVICE_SHARE * spare_bytes)
    own = Place.DEVICE if room_bytes >= pair_bytes else Place.MEMORY
    if room_bytes >= 2 * pair_bytes:
        return VectorSlots(outer=Place.DEVICE, own=own)
    beside_bytes = pair_bytes if own is Place.DEVICE else 2 * pair_bytes
    outer = Place.MEMORY if MEMORY_SHARE * available_bytes >= beside_bytes else Place.FILE
    return VectorSlots(outer=outer, own=own)


class RoundVectors:
    """θ, momentum, residual and start of a whole model, by layer. References to them stay valid wherever they lie."""

    def __init__(self, flat: FlatParameters, anchor: OuterState, new: Callable[[int], Tensor]) -> None:
        """`new` allocates so many elements of residual."""
        self.flat, self.anchor = flat, anchor
        self.layers = tuple(
            LayerTensors(
                first=layer.start, local=flat.of_layer(number), residual=new(layer.size).zero_(),
                theta=anchor.theta[number], momentum=anchor.momentum[number], start=Origin.AT_ANCHOR,
            )
            for number, layer in enumerate(flat.layers)
        )  # fmt: skip

    @classmethod
    def at(cls, flat: FlatParameters, places: VectorSlots, device: torch.device, folder: Path | None) -> RoundVectors:
        """At the anchor that is the parameters' present values; files lie in `folder`."""
        outer, own = (_room(place, device, folder) for place in (places.outer, places.own))
        thetas, momenta = ([outer(layer.size) for layer in flat.layers] for _ in ("theta", "momentum"))
        for number, (theta, momentum) in enumerate(zip(thetas, momenta, strict=True)):
            momentum.zero_()
            for where, parameter in flat.of_layer(number):
                theta[where] = parameter
        place = {"first_layer": flat.first_layer, "first_element": flat.layers[0].start}
        return cls(flat, OuterState(thetas, momenta, 0, {}, **place), own)

    def layer(self, number: int) -> LayerTensors:
        layer = self.layers[number]
        layer.local = self.flat.of_layer(number)  # a pause may have moved its memory
        return layer

    @property
    def residual(self) -> tuple[Tensor, ...]:
        return tuple(layer.residual for layer in self.layers)

    def stand_at_anchor(self) -> Sequence[tuple[Tensor, Tensor]]:
        """Let the parameters have the anchor's values; returns each with its own values, for `stand_back`.

        By pointer where θ lies in the same memory; elsewhere by copies, and their own values go to main memory.
        """
        own = list[tuple[Tensor, Tensor]]()
        for number, layer in enumerate(self.layers):
            for where, parameter in zip(self.flat.layer_slices(number), self.flat.members[number], strict=True):
                theta = layer.theta[where].view(parameter.shape)
                if theta.device == parameter.device:
                    own.append((parameter, parameter.data))
                    parameter.data = theta
                    continue
                own.append((parameter, copied(parameter, CPU)))
                copy_over(theta, parameter.data)
        return own

    def stand_back(self, own: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Let the parameters have their own values again."""
        for parameter, values in own:
            if values.device == parameter.device:
                parameter.data = values
            else:
                copy_over(values, parameter.data)

    def about_to_leave(self) -> None:
        """Free memory that is empty: a step that needs it allocates it again."""
        for layer in self.layers:
            layer.let_go_of_start()

    def have_moved(self) -> None:
        """Release the memory in which parameters lay."""
        for number in range(len(self.layers)):
            self.layer(number)

    def tensors(self) -> Iterator[Tensor]:
        """All that there are."""
        for layer in self.layers:
            yield from (layer.theta, layer.momentum, layer.residual)
            if layer.start is Origin.KEPT:
                yield layer.kept


def _room(place: Place, device: torch.device, folder: Path | None) -> Callable[[int], Tensor]:
    if place is Place.FILE:
        assert folder is not None
        return _Mapped(folder)
    where = device if place is Place.DEVICE else CPU
    return lambda elements: torch.empty(elements, device=where)


class _Mapped:
    """Memory that is an unnamed file: it disappears with the process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0

    def __call__(self, elements: int) -> Tensor:
        self._number += 1
        path = self._folder / f"mapped-{self._number}"
        path.unlink(missing_ok=True)
        vector = torch.from_file(str(path), shared=True, size=elements, dtype=torch.float32)
        path.unlink()
        return vector
