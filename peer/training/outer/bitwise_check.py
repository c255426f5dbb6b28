"""Checks whether a device computes the same bits as every other one, before a run relies on it.

IEEE 754 fixes the result of each single operation. Devices differ where a library flushes denormals, divides by a
reciprocal, or fuses a multiplication and an addition.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from peer.consensus.codec.codec import Codec
from peer.consensus.codec.torch_codec import TorchCodec
from peer.node.host.device import assert_index, is_out_of_memory
from peer.training.outer.kernels import CPU, interpolate
from peer.training.outer.outer_step import outer_kernel

ELEMENTS = 8 * 4096
LEARNING_RATE, MOMENTUM, OWN, KEPT = 0.7, 0.9, 0.3, 0.75


@cache
def device_for(device: torch.device, codec: Codec) -> torch.device:
    """The device for a round's arithmetic of a model on `device`: that one, or the processor if its bits differ, or
    if it lacks an operation or a dtype, as MPS may."""
    assert_index(device)
    if device == CPU:
        return CPU
    try:
        theirs = results(device, codec)
    except (RuntimeError, TypeError) as error:
        if device.type == "cuda" or is_out_of_memory(error):
            raise
        return CPU
    ours = results(CPU, codec)
    return device if all(_same(one, other) for one, other in zip(theirs, ours, strict=True)) else CPU


@torch.no_grad()
def results(device: torch.device, codec: Codec) -> list[Tensor]:
    """The results of the arithmetic on `device` for numbers of every kind, on the CPU."""
    theta, momentum, residual, now = (numbers(seed).to(device) for seed in range(4))
    scratch, buffer = torch.empty_like(theta), torch.empty_like(theta)
    outer_kernel(theta, momentum, numbers(4).to(device), scratch, LEARNING_RATE, MOMENTUM)
    made = [theta, momentum]
    residual.add_(torch.sub(theta, now, out=scratch)).mul_(KEPT)
    interpolate(residual, theta, now, OWN, scratch)
    made.append(residual)
    payload = TorchCodec(codec).encode(numbers(5).to(device), ELEMENTS // 2)
    mean = torch.frombuffer(bytearray(codec.of_means.encode(numbers(6).numpy())), dtype=torch.uint8).to(device)
    for kind, octets in ((codec, payload), (codec.of_means, mean)):
        made += [octets, TorchCodec(kind).opened(octets)(slice(0, ELEMENTS), buffer).clone()]
    return [each.cpu() for each in made]


def numbers(seed: int) -> Tensor:
    """Numbers of every size, with denormals; zeros of both signs, equal ones, and at the end infinities."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(ELEMENTS, generator=generator)
    sizes = torch.exp2(torch.randint(-149, 127, (ELEMENTS // 64, 1), generator=generator).float())
    values.view(-1, 64).mul_(sizes)
    values[::97], values[1::97], values[2::53] = 0.0, -0.0, 1.5
    values[4098::4099] = torch.inf
    return values


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal to the bit; any two NaN are equal, since nothing may rely on one."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    alike = (one.view(torch.int32) == other.view(torch.int32)) | (one.isnan() & other.isnan())
    return bool(alike.all())
