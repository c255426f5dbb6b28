"""How fast a device multiplies matrices, measured in a moment."""

from __future__ import annotations

import time

import torch

TOKENS = 512
"""The rows of a matrix in one product."""
TIMED_S = 0.1


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
