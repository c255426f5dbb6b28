"""AdamW whose two moments take a byte per element each, instead of four.

Blocks of 256 values share a scale, their largest magnitude, and each value is one of 256 between: half of them in the
highest tenth, a quarter in the tenth below, and so on (dynamic quantization, arXiv:2110.02861, section 2). Of the
second moment the root is kept, so that its smallest values do not become nothing. The arithmetic of a step is float32,
also of gradients that are kept in 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

BLOCK = 256
PIECE = 1 << 20
"""Elements of a parameter that are worked on at a time."""
SCRATCH_BYTES = 64 * PIECE
"""What a step takes beside, at most."""
LEAST = 4096
"""A parameter with fewer elements is left to AdamW itself."""
DECADES = 7
CODES = ("exp_avg", "exp_avg_sq")
KEYS = ("step", *CODES, *(f"{key}_scale" for key in CODES))


class EightBitAdamW(Optimizer):
    def __init__(self, groups: list[dict[str, Any]], *, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": 1e-8, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter] = self.state.get(parameter) or no_moments(parameter)
                    _move(parameter, self.state[parameter], group)


def no_moments(parameter: Tensor) -> dict[str, Tensor]:
    zeros = torch.zeros(parameter.numel(), device=parameter.device)
    return packed({"step": torch.zeros(()), "exp_avg": zeros, "exp_avg_sq": zeros})


def packed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """AdamW's own state of a parameter as it is kept here."""
    first, second = state["exp_avg"].flatten(), state["exp_avg_sq"].flatten().sqrt()
    blocks, found = -(-len(first) // BLOCK), {"step": state["step"].to("cpu", torch.float32, copy=True)}
    for key, values, is_signed in (("exp_avg", first, True), ("exp_avg_sq", second, False)):
        found[key] = torch.empty(len(values), dtype=torch.uint8, device=values.device)
        found[f"{key}_scale"] = torch.empty(blocks, device=values.device)
        for piece, of_blocks in _pieces(len(values)):
            _write(values[piece], found[key][piece], found[f"{key}_scale"][of_blocks], is_signed=is_signed)
    return found


def unpacked(state: dict[str, Tensor], like: Tensor) -> dict[str, Tensor]:
    """The inverse of `packed`, but for what was rounded: AdamW's own state of a parameter."""
    first = _read(state["exp_avg"], state["exp_avg_scale"], is_signed=True)
    second = _read(state["exp_avg_sq"], state["exp_avg_sq_scale"], is_signed=False).square_()
    return {"step": state["step"], "exp_avg": first.view(like.shape), "exp_avg_sq": second.view(like.shape)}


def _move(parameter: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    """A step of AdamW (arXiv:1711.05101, algorithm 2)."""
    assert parameter.grad is not None
    beta1, beta2 = group["betas"]
    state["step"] += 1
    count = float(state["step"])
    rate, root = group["lr"] / (1 - beta1**count), math.sqrt(1 - beta2**count)
    values, gradients = parameter.view(-1), parameter.grad.reshape(-1)
    values.mul_(1 - group["lr"] * group["weight_decay"])
    for piece, of_blocks in _pieces(len(values)):
        gradient = gradients[piece].float()
        codes, scales = state["exp_avg"][piece], state["exp_avg_scale"][of_blocks]
        first = _read(codes, scales, is_signed=True).lerp_(gradient, 1 - beta1)
        _write(first, codes, scales, is_signed=True)
        codes, scales = state["exp_avg_sq"][piece], state["exp_avg_sq_scale"][of_blocks]
        second = _read(codes, scales, is_signed=False).square_().mul_(beta2)
        second.addcmul_(gradient, gradient, value=1 - beta2).sqrt_()
        _write(second, codes, scales, is_signed=False)
        values[piece].addcdiv_(first, second.div_(root).add_(group["eps"]), value=-rate)


def _pieces(elements: int) -> Iterator[tuple[slice, slice]]:
    """Slices of the elements, and of the scales of their blocks."""
    for first in range(0, elements, PIECE):
        last = min(elements, first + PIECE)
        yield slice(first, last), slice(first // BLOCK, -(-last // BLOCK))


def _write(values: Tensor, codes: Tensor, scales: Tensor, *, is_signed: bool) -> None:
    rows = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
    torch.amax(rows.abs(), dim=1, out=scales)
    shares = rows / scales.clamp(min=1e-38)[:, None]
    levels = _levels(is_signed, values.device)
    codes.copy_(torch.bucketize(shares, (levels[1:] + levels[:-1]) / 2, out_int32=True).view(-1)[: len(values)])


def _read(codes: Tensor, scales: Tensor, *, is_signed: bool) -> Tensor:
    found = _levels(is_signed, codes.device)[codes.int()]
    rows = torch.nn.functional.pad(found, (0, -len(found) % BLOCK)).view(-1, BLOCK)
    return (rows * scales[:, None]).view(-1)[: len(found)]


@cache
def _levels(is_signed: bool, device: torch.device) -> Tensor:
    """The values between -1, or 0, and 1 that codes stand for, in order."""
    found = [0.0, 1.0]
    for decade in range(DECADES):
        number = 1 << (decade if is_signed else decade + 1)
        of_decade = [10.0 ** (decade - DECADES + 1) * (0.1 + 0.9 * (at + 0.5) / number) for at in range(number)]
        found += of_decade + [-each for each in of_decade] * is_signed
    assert len(found) == 256
    return torch.tensor(sorted(found), device=device)
