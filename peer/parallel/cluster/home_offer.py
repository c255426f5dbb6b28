"""What a home can offer its cluster: memory for training and speed, measured in a moment."""

from __future__ import annotations

import torch

from dht.errors import MemoryFull
from peer.node.host.device import choose_devices, free_bytes, raising_memory_full
from peer.node.host.matrix_speed import flops_of
from peer.node.host.processes import available_bytes
from peer.node.host.threads import threads_for
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.run_needs import PROCESS_BYTES
from peer.schema.ipc import HomeOffer
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec

WIDEST = 4096
"""The maximal width of a product: a wider one is not faster, and needs long on a processor."""


def measure_offer(spec: RunSpec, settings: PeerSettings, me: str, upload_mbps: float = 0.0) -> HomeOffer:
    """The offer of this home. Memory and speed are 0 (not known) while other programs fill the device. `upload_mbps`:
    of its line, if that has no cap. Raises BadInput if no device works."""
    try:
        memory_gb, tokens_per_s = _measured(spec, settings)
    except MemoryFull:
        memory_gb = tokens_per_s = 0.0
    return HomeOffer(me, settings.name, memory_gb, tokens_per_s, settings.upload_mbps or upload_mbps)


def _measured(spec: RunSpec, settings: PeerSettings) -> tuple[float, float]:
    """Returns (memory in GB, tokens per second). Raises MemoryFull, BadInput."""
    device = choose_devices(settings.devices)[0]
    threads = threads_for(device.type, settings.threads or torch.get_num_threads()).torch
    shape = shape_of(spec)
    with raising_memory_full(device):
        flops = flops_of(device, threads, min(shape.width, WIDEST), bfloat16=spec.inner.precision == "bfloat16")
    return room_bytes(device, settings) / 1e9, flops / shape.flops_per_token(spec.model.context)


def room_bytes(device: torch.device, settings: PeerSettings) -> float:
    """The bytes for parameters, gradients and moments. In main memory a round needs the same amount again: four
    numbers per parameter."""
    main = main_room_bytes(available_bytes(), settings)
    free = free_bytes(device)
    return min(free, main) if free else main / 2


def main_room_bytes(available: float, settings: PeerSettings) -> float:
    """The main memory that a peer may use for a model, of so much that is available."""
    allowed = settings.memory_gb * 1e9 or float("inf")
    return max(0.0, min(available, allowed) - PROCESS_BYTES)
