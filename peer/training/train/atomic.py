"""Steps of the inner optimizers, each whole or not made at all, though the device's memory may run out in the middle.

AdamW takes memory in its first step, for its moments; Muon in every one, for the matrix that it works on. By then other
parameters may have moved, and what a step did to them cannot be computed back to the bit. So what such a step changes
is copied before: on the device, whose memory the activations have just left, or else in main memory. An AdamW that has
its moments is one fused kernel that takes nothing: nothing is copied for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

from peer.node.host.device import is_out_of_memory
from peer.training.outer.copy_stream import copied
from peer.training.train.optimizers import Optimizers

MAIN = torch.device("cpu")


class AtomicSteps:
    """Makes the steps of the optimizers of one model on one device."""

    def __init__(self, optimizers: Optimizers, device: torch.device) -> None:
        self._optimizers = optimizers
        self._places = (device,) if device == MAIN else (device, MAIN)

    def step(self, learning_rate: float) -> bool:
        """Whether it was made; else there was no room, and parameters, states and gradients are what they were."""
        return any(self._is_made(learning_rate, place) for place in self._places)

    def _is_made(self, learning_rate: float, place: torch.device) -> bool:
        before: Backup | None = None
        try:
            before = Backup(self._optimizers, place)
            self._optimizers.step(learning_rate)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        else:
            return True
        # Outside of `except`: what the error's traceback holds is gone, and its memory with it.
        if before is not None:
            before.restore()
        return False


class Backup:
    """What the next step may leave half made, copied: of all members up to the last one that takes memory."""

    def __init__(self, optimizers: Optimizers, place: torch.device) -> None:
        members = optimizers.members
        last = max((number for number, member in enumerate(members) if takes_memory(member)), default=-1)
        moving = [(member, each) for member in members[: last + 1] for each in _moving(member)]
        self._parameters = [(parameter, copied(parameter, place)) for _, parameter in moving]
        self._states = [
            (member, parameter, {key: (value, copied(value, place)) for key, value in _state(member, parameter)})
            for member, parameter in moving
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Have all of it again, in place. A parameter that had no state has none."""
        for parameter, copy in self._parameters:
            parameter.copy_(copy)
        for member, parameter, state in self._states:
            if not state:
                member.state.pop(parameter, None)
            for value, copy in state.values():
                value.copy_(copy)


def takes_memory(member: Optimizer) -> bool:
    """Whether the next step of an optimizer allocates: all do but torch's fused AdamW, once it has its moments."""
    fused = isinstance(member, torch.optim.AdamW) and bool(member.defaults["fused"])
    return not fused or any(not member.state.get(parameter) for parameter in _moving(member))


def _moving(member: Optimizer) -> Iterator[Tensor]:
    """Parameters that the next step moves: those with a gradient."""
    return (value for group in member.param_groups for value in group["params"] if value.grad is not None)


def _state(member: Optimizer, parameter: Tensor) -> list[tuple[str, Tensor]]:
    return [(key, value) for key, value in member.state.get(parameter, {}).items() if isinstance(value, Tensor)]
