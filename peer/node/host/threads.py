"""How many threads homefires uses on a machine that has other work. None of them spins while it waits.

An operation that is split among threads ends with its slowest one. Where the machine has fewer free cores than threads,
a spinning thread takes the core from the one it waits for: two peers that trained beside each other were 10 to 40 times
slower with spinning threads than with sleeping ones.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

LAYERS_MOST = 4
"""Layers of an update in work at the same time: the work is bound by memory."""
BESIDE_A_DEVICE = 2
"""A device computes; the processor copies, hashes, and starts kernels."""


@dataclass(frozen=True)
class Threads:
    """The thread counts of one trainer."""

    torch: int
    """Threads among which one operation is split: the matrix products of a processor that trains."""
    layers: int
    """Layers to which an update is applied at a time, element by element: these operations are not split."""


def threads_for(device: str, most: int) -> Threads:
    """The thread counts on a `device` of this type, with at most so many as the owner, or torch, would use."""
    if device == "cpu":
        return Threads(torch=most, layers=min(LAYERS_MOST, most))
    return Threads(torch=min(BESIDE_A_DEVICE, most), layers=1)


def sleep_while_waiting() -> None:
    """For this process and its children; call it before torch is loaded, which reads it once."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
