"""One layer of a model with all of its vectors, on their device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from peer.consensus.protocol.layout import Part
from peer.node.host.device import is_out_of_memory

CPU = torch.device("cpu")


class Origin(Enum):
    """Where the present inner steps began."""

    AT_ANCHOR = "the anchor less the residual, or with a sparse codec the anchor: no step, and nothing else, came since"
    AT_PARAMETERS = "where the parameters are now"
    KEPT = "a vector of its own"


@dataclass(slots=True, kw_only=True)
class LayerTensors:
    """One layer of a model with all of its vectors. The tensors are changed in place."""

    first: int
    """Where the layer begins in the whole model, in elements."""
    local: tuple[tuple[slice, Tensor], ...]
    """The trained parameters, flat, of any floating dtype, each with its slice in the layer, in order."""
    residual: Tensor
    """The residual, in the units of Δ. This and the following are flat float32 of the whole layer."""
    theta: Tensor
    momentum: Tensor
    start: Origin = Origin.AT_PARAMETERS
    _kept: Tensor | None = None

    @property
    def elements(self) -> int:
        return self.residual.numel()

    @property
    def kept(self) -> Tensor:
        assert self.start is Origin.KEPT
        assert self._kept is not None
        return self._kept

    def room_for_start(self) -> Tensor:
        """Memory for `kept`, which stays allocated: a run that needs it needs it in every round. It lies in main
        memory if a device is full, since an update must not be left half applied, and on the device again when there
        is memory."""
        if self._kept is None or self._kept.device != self.residual.device:
            self._kept = self._new_room()
        return self._kept

    def _new_room(self) -> Tensor:
        try:
            return torch.empty_like(self.residual)
        except RuntimeError as error:
            if self.residual.device == CPU or not is_out_of_memory(error):
                raise
        return torch.empty_like(self.residual, device=CPU)

    def let_go_of_start(self) -> None:
        """Free its memory if nothing is kept in it."""
        if self.start is not Origin.KEPT:
            self._kept = None

    def of(self, part: Part) -> slice:
        """Where a part of the model lies in this layer."""
        return slice(part.start - self.first, part.start - self.first + part.size)
