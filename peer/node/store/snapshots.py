"""Snapshots of the anchor, equal to the byte on all peers: for newcomers, and for peers that return to an earlier one.

snapshots/00000016-<anchor hex>/    the newest `KEPT` of them
    vectors                         θ and m of the first layer, of the second one and so on, as little-endian float32
    manifest                        what they are, a digest per chunk, and the updates that led here
    layers                          only at a home of a cluster: the first and the last layer that are here
snapshots/<the same>.part/          an unfinished download: it is given to nobody, and no peer stands there

A snapshot proves only that it fits its manifest. Voters certify the manifest's state: the update after it names the
anchor and the digest of its bits.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from dht.atomic_files import raising_damaged, raising_disk_full, sync_folder, write_atomic
from dht.errors import BadInput, DiskFull
from peer.consensus.codec.blockwise import Floats
from peer.consensus.codec.state_digest import (
    CHUNK_BYTES,
    FLOAT32_BYTES,
    chunk_places,
    chunks_in,
    layer_digest,
    state_digest,
)
from peer.consensus.protocol.encoding import DIGEST_BYTES, digest_of, integer, pack, row, unpack
from peer.node.store.chunked_file import chunk_at, read_chunk
from peer.node.store.run_directory import ChainBase

VERSION = 2
KEPT = 2
MANIFEST_BYTES = 16 << 20
"""No manifest is larger."""
VECTORS = "vectors"
MANIFEST = "manifest"
LAYERS = "layers"
PART = ".part"
FOLDER = "snapshots"


@dataclass(frozen=True, kw_only=True)
class SnapshotManifest:
    """The content of a snapshot. Its bytes are canonical, so that equal snapshots have equal digests."""

    run: bytes
    base: ChainBase
    """The anchor, and the updates that led to it: one more than `keep_rounds`."""
    cursors: tuple[tuple[int, int], ...]
    """(shard, windows used), by shard."""
    layers: tuple[int, ...]
    """Elements of each layer's θ, and of its m."""
    chunks: tuple[bytes, ...]
    """Digests, in the order of the file: of each layer's θ, and then of its m, each vector cut by itself."""

    @property
    def anchor(self) -> bytes:
        return self.base.head.anchor

    @property
    def round(self) -> int:
        return self.base.head.round

    @property
    def name(self) -> str:
        return f"{self.round:08d}-{self.anchor.hex()}"

    @property
    def vector_bytes(self) -> int:
        return 2 * FLOAT32_BYTES * sum(self.layers)

    @cached_property
    def state(self) -> bytes:
        """Digest of the outer state, as voters know it: a peer with the chunks of the manifest has that state."""
        layers = [layer_digest(self.chunks[numbers.start : numbers.stop]) for numbers in self._chunks_of_layer]
        return state_digest(layers, self.cursors)

    def chunks_of(self, layer: int) -> range:
        """The chunks of a layer: as many of its θ, then of its m."""
        return self._chunks_of_layer[layer]

    def offset_bytes(self, chunk: int) -> int:
        """Where a chunk begins in the file."""
        return self._places[chunk][0]

    def chunk_bytes(self, chunk: int) -> int:
        return self._places[chunk][1]

    @cached_property
    def _chunks_of_layer(self) -> tuple[range, ...]:
        ends = list(accumulate((2 * chunks_in(size) for size in self.layers), initial=0))
        return tuple(range(first, last) for first, last in pairwise(ends))

    @cached_property
    def _places(self) -> tuple[tuple[int, int], ...]:
        """Offset and size of each chunk, in bytes."""
        return chunk_places(FLOAT32_BYTES * size for size in self.layers for _ in ("theta", "momentum"))

    def to_bytes(self) -> bytes:
        return pack(
            (VERSION, self.run, self.base.to_bytes(), self.cursors, self.state, self.layers, CHUNK_BYTES, self.chunks)
        )

    @classmethod
    def from_bytes(cls, packed: bytes) -> SnapshotManifest:
        """Raises ValueError for anything but the canonical bytes of a manifest of this version."""
        try:
            version, run, base, cursors, _, layers, chunk_bytes, chunks = msgpack.unpackb(packed, use_list=False)
            if (version, chunk_bytes) != (VERSION, CHUNK_BYTES):
                raise ValueError(f"version {version} with chunks of {chunk_bytes} bytes")
            manifest = cls(run=run, base=ChainBase.from_bytes(base), cursors=cursors, layers=layers, chunks=chunks)
            # The state is told beside what it follows from: so damage to either is damage to the manifest.
            if not manifest._is_sound() or manifest.to_bytes() != packed:
                raise ValueError("its fields do not fit each other")
        except (TypeError, msgpack.UnpackException) as error:
            raise ValueError(str(error) or type(error).__name__) from error
        return manifest

    def _is_sound(self) -> bool:
        digests = (self.run, *self.chunks)
        numbers = [number for pair in self.cursors for number in pair]
        return (
            all(type(digest) is bytes and len(digest) == DIGEST_BYTES for digest in digests)
            and all(type(number) is int and number >= 0 for number in numbers)
            and all(type(size) is int and size > 0 for size in self.layers)
            and list(self.cursors) == sorted({shard: end for shard, end in self.cursors}.items())
            and 0 < len(self.chunks) == sum(2 * chunks_in(size) for size in self.layers)
        )


