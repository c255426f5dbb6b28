"""What a home can offer its cluster: memory for training and speed, measured in a moment."""

from __future__ import annotations

import time

import torch

from dht.errors import MemoryFull
from peer.node.host.device import choose_devices, free_bytes, raising_memory_full
from peer.node.host.processes import available_bytes
from peer.node.host.threads import threads_for
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.run_needs import PROCESS_BYTES
from peer.schema.ipc import HomeOffer
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec

TOKENS = 512
"""The rows of a matrix in one product."""
TIMED_S = 0.1
WIDEST = 4096
"""The maximal width of a product: a wider one is not faster, and needs long on a processor."""


def measure_offer(spec: RunSpec, settings: PeerSettings, me: str) -> HomeOffer:
    """The offer of this home. Memory and speed are 0 (not known) while other programs fill the device. Raises
    BadInput if no device works."""
    try:
        memory_gb, tokens_per_s = _measured(spec, settings)
    except MemoryFull:
        memory_gb = tokens_per_s = 0.0
    return HomeOffer(me, settings.name, memory_gb, tokens_per_s, settings.upload_mbps)


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


def flops_of(device: torch.device, threads: int, width: int, *, bfloat16: bool) -> float:
    """Operations per second of the matrix product that a model of this width consists of: of all that run within
    TIMED_S together, since a thread's clock may stand still during a short one. Training reaches a share of it that
    is about the same on all homes.

    For a processor it is the speed of one thread in its own computing time, multiplied by `threads`: otherwise it would
    depend on what else the machine does just now.
    """
    is_cpu = device.type == "cpu"
    clock = time.thread_time if is_cpu else time.perf_counter
    dtype = torch.bfloat16 if bfloat16 else torch.float32
    rows = torch.ones(TOKENS, width, device=device, dtype=dtype)
    weights = torch.ones(width, width, device=device, dtype=dtype)
    before = torch.get_num_threads()
    if is_cpu:
        torch.set_num_threads(1)
    try:
        _multiply(rows, weights)  # the first one loads the libraries
        started, products, took_s = clock(), 0, 0.0
        while took_s < TIMED_S:
            _multiply(rows, weights)
            products, took_s = products + 1, clock() - started
    finally:
        torch.set_num_threads(before)
    flops = 2.0 * TOKENS * width * width * products / took_s
    return flops * threads if is_cpu else flops


def _multiply(rows: torch.Tensor, weights: torch.Tensor) -> None:
    (rows @ weights)[0, 0].item()  # what a device has not computed yet is waited for
