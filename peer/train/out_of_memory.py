"""Memory that is not there: how torch says so, and how people hear of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dht.errors import MemoryFull

SIGNS = ("can't allocate memory", "out of memory", "ALLOC_FAILED")
"""Of main memory; of a driver that is asked without the allocator, and of MPS; of cuBLAS and cuDNN."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, of a GPU or of main memory: not all that do have a class of their own."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


def free_bytes(device: torch.device) -> int:
    """Of a GPU's memory, what nobody uses; 0 where it does not tell."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


@contextmanager
def telling_full_memory(device: torch.device) -> Iterator[None]:
    """Raises MemoryFull where the model, or what its optimizer remembers, finds no room on `device`."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryFull(
            f"the memory of {device} has no room for the model; close other programs, or join with --device cpu"
        ) from error
