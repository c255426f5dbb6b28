"""Activations and their gradients between two stages, as bytes.

int8 has one scale for every 64 neighbouring values; its mean error is 0.6 % of the values' size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 64


class BadActivations(ValueError):
    """The bytes are not hidden values of the expected shape, or the values are not finite."""


def encoded_bytes(elements: int, wire: str) -> int:
    if wire == "int8":
        return elements + 4 * math.ceil(elements / BLOCK)
    return elements * (4 if wire == "float32" else 2)


@torch.no_grad()
def encode_activations(values: Tensor, wire: str) -> bytes:
    """Values of any shape, on any device, as little-endian bytes, rounded to `wire`."""
    flat = values.detach().reshape(-1).to(torch.float32)
    if wire == "float32":
        return _octets(flat)
    if wire == "bfloat16":
        return _octets(flat.to(torch.bfloat16))
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    scales = padded.abs().amax(dim=1) / 127
    steps = torch.where(scales > 0, scales, 1.0)
    rounded = (padded / steps[:, None]).round_().clamp_(-127, 127).to(torch.int8).view(-1)[: flat.numel()]
    return _octets(scales) + _octets(rounded)


@torch.no_grad()
def decode_activations(payload: bytes | memoryview, shape: tuple[int, ...], wire: str, device: torch.device) -> Tensor:
    """The values as float32 on `device`. Raises BadActivations."""
    elements = math.prod(shape)
    if len(payload) != encoded_bytes(elements, wire):
        raise BadActivations(f"{len(payload)} bytes where {shape} values take {encoded_bytes(elements, wire)}")
    octets = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    if wire == "int8":
        blocks = math.ceil(elements / BLOCK)
        scales = octets[: 4 * blocks].view(torch.float32).to(device)
        steps = octets[4 * blocks :].view(torch.int8).to(device, torch.float32)
        padded = torch.nn.functional.pad(steps, (0, -elements % BLOCK)).view(-1, BLOCK)
        values = (padded * scales[:, None]).view(-1)[:elements]
    else:
        values = octets.view(torch.float32 if wire == "float32" else torch.bfloat16).to(device, torch.float32)
    if not bool(torch.isfinite(values).all()):
        raise BadActivations("values that are not finite")
    return values.view(shape)


def _octets(values: Tensor) -> bytes:
    return values.cpu().contiguous().view(torch.uint8).numpy().tobytes()
