"""The inner optimizers of one rank: they update its shards of the parameters and keep moments for those alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from peer.parallel.fsdp.rank_messages import Moment
from peer.parallel.fsdp.rank_shards import HeldRun, RankShards
from peer.parallel.fsdp.sharded_model import like
from peer.parallel.fsdp.shared_parameters import Arena
from peer.schema.spec import RunSpec
from peer.training.model.flat_parameters import trained
from peer.training.train.atomic import AtomicSteps
from peer.training.train.optimizers import NO_STATE, make_optimizers

SLOTS = ("first", "second")
"""The arena's vectors for values of a parameter's size, in the order in which an optimizer names them."""


class RankOptimizer:
    """The optimizers over the parameters of a sharded model."""

    def __init__(self, model: nn.Module, spec: RunSpec, shards: RankShards, arena: Arena, *, in_arena: bool) -> None:
        """With `in_arena`, AdamW's moments themselves lie in the arena, without a copy."""
        self._parameters, self._shards, self._arena = trained(model), shards, arena
        self._clip = spec.inner.clip
        self._optimizers = make_optimizers(model, spec, shards.device)
        self._optimizers.take_memory()  # a step that finds no room on one rank alone would part them
        self._steps = AtomicSteps(self._optimizers, shards.device)
        self._in_arena = in_arena
        if in_arena:
            for layer in range(len(shards.held)):
                self._lie_in_arena(layer)

    @torch.no_grad()
    def begin(self) -> None:
        """Reset the moments in the arena to zero."""
        for layer in range(len(self._shards.held)) if self._in_arena else ():
            self._arena.first[layer].zero_()
            self._arena.second[layer].zero_()

    def _lie_in_arena(self, layer: int) -> None:
        for run, parameter in zip(self._shards.held[layer], self._shards.flat.members[layer], strict=True):
            memory = self._optimizers.memory_of(parameter)
            for key, slot in zip(("exp_avg", "exp_avg_sq"), SLOTS, strict=True):
                if key in memory:
                    vector: Tensor = getattr(self._arena, slot)[layer]
                    memory[key] = like(parameter, vector[run.lies].view(parameter.shape))

    def step(self, learning_rate: float, scale: float) -> bool:
        """Clip the gradients and make the step. Returns whether the memory sufficed; if not, everything is
        unchanged."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if scale != 1.0:
            for gradient in gradients:
                gradient.mul_(scale)
        if self._clip:
            nn.utils.clip_grad_norm_(self._parameters, self._clip)
        return self._steps.step(learning_rate)

    @torch.no_grad()
    def keep_layer(self, layer: int) -> tuple[Moment, ...]:
        """Copy the optimizer's state for what this rank owns of a layer to the arena; returns its values by name."""
        found = []
        for run, name, slot, value in self._memory(layer):
            if slot:
                vector, owned = getattr(self._arena, slot)[layer][run.owned_lies], _local(value)[run.owned]
                if vector.data_ptr() != owned.data_ptr():
                    vector.copy_(owned)
            found.append(Moment(name=name, slot=slot, value=float(value) if not slot and value.numel() else None))
        return tuple(found)

    @torch.no_grad()
    def load_layer(self, layer: int, memory: tuple[Moment, ...]) -> None:
        """The inverse of `keep_layer`, from what all ranks have kept; their number may have been different."""
        state = {moment.name: self._value(layer, moment) for moment in memory}
        self._optimizers.load_state_of(self._shards.flat.members[layer], state)
        if self._in_arena:
            self._lie_in_arena(layer)

    def _value(self, layer: int, moment: Moment) -> Tensor:
        if not moment.slot:
            return torch.empty(0) if moment.value is None else torch.tensor(moment.value)
        parameter = self._shards.flat.members[layer][_position(moment.name)]
        run = self._shards.held[layer][_position(moment.name)]
        local: Tensor = getattr(self._arena, moment.slot)[layer][run.lies]
        if not isinstance(parameter, DTensor):
            return local.view(parameter.shape)
        piece = parameter._local_tensor
        return like(parameter, local.view(piece.shape).to(piece.device))

    def _memory(self, layer: int) -> Iterator[tuple[HeldRun, str, str, Tensor]]:
        """(run, name, slot, value) of all optimizer state of a layer."""
        slots: dict[int, int] = {}
        for name, value in self._optimizers.state_of(self._shards.flat.members[layer]).items():
            position = _position(name)
            run, slot = self._shards.held[layer][position], ""
            if not name.endswith((f".{NO_STATE}", ".step")):
                slot = SLOTS[slots.setdefault(position, 0)]
                slots[position] += 1
            yield run, name, slot, value


def _position(name: str) -> int:
    """The position of the parameter in its layer, from `<optimizer>.<position>.<key>`."""
    return int(name.split(".")[1])


def _local(value: Tensor) -> Tensor:
    local: Tensor = value._local_tensor if isinstance(value, DTensor) else value
    return local.reshape(-1)
