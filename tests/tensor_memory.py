"""How much memory tensors take, whatever the allocator and the kernel make of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Held(TorchDispatchMode):
    """Counts the bytes of all tensors that operations have made and that still exist, and the most at any time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most_bytes = 0
        self._storages: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, Tensor):
                storage = each.untyped_storage()
                self._storages[storage.data_ptr()] = (
                    torch.multiprocessing.reductions.StorageWeakRef(storage),
                    storage.nbytes(),
                )
        self._storages = {at: kept for at, kept in self._storages.items() if not kept[0].expired()}
        self.most_bytes = max(self.most_bytes, self.present_bytes)
        return out

    @property
    def present_bytes(self) -> int:
        return sum(size for kept, size in self._storages.values() if not kept.expired())


@contextmanager
def held() -> Iterator[Held]:
    gc.collect()
    with Held() as noted:
        yield noted
