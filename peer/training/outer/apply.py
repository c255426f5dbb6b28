"""Applies a decided update to a peer, one layer after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from peer.consensus.protocol.block import VOID, PartOutcome, Update
from peer.consensus.protocol.layout import Part
from peer.node.store.contributions import Contribution
from peer.schema.spec import RunSpec
from peer.training.outer.kernels import Kernels, PartUpdate
from peer.training.outer.layer_tensors import LayerTensors
from peer.training.outer.outer_step import momentum_at


@dataclass(frozen=True, kw_only=True)
class LayerUpdate:
    """An update, every byte of it in memory and checked, and the state that it changes."""

    spec: RunSpec
    update: Update
    means: Mapping[bytes, bytes]
    """Encoded, by digest."""
    mine: Contribution | None
    outcomes: Sequence[PartOutcome]
    """By part."""
    parts: Sequence[Part]
    layers: Sequence[int]
    """The numbers of those that are here."""
    layer: Callable[[int], LayerTensors]
    kernels: Kernels
    own: float | None
    """The weight of a peer's own parameters if it trained on meanwhile and merges by interpolation."""
    gives_up: bool = False
    """Whether the rest of the residual of these parts is too old."""

    def apply(self) -> float:
        """All layers. Returns the norm of what was given up."""
        return math.hypot(*(self.apply_layer(number) for number in self.layers))

    def apply_layer(self, number: int) -> float:
        """Outer step, settlement and new local parameters of one layer; for a layer that the round does not average
        only its progress is collected. Returns the norm of what was given up."""
        tensors = self.layer(number)
        here = [(part, piece) for part, piece in enumerate(self.parts) if piece.layer == number]
        if here:
            return self.kernels.apply(tensors, [self._of(part, piece) for part, piece in here])
        self.kernels.progress(tensors)
        self.kernels.keep_start(tensors)  # steps may follow at once
        return 0.0

    def _of(self, part: int, piece: Part) -> PartUpdate:
        name, outcome, outer = self.update.parts[part], self.outcomes[part], self.spec.outer
        counted = outcome is PartOutcome.COUNTED
        assert self.mine is not None or not counted
        return PartUpdate(
            part=piece,
            outer=(
                None if self.update.rolled_back(part)
                else (outer.learning_rate, momentum_at(self.spec, self.update.round - 1))
            ),
            mean=None if name == VOID else self.means[name],
            mine=self.mine.payload(part) if self.mine is not None and counted else None,
            kept=self.spec.round.gamma if outcome is PartOutcome.MISSED else None, gives_up=self.gives_up, own=self.own,
        )  # fmt: skip
