"""Memory that the lead and its ranks share: what a round needs beside the model, and copies of what inner steps change.

It is one unnamed file that all of them map. Its contents outlive every rank, and nothing of it goes through a pipe.
Pages that were never touched take no memory.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from peer.consensus.codec.state_digest import FLOAT32_BYTES
from peer.training.outer.layer_tensors import LayerTensors, Origin

PAGE_BYTES = 1 << 16
"""Every vector begins at a multiple of this, so no two processes write to one page at a layer boundary."""
ROUND = ("theta", "momentum", "residual", "start")
"""The vectors that a round needs; see `peer.training.outer.layer_tensors`."""
INNER = ("local", "first", "second")
"""Copies of what inner steps change: the parameters, and the optimizer's one or two moments."""


@dataclass(slots=True, kw_only=True)
class SharedLayer(LayerTensors):
    """A layer whose vectors lie in an arena. Its parameters are with the ranks: `local` is the copy of them."""

    number: int


@dataclass(frozen=True, kw_only=True)
class ArenaLayout:
    """The place of everything in the arena; it is the same in every process, since it depends only on these values."""

    sizes: tuple[int, ...]
    """The number of elements in each layer."""
    payload_bytes: int
    """The size for the encoded parts of one layer: its means, and this peer's contributions to it."""

    @property
    def total_bytes(self) -> int:
        vectors = len(ROUND) + len(INNER)
        return vectors * sum(map(self._room_bytes, self.sizes)) + self.payload_bytes

    def _room_bytes(self, elements: int) -> int:
        return -(-elements * FLOAT32_BYTES // PAGE_BYTES) * PAGE_BYTES

    def vectors(self, whole: Tensor) -> dict[str, tuple[Tensor, ...]]:
        """The vectors by name: float32, flat, one per layer, in the memory of `whole` (uint8)."""
        found, at = {}, 0
        for name in (*ROUND, *INNER):
            layers = []
            for elements in self.sizes:
                layers.append(whole[at : at + elements * FLOAT32_BYTES].view(torch.float32))
                at += self._room_bytes(elements)
            found[name] = tuple(layers)
        return found


class Arena:
    """The shared memory, as one process maps it."""

    def __init__(self, file: int, layout: ArenaLayout) -> None:
        """`file` is the descriptor; the caller keeps it."""
        self.file, self.layout = file, layout
        whole = torch.from_file(f"/dev/fd/{file}", shared=True, size=layout.total_bytes, dtype=torch.uint8)
        vectors = layout.vectors(whole)
        self.theta, self.momentum, self.residual, self.start = (vectors[name] for name in ROUND)
        self.local, self.first, self.second = (vectors[name] for name in INNER)
        self.payload = whole[layout.total_bytes - layout.payload_bytes :]
        """Encoded parts on their way between lead and ranks, uint8."""

    @classmethod
    def create(cls, sizes: Sequence[int], payload_bytes: int, folder: Path | None) -> Arena:
        """A new arena, all zeros. It lies in main memory, or, if `folder` is given, in a file there, whose pages the
        system may write out."""
        layout = ArenaLayout(sizes=tuple(sizes), payload_bytes=payload_bytes)
        file = _file_without_name(folder)
        os.ftruncate(file, layout.total_bytes)
        return cls(file, layout)

    def pin_inner(self, device: torch.device) -> bool:
        """Page-lock the local parameters so that a GPU copies to and from them as fast as for memory of its own
        making. Returns whether that succeeded."""
        if device.type != "cuda":
            return False
        done = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        return all(
            not int(done.cudaHostRegister(vector.data_ptr(), vector.nbytes, 0))
            for vector in self.local
            if vector.nbytes
        )

    def layer(self, number: int, first: int) -> SharedLayer:
        """A layer as the lead sees it; `first` is its first element in the model."""
        return SharedLayer(
            number=number, first=first, local=((slice(0, self.layout.sizes[number]), self.local[number]),),
            residual=self.residual[number], theta=self.theta[number], momentum=self.momentum[number],
            start=Origin.AT_ANCHOR, _kept=self.start[number],
        )  # fmt: skip

    def close(self) -> None:
        """Close the descriptor. The memory is freed with the last process that maps it and the last tensor here. A
        second call does nothing."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _file_without_name(folder: Path | None) -> int:
    if folder is None and sys.platform.startswith("linux"):
        return os.memfd_create("homefires")
    file, path = tempfile.mkstemp(dir=folder)
    os.unlink(path)
    return file
