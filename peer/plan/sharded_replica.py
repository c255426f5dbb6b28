"""A model sharded over the devices of one peer: what each holds, and what they say to each other in an inner step.

M is the model in 16 bit: two bytes per parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peer.plan.model_shape import FLOAT32_BYTES, MemoryFootprint, ModelShape

HALF_BYTES = 2
SLOWER_TOGETHER = 1.1
"""Communication that overlaps computation slows both (Galvatron's overlap coefficient, arXiv:2211.13878). The figure is
a guess: nothing here has measured it."""


@dataclass(frozen=True, kw_only=True)
class Sharded:
    """Of one device of a peer that shards its model over `devices`."""

    device_bytes: float
    traffic_bytes: float
    """What it sends to others in an inner step, those of its own inner group not counted."""
    inner_bytes: float
    """What it sends within its inner group."""

    def step_s(self, compute_s: float, bytes_per_s: float, inner_bytes_per_s: float) -> float:
        """Of an inner step: what communication is longer than computation is felt (the overlap rule is ours)."""
        talk_s = self.traffic_bytes / bytes_per_s + self.inner_bytes / inner_bytes_per_s
        return compute_s + max(0.0, SLOWER_TOGETHER * talk_s - compute_s)


def zero3(shape: ModelShape, memory: MemoryFootprint, devices: int, accumulation: int = 1) -> Sharded:
    """ZeRO-3 (arXiv:1910.02054): parameters, gradients and moments are all cut into `devices`.

    Each micro-batch gathers M twice, forward and backward; gradients are scattered at each, M. So 3 M of an inner step
    of one micro-batch, (d − 1)/d of it to others. Two layers are whole at a time: one in use, the next on its way.
    """
    share = (devices - 1) / devices
    whole = HALF_BYTES * shape.parameters
    layer = 2 * FLOAT32_BYTES * max(shape.layers) if devices > 1 else 0.0
    return Sharded(
        device_bytes=memory.training / devices + memory.activations + layer,
        traffic_bytes=3 * whole * share * accumulation, inner_bytes=0.0,
    )  # fmt: skip


def hierarchical(
    shape: ModelShape, memory: MemoryFootprint, devices: int, inner: int, accumulation: int = 1
) -> Sharded:
    """ZeRO++ (arXiv:2306.10209): the backward pass gathers within `inner` devices, from a second copy in 16 bit.

    Between the inner groups 3 M become 2 M. The copy takes M/`inner` of each device. `inner` divides `devices`, and is
    neither 1 nor all of them.
    """
    assert inner in inner_sizes(devices), f"{inner} of {devices} devices"
    plain = zero3(shape, memory, devices, accumulation)
    whole = HALF_BYTES * shape.parameters
    outside = (devices - inner) / devices
    return Sharded(
        device_bytes=plain.device_bytes + whole / inner,
        traffic_bytes=2 * whole * outside * accumulation,
        inner_bytes=whole * (inner - 1) / inner * accumulation,
    )  # fmt: skip


def inner_sizes(devices: int) -> Sequence[int]:
    """The inner groups that are possible: proper divisors."""
    return [size for size in range(2, devices) if devices % size == 0]
