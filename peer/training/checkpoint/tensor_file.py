"""Writes a safetensors file from front to back, in chunks: no tensor of it must be in memory as a whole."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

DTYPES = {
    "torch.float64": "F64", "torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16",
    "torch.int64": "I64", "torch.int32": "I32", "torch.uint8": "U8", "torch.bool": "BOOL",
}  # fmt: skip
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}
ALIGNMENT = 8


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """The entry of one tensor in the file's header."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "F32"

    @property
    def size_bytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


class TensorFile:
    """Takes the tensors of `entries` in their order, as little-endian bytes, and computes the digest of the file."""

    def __init__(self, path: Path, entries: Sequence[TensorEntry]) -> None:
        self.path = path
        self._digest = hashlib.blake2b(digest_size=32)
        header = _header(entries)
        self._left_bytes = len(header) + sum(entry.size_bytes for entry in entries)
        self.add([header])

    def add(self, chunks: Iterable[memoryview | bytes]) -> None:
        """Append. Raises OSError. The file is only open meanwhile: a model may have more layers than there are
        descriptors."""
        with self.path.open("ab", buffering=0) as file:
            for chunk in chunks:
                self._digest.update(chunk)
                _write_all(file.fileno(), memoryview(chunk))
                self._left_bytes -= len(chunk)

    def finish(self) -> str:
        """Have it on disk; its BLAKE2b-256 in hex."""
        assert self._left_bytes == 0, f"{self.path} is not what its header says"
        sync_file(self.path)
        return self._digest.hexdigest()


def _header(entries: Sequence[TensorEntry]) -> bytes:
    table, at = {}, 0
    for entry in entries:
        end = at + entry.size_bytes
        table[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _write_all(file: int, left: memoryview) -> None:
    while left.nbytes:
        left = left[os.write(file, left) :]


def sync_file(path: Path) -> None:
    """Have its bytes on disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
