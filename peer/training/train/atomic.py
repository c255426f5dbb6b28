"""Steps of the inner optimizers, each made completely or not at all, even if the device's memory runs out in between.

A step's change of a parameter cannot be undone to the bit. So everything that allocates memory comes before the first
parameter moves: AdamW's moments in its first step, after which it is one fused kernel that allocates nothing; and
Muon's directions in every step, two bytes per element of its matrices until they are applied. They lie on the device,
whose memory the activations have just left, or else in main memory. Nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer, _muon

from peer.node.host.device import is_out_of_memory
from peer.training.train.eight_bit_adamw import SCRATCH_BYTES, EightBitAdamW, no_moments
from peer.training.train.optimizers import Optimizers

Move = Callable[[], object]
"""Changes parameters and states in place, and takes no memory of the device."""


class AtomicSteps:
    """Makes the steps of the optimizers of one model on one device."""

    def __init__(self, optimizers: Optimizers, device: torch.device) -> None:
        self._optimizers = optimizers
        self._asides = (False,) if device.type == "cpu" else (False, True)
        """Whether the memory that a step needs lies in main memory; tried in this order."""

    @torch.no_grad()
    def step(self, learning_rate: float) -> bool:
        """Whether the step was made; otherwise memory ran out, and parameters, states and gradients have not
        changed."""
        for member in self._optimizers.members:
            for group in member.param_groups:
                group["lr"] = learning_rate
        for aside in self._asides:
            moves = self._moves(aside)
            if moves is not None:
                for move in moves:
                    move()
                for member in self._optimizers.members:
                    member.zero_grad()
                return True
        return False

    def _moves(self, aside: bool) -> list[Move] | None:
        """The moves of all optimizers; None without memory for them. Nothing has changed yet."""
        moves: list[Move] = []
        try:
            for member in self._optimizers.members:
                moves += _moves_of(member, aside)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None
        return moves


def _moves_of(member: Optimizer, aside: bool) -> Iterator[Move]:
    match member:
        case torch.optim.Muon():
            for group in member.param_groups:
                for parameter in _moving(group):
                    yield _muon_move(member, group, parameter, aside)
        case torch.optim.AdamW():
            assert member.defaults["fused"], "another kernel takes memory in every step"
            for group in member.param_groups:
                for parameter in _moving(group):
                    if not member.state.get(parameter):
                        yield _setting(member, parameter, _adamw_moments(parameter))
            yield member.step
        case EightBitAdamW():
            moving = [value for group in member.param_groups for value in _moving(group)]
            for parameter in moving:
                if not member.state.get(parameter):
                    yield _setting(member, parameter, no_moments(parameter))
            for device in {value.device for value in moving}:
                torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device=device)  # the allocator keeps it for the step
            yield member.step
        case _:  # of a test, without a state
            yield member.step


def _muon_move(member: Optimizer, group: dict[str, Any], parameter: Tensor, aside: bool) -> Move:
    """The step of `torch.optim.Muon` for one matrix, with its bits, in two halves: the direction, and the move."""
    gradient, rate, decay, mass = parameter.grad, group["lr"], group["weight_decay"], group["momentum"]
    assert gradient is not None
    state: dict[str, Tensor] = member.state.get(parameter) or {"momentum_buffer": torch.zeros_like(gradient)}
    momentum = state["momentum_buffer"]
    moved = momentum.lerp(gradient, 1 - mass)
    blend = gradient.lerp(moved, mass) if group["nesterov"] else moved
    direction = _muon._zeropower_via_newtonschulz(blend, group["ns_coefficients"], group["ns_steps"], group["eps"])
    length = _muon._adjust_lr(rate, group["adjust_lr_fn"], parameter.shape)
    if aside:  # in the gradient's numbers, so that it can take the gradient's place
        direction = direction.to("cpu").to(gradient.dtype)

    def move() -> None:
        member.state[parameter] = state
        momentum.lerp_(gradient, 1 - mass)
        parameter.mul_(1 - rate * decay)
        parameter.add_(gradient.copy_(direction) if aside else direction, alpha=-length)

    return move


def _adamw_moments(parameter: Tensor) -> dict[str, Tensor]:
    """As torch makes them in the first step."""
    step = torch.zeros((), dtype=torch.float32, device=parameter.device)
    return {"step": step, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}


def _setting(member: Optimizer, parameter: Tensor, state: dict[str, Tensor]) -> Move:
    return lambda: member.state.__setitem__(parameter, state)


def _moving(group: dict[str, Any]) -> list[Tensor]:
    """Parameters that the next step moves: those with a gradient."""
    return [value for value in group["params"] if value.grad is not None]
