"""A large file whose chunks have known digests, so that each chunk can come from any peer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from peer.consensus.protocol.encoding import digest_of


class ChunkedFile(Protocol):
    """A file as its manifest describes it: a snapshot, or a pretrained model."""

    @property
    def name(self) -> str:
        """Of its folder."""

    @property
    def chunks(self) -> Sequence[bytes]:
        """Digests, in the order of the file."""

    @property
    def vector_bytes(self) -> int:
        """Of the file."""

    def chunks_of(self, layer: int) -> range:
        """The chunks of a layer, by number."""

    def offset_bytes(self, chunk: int) -> int:
        """Where a chunk begins in the file."""

    def chunk_bytes(self, chunk: int) -> int: ...

    def to_bytes(self) -> bytes:
        """Canonical: their digest names the manifest."""


def chunk_at(file: int, manifest: ChunkedFile, chunk: int) -> bytes | None:
    """`read_chunk` from an open file, by its descriptor."""
    payload = os.pread(file, manifest.chunk_bytes(chunk), manifest.offset_bytes(chunk))
    return payload if digest_of(payload) == manifest.chunks[chunk] else None


def read_chunk(path: Path, manifest: ChunkedFile, chunk: int) -> bytes | None:
    """One chunk of the file; None if its bytes differ from the digest."""
    try:
        with path.open("rb") as file:
            return chunk_at(file.fileno(), manifest, chunk)
    except FileNotFoundError:
        return None


def damaged_chunks(path: Path, manifest: ChunkedFile, chunks: Iterable[int]) -> list[int]:
    """Those of these chunks that are not in the file, or whose bytes differ from their digests."""
    return [chunk for chunk in chunks if read_chunk(path, manifest, chunk) is None]
