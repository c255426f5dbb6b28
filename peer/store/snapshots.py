"""Snapshots of the anchor, alike to the byte on all peers, for newcomers and for whoever goes back to an earlier one.

snapshots/00000016-<anchor hex>/    the newest `KEPT` of them
    vectors                         θ, then m, as little-endian float32
    manifest                        what they are, a digest per chunk, and the updates that led here

A snapshot proves itself only as far as its manifest goes: that the manifest is the run's is what
several donors say, and in the end the voters, with whose bits those of every newcomer are compared.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from blake3 import blake3

from dht.atomic_files import raising_damaged, raising_disk_full, sync_folder, write_atomic
from dht.errors import BadInput, DiskFull
from peer.codec.blockwise import Floats
from peer.protocol.encoding import DIGEST_BYTES, digest_of, pack
from peer.store.run_directory import ChainBase

VERSION = 1
KEPT = 2
CHUNK_BYTES = 1 << 20
MANIFEST_BYTES = 16 << 20
"""No manifest is larger."""
VECTORS = "vectors"
MANIFEST = "manifest"
FOLDER = "snapshots"


@dataclass(frozen=True, kw_only=True)
class SnapshotManifest:
    """What a snapshot holds. Its bytes are canonical, so that equal snapshots have equal digests."""

    run: bytes
    base: ChainBase
    """The anchor, and the updates that led to it: one more than a fork can go back."""
    cursors: tuple[tuple[int, int], ...]
    """(shard, windows used), by shard."""
    state: bytes
    """H(θ, m, cursors), as `Anchor.state_digest` computes it."""
    elements: int
    """Of θ, and of m."""
    chunks: tuple[bytes, ...]
    """The digest of each CHUNK_BYTES of the vectors; the last may be shorter."""

    @property
    def anchor(self) -> bytes:
        return self.base.head.anchor

    @property
    def round(self) -> int:
        return self.base.head.round

    @property
    def vector_bytes(self) -> int:
        return 8 * self.elements

    @property
    def name(self) -> str:
        return f"{self.round:08d}-{self.anchor.hex()}"

    def chunk_bytes(self, chunk: int) -> int:
        return min(CHUNK_BYTES, self.vector_bytes - chunk * CHUNK_BYTES)

    def to_bytes(self) -> bytes:
        return pack(
            (VERSION, self.run, self.base.to_bytes(), self.cursors, self.state, self.elements, CHUNK_BYTES, self.chunks)
        )

    @classmethod
    def from_bytes(cls, packed: bytes) -> SnapshotManifest:
        """Raises ValueError for anything but the canonical bytes of a manifest of this version."""
        try:
            fields = msgpack.unpackb(packed, use_list=False)
            version, run, base, cursors, state, elements, chunk_bytes, chunks = fields
            if (version, chunk_bytes) != (VERSION, CHUNK_BYTES):
                raise ValueError(f"version {version} with chunks of {chunk_bytes} bytes")
            manifest = cls(
                run=run, base=ChainBase.from_bytes(base), cursors=cursors, state=state, elements=elements, chunks=chunks
            )
            if manifest.to_bytes() != packed or not manifest._is_sound():
                raise ValueError("its fields do not fit each other")
        except (TypeError, msgpack.UnpackException) as error:
            raise ValueError(str(error) or type(error).__name__) from error
        return manifest

    def _is_sound(self) -> bool:
        digests = (self.run, self.state, *self.chunks)
        numbers = (self.elements, *(number for pair in self.cursors for number in pair))
        return (
            all(type(digest) is bytes and len(digest) == DIGEST_BYTES for digest in digests)
            and all(type(number) is int and number >= 0 for number in numbers)
            and list(self.cursors) == sorted({shard: end for shard, end in self.cursors}.items())
            and len(self.chunks) == -(-self.vector_bytes // CHUNK_BYTES)
        )


# ---- writing ----


def write(
    directory: Path, theta: Floats, momentum: Floats, *, run: bytes, base: ChainBase, cursors: dict[int, int],
    state: bytes,
) -> Path:  # fmt: skip
    """Have a snapshot on disk as one of the newest `KEPT`. Raises DiskFull, and then nothing is left of it."""
    folder = directory / FOLDER
    folder.mkdir(exist_ok=True)
    name = f"{base.head.round:08d}-{base.head.anchor.hex()}"
    scratch = folder / f"{name}.new"
    for old in folder.glob("*.new"):
        shutil.rmtree(old)
    _require_room(folder, theta.nbytes + momentum.nbytes)
    try:
        with raising_disk_full(folder):
            scratch.mkdir()
            chunks = _write_vectors(scratch / VECTORS, (theta, momentum))
            manifest = SnapshotManifest(
                run=run, base=base, cursors=tuple(sorted(cursors.items())), state=state, elements=theta.size,
                chunks=chunks,
            )  # fmt: skip
            write_atomic(scratch / MANIFEST, manifest.to_bytes())
            return publish(directory, scratch, manifest)
    except DiskFull:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def publish(directory: Path, scratch: Path, manifest: SnapshotManifest) -> Path:
    """Give a whole snapshot its name, and drop those beyond the newest `KEPT`."""
    path = directory / FOLDER / manifest.name
    if path.exists():
        shutil.rmtree(path)
    scratch.rename(path)
    sync_folder(path.parent)
    # By age, not by round: those of a branch that was left may have higher rounds.
    taken = [path_of(directory, *name) for name in names(directory) if name != (manifest.round, manifest.anchor)]
    for old in sorted(taken, key=lambda other: other.stat().st_mtime_ns)[: -(KEPT - 1)]:
        shutil.rmtree(old)
    return path


def _write_vectors(path: Path, vectors: Sequence[Floats]) -> tuple[bytes, ...]:
    digests = []
    with path.open("wb") as file:
        for chunk in _chunks([vector.astype("<f4", copy=False).view(np.uint8).data for vector in vectors]):
            digests.append(digest_of(chunk))
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return tuple(digests)


def _chunks(buffers: Sequence[memoryview]) -> Iterator[bytes]:
    total_bytes = sum(len(buffer) for buffer in buffers)
    for start in range(0, total_bytes, CHUNK_BYTES):
        pieces, offset = [], 0
        for buffer in buffers:
            pieces.append(buffer[max(0, start - offset) : max(0, start + CHUNK_BYTES - offset)])
            offset += len(buffer)
        yield b"".join(pieces)


def _require_room(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    # The round itself must find room too, as for a checkpoint.
    if free_bytes < 1.2 * needed_bytes:
        raise DiskFull(
            f"no room for a snapshot: it takes {needed_bytes / 1e6:.0f} MB, "
            f"{free_bytes / 1e6:.0f} MB are free below {folder}"
        )


# ---- reading ----


def names(directory: Path) -> list[tuple[int, bytes]]:
    """Round and anchor of the snapshots in a run directory, oldest first; what has another name is half-written."""
    found = []
    for path in (directory / FOLDER).glob("*-*"):
        round, _, anchor = path.name.partition("-")
        if round.isdecimal() and len(anchor) == 2 * DIGEST_BYTES:
            found.append((int(round), bytes.fromhex(anchor)))
    return sorted(found)


def drop_after(directory: Path, round: int) -> None:
    """Those of a branch that was left: they must not crowd out what the chain may go back to."""
    for taken, anchor in names(directory):
        if taken > round:
            shutil.rmtree(path_of(directory, taken, anchor))


def path_of(directory: Path, round: int, anchor: bytes) -> Path:
    """Where the snapshot of an anchor lies, if there is one."""
    return directory / FOLDER / f"{round:08d}-{anchor.hex()}"


def read_manifest(path: Path) -> SnapshotManifest:
    """Of the snapshot in this folder. Raises BadInput."""
    with raising_damaged(path / MANIFEST):
        manifest = SnapshotManifest.from_bytes((path / MANIFEST).read_bytes())
        if manifest.name != path.name.removesuffix(".part"):
            raise ValueError("it is of another anchor")
    return manifest


def read_chunk(path: Path, manifest: SnapshotManifest, chunk: int) -> bytes | None:
    """One chunk of the vectors; None if its bytes are not those that were written."""
    try:
        with (path / VECTORS).open("rb") as file:
            return chunk_at(file.fileno(), manifest, chunk)
    except FileNotFoundError:
        return None


def chunk_at(vectors: int, manifest: SnapshotManifest, chunk: int) -> bytes | None:
    """`read_chunk` from an open file, by its descriptor."""
    payload = os.pread(vectors, manifest.chunk_bytes(chunk), chunk * CHUNK_BYTES)
    return payload if digest_of(payload) == manifest.chunks[chunk] else None


def read_vectors(path: Path, manifest: SnapshotManifest) -> tuple[Floats, Floats]:
    """θ and m, every byte checked. Raises BadInput."""
    whole = np.empty(2 * manifest.elements, dtype="<f4")
    target: Any = memoryview(whole.view(np.uint8).data)
    for chunk in range(len(manifest.chunks)):
        payload = read_chunk(path, manifest, chunk)
        if payload is None:
            raise BadInput(f"{path / VECTORS} is damaged; remove {path}")
        target[chunk * CHUNK_BYTES : chunk * CHUNK_BYTES + len(payload)] = payload
    values = whole.astype(np.float32, copy=False)
    return values[: manifest.elements], values[manifest.elements :]


def state_digest(path: Path, manifest: SnapshotManifest) -> bytes:
    """H(θ, m, cursors) of what lies in the folder."""
    state = blake3()
    with (path / VECTORS).open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            state.update(piece)
    state.update(msgpack.packb([list(pair) for pair in manifest.cursors]))
    return state.digest()