# ---- writing ----


LayerChunks = Callable[[int], Iterable[memoryview]]
"""The chunks of a layer's θ and then its m, by number; each is there until the next is asked for."""


def write(
    directory: Path, layers: Sequence[int], chunks_of: LayerChunks, *, run: bytes, base: ChainBase,
    cursors: Mapping[int, int], state: bytes,
) -> Path:  # fmt: skip
    """Write a snapshot of these `layers` to disk as one of the newest `KEPT`. Raises DiskFull, and then nothing is
    left of it. AssertionError if its digest is not `state`."""
    made = draft(directory, layers, chunks_of, run=run, base=base, cursors=cursors)
    try:
        return made.publish(made.chunks, state)
    except ValueError as error:
        raise AssertionError("the outer state has changed while it was written") from error


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A snapshot whose vectors are on disk; its name follows from the chunks of all layers."""

    directory: Path
    run: bytes
    base: ChainBase
    cursors: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]
    """Elements of each layer of the model."""
    layers: range
    """Those that are here."""
    chunks: tuple[bytes, ...]
    """Their digests, in the order of the file."""

    @property
    def scratch(self) -> Path:
        return self.directory / FOLDER / f"{self.base.head.round:08d}-{self.base.head.anchor.hex()}.new"

    def publish(self, chunks: tuple[bytes, ...], state: bytes) -> Path:
        """Publish it as one of the newest `KEPT`. `chunks`: digests of those of all layers; `state` is checked
        against them, if it is known. Raises DiskFull, and then nothing is left of it; ValueError for chunks of
        another state."""
        try:
            with raising_disk_full(self.directory):
                manifest = SnapshotManifest(
                    run=self.run, base=self.base, cursors=self.cursors, layers=self.sizes, chunks=chunks
                )
                mine = tuple(chunks[number] for layer in self.layers for number in manifest.chunks_of(layer))
                if mine != self.chunks or (state and manifest.state != state):
                    raise ValueError(f"these are not the chunks of the state of round {manifest.round}")
                write_atomic(self.scratch / MANIFEST, manifest.to_bytes())
                return publish(self.directory, self.scratch, manifest, self.layers)
        except (DiskFull, ValueError):
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise


def draft(
    directory: Path, sizes: Sequence[int], chunks_of: LayerChunks, *, run: bytes, base: ChainBase,
    cursors: Mapping[int, int], layers: range | None = None,
) -> Draft:  # fmt: skip
    """Write the vectors of a snapshot to disk: of all layers of these sizes, in elements, or of some of them. Raises
    DiskFull, and then nothing is left of it."""
    folder, layers = directory / FOLDER, range(len(sizes)) if layers is None else layers
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.new"):
        shutil.rmtree(old)
    _require_room(folder, 2 * FLOAT32_BYTES * sum(sizes[layers.start : layers.stop]))
    made = Draft(
        directory=directory, run=run, base=base, cursors=tuple(sorted(cursors.items())), sizes=tuple(sizes),
        layers=layers, chunks=(),
    )  # fmt: skip
    try:
        with raising_disk_full(folder):
            made.scratch.mkdir()
            before, all_bytes = (2 * FLOAT32_BYTES * sum(some) for some in (sizes[: layers.start], sizes))
            chunks = _write_vectors(made.scratch / VECTORS, before, map(chunks_of, layers), all_bytes)
            return replace(made, chunks=chunks)
    except DiskFull:
        shutil.rmtree(made.scratch, ignore_errors=True)
        raise


def publish(directory: Path, scratch: Path, manifest: SnapshotManifest, layers: range) -> Path:
    """Give a snapshot with these layers its name, and drop those beyond the newest `KEPT` that no checkpoint needs."""
    path = directory / FOLDER / manifest.name
    (scratch / LAYERS).unlink(missing_ok=True)
    if len(layers) < len(manifest.layers):
        write_atomic(scratch / LAYERS, pack((layers[0], layers[-1])))
    if path.exists():
        shutil.rmtree(path)
    scratch.rename(path)
    sync_folder(path.parent)
    # By age, not by round: those of a branch that was left may have higher rounds.
    kept = {(manifest.round, manifest.anchor)} | named_by_checkpoints(directory)
    taken = [path_of(directory, *name) for name in names(directory) if name not in kept]
    for old in sorted(taken, key=lambda other: other.stat().st_mtime_ns)[: -(KEPT - 1)]:
        shutil.rmtree(old)
    return path


def _write_vectors(path: Path, start: int, layers: Iterable[Iterable[memoryview]], size: int) -> tuple[bytes, ...]:
    """`start`: the offset of the first of these layers in a file of this `size`, in bytes. Other layers take no
    space."""
    digests = []
    with path.open("wb") as file:
        file.seek(start)
        for chunk in chain.from_iterable(layers):
            digests.append(digest_of(chunk))
            file.write(chunk)
        file.truncate(size)
        file.flush()
        os.fsync(file.fileno())
    return tuple(digests)


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
    """Round and anchor of the snapshots in a run directory, oldest first; a folder with another name is incomplete."""
    found = []
    for path in (directory / FOLDER).glob("*-*"):
        round, _, anchor = path.name.partition("-")
        if round.isdecimal() and len(anchor) == 2 * DIGEST_BYTES:
            found.append((int(round), bytes.fromhex(anchor)))
    return sorted(found)


def named_by_checkpoints(directory: Path) -> set[tuple[int, bytes]]:
    """Round and anchor of the snapshots that a checkpoint of this peer needs."""
    found = set()
    for path in (directory / "checkpoints").glob("*/state.json"):
        with suppress(OSError, ValueError, TypeError):  # it is replaced just now, or damaged: whoever reads it tells
            round, anchor = json.loads(path.read_text())["snapshot"]
            found.add((int(round), bytes.fromhex(anchor)))
    return found


def path_of(directory: Path, round: int, anchor: bytes) -> Path:
    """The folder of the snapshot of an anchor, if there is one."""
    return directory / FOLDER / f"{round:08d}-{anchor.hex()}"


def read_manifest(path: Path) -> SnapshotManifest:
    """The manifest of the snapshot in this folder. Raises BadInput."""
    with raising_damaged(path / MANIFEST):
        manifest = SnapshotManifest.from_bytes((path / MANIFEST).read_bytes())
        if manifest.name != path.name.removesuffix(PART):
            raise ValueError("it is of another model")
    return manifest


def layers_in(path: Path, manifest: SnapshotManifest) -> range:
    """The layers of a snapshot that are in its folder. Raises BadInput."""
    whole = range(len(manifest.layers))
    with raising_damaged(path / LAYERS):
        try:
            first, last = row(unpack((path / LAYERS).read_bytes()), 2)
        except FileNotFoundError:
            return whole
        return range(integer(first, 0, whole[-1]), integer(last, first, whole[-1]) + 1)


def chunks_in_folder(path: Path, manifest: SnapshotManifest) -> list[int]:
    """The chunks of the layers that are there. Raises BadInput."""
    return [chunk for layer in layers_in(path, manifest) for chunk in manifest.chunks_of(layer)]


@contextmanager
def opened(path: Path, manifest: SnapshotManifest, layers: Iterable[int]) -> Iterator[Callable[[int], bytes]]:
    """Gives chunks of these layers by number, once every byte of them was checked. Raises BadInput if one is damaged
    or missing.

    The file is held open: intact bytes stay readable if the folder is removed meanwhile. So only a failing disk can
    give other bytes, and that is an OSError, after which nobody uses the chunks before.
    """

    def load(chunk: int) -> bytes:
        payload = chunk_at(file.fileno(), manifest, chunk)
        if payload is None:
            raise OSError(errno.EIO, "other bytes than a moment ago", str(path / VECTORS))
        return payload

    with raising_damaged(path / VECTORS):
        file = (path / VECTORS).open("rb")
    with file:
        wanted = (chunk for layer in layers for chunk in manifest.chunks_of(layer))
        if any(chunk_at(file.fileno(), manifest, chunk) is None for chunk in wanted):
            raise BadInput(f"{path / VECTORS} is damaged; remove {path}")
        yield load


def read_layer(path: Path, manifest: SnapshotManifest, layer: int) -> tuple[Floats, Floats]:
    """θ and m of one layer, every byte checked. Raises BadInput."""
    whole = np.empty(2 * manifest.layers[layer], dtype="<f4")
    target: Any = memoryview(whole.view(np.uint8).data)
    at = 0
    for chunk in manifest.chunks_of(layer):
        payload = read_chunk(path / VECTORS, manifest, chunk)
        if payload is None:
            raise BadInput(f"{path / VECTORS} is damaged; remove {path}")
        target[at : at + len(payload)] = payload
        at += len(payload)
    values = whole.astype(np.float32, copy=False)
    return values[: manifest.layers[layer]], values[manifest.layers[layer] :]
