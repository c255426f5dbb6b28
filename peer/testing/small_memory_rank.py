"""`python -m peer.testing.small_memory_rank --room BYTES,BYTES …`: a rank whose device has only so much memory.

A processor has no memory of its own to count. So whenever a layer is gathered or gets a gradient, this rank adds up
what would lie on a device, and beyond the given bytes it ends as CUDA would end it. It counts the rank's shards, their
gradients and moments (unless they lie in main memory), gathered layers with their gradients, secondary shards, and
logits. It leaves out other activations, and what is in transit between ranks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

import peer.parallel.fsdp.rank_model
from peer.parallel.fsdp.rank import main
from peer.parallel.fsdp.rank_messages import RankSetup
from peer.parallel.fsdp.rank_model import RankModel
from peer.parallel.fsdp.sharded_model import fsdp_modules
from peer.parallel.fsdp.shared_parameters import Arena
from peer.schema.peak_memory import FLOAT32_BYTES


class TightRank(RankModel):
    """Raises torch's own error where its share, or a step, takes more than there is."""

    room_bytes: ClassVar[tuple[int, ...]] = ()
    """By rank; 0: as much as it takes."""

    def __init__(self, setup: RankSetup, arena: Arena) -> None:
        super().__init__(setup, arena)
        self._room_bytes, self._offloads = self.room_bytes[setup.rank], setup.offloads
        self._most_bytes = self._logit_bytes = 0
        self._watched: set[int] = set()
        """Gathered parameters whose gradients are looked at, by id: FSDP2 makes them once."""
        for module in map(_as_module, fsdp_modules(self._model)):
            module.register_forward_pre_hook(self._enter)
        self._model.register_forward_hook(self._leave)
        self._check()

    def begin_peak(self) -> None:
        self._most_bytes = 0

    def peak_bytes(self) -> int:
        return self._most_bytes

    def _enter(self, module: nn.Module, values: Any) -> None:
        """FSDP2 has gathered it just now."""
        if module is self._model:
            self._logit_bytes = 0
        for _, parameter in _gathered(cast("FSDPModule", module)):
            if parameter.requires_grad and id(parameter) not in self._watched:
                self._watched.add(id(parameter))
                parameter.register_post_accumulate_grad_hook(lambda _: self._check())  # type: ignore[no-untyped-call]
        self._check()

    def _leave(self, module: nn.Module, values: Any, output: Any) -> None:
        (batch,) = values
        vocabulary: int = cast("Any", self._model).config.vocab_size
        self._logit_bytes = FLOAT32_BYTES * batch.tokens_BT.numel() * vocabulary
        self._check()

    def _check(self) -> None:
        taken = self._logit_bytes + sum(
            count * parameter.nbytes for each in fsdp_modules(self._model) for count, parameter in _gathered(each)
        )
        taken += sum(copy.nbytes for each in fsdp_modules(self._model) for copy in _second_copies(each))
        if not self._offloads:
            taken += self._own_bytes()
        self._most_bytes = max(self._most_bytes, taken)
        if self._room_bytes and taken > self._room_bytes:
            raise torch.OutOfMemoryError(f"CUDA out of memory. It takes {taken} bytes of {self._room_bytes}")

    def _own_bytes(self) -> int:
        """Of this rank's shares, what the optimizer remembers of them, and gradients that have arrived."""
        held = [run.local for runs in self._shards.held for run in runs]
        gradients = [parameter.grad for parameter in self._model.parameters() if parameter.grad is not None]
        moments = [
            value for layer in self._shards.flat.members
            for name, value in self._optimizer._optimizers.state_of(layer).items() if value.dim()
        ]  # fmt: skip
        return sum(map(_local_bytes, (*held, *gradients, *moments)))


def _as_module(module: FSDPModule) -> nn.Module:
    return cast("nn.Module", module)


def _groups(module: FSDPModule) -> Iterator[Any]:
    yield from module._get_fsdp_state()._fsdp_param_groups


def _gathered(module: FSDPModule) -> Iterator[tuple[int, Tensor]]:
    """Each whole parameter that is there, and how many times so much it takes: with its gradient twice."""
    for group in _groups(module):
        if group.is_sharded or group.is_sharded_post_forward:
            continue
        for each in group.fsdp_params:
            parameter = each.unsharded_param
            yield 1 + (parameter.grad is not None), parameter


def _second_copies(module: FSDPModule) -> Iterator[Tensor]:
    for group in _groups(module):
        if group.is_sharded_post_forward:
            yield from (each._sharded_post_forward_param for each in group.fsdp_params)


def _local_bytes(tensor: Any) -> int:
    return int(getattr(tensor, "_local_tensor", tensor).nbytes)


def run() -> int:
    """Be a rank; its exit code."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--room", required=True)
    asked, rest = parser.parse_known_args()
    TightRank.room_bytes = tuple(map(int, asked.room.split(",")))
    vars(peer.parallel.fsdp.rank_model)["RankModel"] = TightRank
    return main(rest)


if __name__ == "__main__":
    sys.exit(run())
