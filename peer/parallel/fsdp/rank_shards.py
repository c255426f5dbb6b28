"""What one rank holds of each layer, and which part of it this rank works on in a round.

A rank *holds* runs of a layer's parameters: those that FSDP2 gave it. It *owns* what it holds, or its part of that
where several ranks hold the same: each element of a layer has exactly one owner. Owners do a round's arithmetic where
their parameters lie; of encoded parts each touches the units that begin in what it owns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from peer.parallel.fsdp.sharded_model import held_by_rank, owned_run
from peer.parallel.fsdp.shared_parameters import Arena
from peer.planning.plan.sharding_strategy import ShardingStrategy
from peer.training.checkpoint.layer_state import derived_start
from peer.training.model.flat_parameters import FlatParameters
from peer.training.outer.layer_tensors import LayerTensors, Origin


@dataclass(frozen=True, kw_only=True)
class HeldRun:
    """A contiguous run of one parameter that this rank holds."""

    lies: slice
    """The run's place in the layer, in elements."""
    local: Tensor
    """The run's values, flat, in the memory that inner steps change."""
    owned: slice
    """The slice of the run, in elements, that this rank owns."""

    @property
    def owned_lies(self) -> slice:
        """The place of the owned slice in the layer, in elements."""
        return slice(self.lies.start + self.owned.start, self.lies.start + self.owned.stop)


class RankShards:
    """The shards of one rank, of a sharded model."""

    def __init__(self, model: nn.Module, strategy: ShardingStrategy, rank: int, arena: Arena) -> None:
        self.flat, self._arena = FlatParameters(model), arena
        copies, copy = strategy.ranks // strategy.shares, rank // strategy.shares
        self.held = tuple(
            tuple(_held(members, copies, copy)) for members in self.flat.members
        )  # fmt: skip
        self._owned = tuple(
            tuple(self._tensors(layer, run) for run in runs if run.owned.stop > run.owned.start)
            for layer, runs in enumerate(self.held)
        )
        self.device = next((run.local.device for runs in self.held for run in runs), torch.device("cpu"))
        """The device of the parameters."""

    def _tensors(self, layer: int, run: HeldRun) -> LayerTensors:
        arena, where = self._arena, run.owned_lies
        return LayerTensors(
            first=self.flat.layers[layer].start + where.start,
            local=((slice(0, where.stop - where.start), run.local[run.owned]),),
            residual=arena.residual[layer][where], theta=arena.theta[layer][where],
            momentum=arena.momentum[layer][where], start=Origin.AT_ANCHOR, _kept=arena.start[layer][where],
        )  # fmt: skip

    def owned(self, layer: int, origin: Origin) -> tuple[LayerTensors, ...]:
        """What this rank owns of a layer; `origin` is where the layer's steps began."""
        for tensors in self._owned[layer]:
            tensors.start = origin
        return self._owned[layer]

    def gathered(self, layer: int) -> LayerTensors:
        """A layer's shared vectors, for reading what all ranks have written; without the parameters."""
        arena = self._arena
        return LayerTensors(
            first=self.flat.layers[layer].start, local=((slice(0, 0), torch.empty(0, device=self.device)),),
            residual=arena.residual[layer], theta=arena.theta[layer], momentum=arena.momentum[layer],
        )  # fmt: skip

    @torch.no_grad()
    def follow(self, layer: int, *, sparse: bool) -> None:
        """Reset what other ranks own of a layer to the start that they have chosen: θ less the residual, or θ."""
        theta, residual = self._arena.theta[layer], self._arena.residual[layer]
        for run in self.held[layer]:
            for some in (slice(0, run.owned.start), slice(run.owned.stop, run.local.numel())):
                where = slice(run.lies.start + some.start, run.lies.start + some.stop)
                run.local[some] = derived_start(theta[where], residual[where], sparse=sparse).to(self.device)

    @torch.no_grad()
    def be_at_anchor(self) -> None:
        """Set the parameters to θ."""
        for vector, runs in zip(self._arena.theta, self.held, strict=True):
            for run in runs:
                run.local.copy_(vector[run.lies])

    @torch.no_grad()
    def take_layer(self, layer: int) -> None:
        """Load the parameters of a layer from the arena."""
        for run in self.held[layer]:
            run.local.copy_(self._arena.local[layer][run.lies])

    @torch.no_grad()
    def keep_layer(self, layer: int, aside: Sequence[Tensor] | None) -> None:
        """Copy the parameters of a layer to the arena; if θ is in their place, copy `aside`, by run."""
        for number, run in enumerate(self.held[layer]):
            local, vector = run.local if aside is None else aside[number], self._arena.local[layer][run.owned_lies]
            if vector.data_ptr() != local.data_ptr():
                vector.copy_(local[run.owned])


def _held(members: tuple[Tensor, ...], copies: int, copy: int) -> Iterator[HeldRun]:
    at = 0
    for parameter in members:
        where, local = held_by_rank(parameter)
        lies = slice(at + where.start, at + where.stop)
        yield HeldRun(lies=lies, local=local, owned=owned_run(local.numel(), copies, copy))
        at += parameter.numel()
