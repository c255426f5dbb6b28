"""The pretrained model of a run, as bytes that are equal on all machines: in a cache, by digest.

<cache>/start/<digest>/    one for all peers of this machine
    vectors                the parameters layer by layer as little-endian float32, and then the tokenizer's files
    manifest               how large they are, and a digest per chunk

The digest is the manifest's and stands in the spec: a peer with that manifest can check every chunk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import platformdirs

from dht.atomic_files import raising_damaged, raising_disk_full, write_atomic
from dht.errors import BadInput
from peer.consensus.codec.state_digest import CHUNK_BYTES, FLOAT32_BYTES, chunk_places
from peer.consensus.protocol.encoding import DIGEST_BYTES, digest_of, pack

Floats = npt.NDArray[np.float32]
CACHE = "HOMEFIRES_CACHE"
"""Environment variable that names another cache."""
VERSION = 1
VECTORS = "vectors"
MANIFEST = "manifest"
MANIFEST_BYTES = 16 << 20
"""No manifest is larger."""
MOST_FILES_BYTES = 64 << 20
"""Of a tokenizer."""


def folder_of(digest: str) -> Path:
    """Where the pretrained model with this digest lies, if it is here."""
    return cache() / "start" / digest


def cache() -> Path:
    """Where this machine keeps what all its peers use and can make again."""
    named = os.environ.get(CACHE)
    return Path(named) if named else platformdirs.user_cache_path("homefires")


@dataclass(frozen=True, kw_only=True)
class StartManifest:
    """The content of the blob. Its bytes are canonical."""

    layers: tuple[int, ...]
    """Elements of each layer of the model."""
    files_bytes: int
    """Of the tokenizer's files, packed."""
    chunks: tuple[bytes, ...]
    """Digests, in the order of the file: each layer is cut by itself, and so are the tokenizer's files."""

    @property
    def name(self) -> str:
        return digest_of(self.to_bytes()).hex()

    @property
    def vector_bytes(self) -> int:
        """All of it."""
        return sum(self._sizes)

    @property
    def pieces(self) -> range:
        """The layers by number, and one more for the files."""
        return range(len(self._sizes))

    def chunks_of(self, piece: int) -> range:
        """The chunks of a layer, or of the files."""
        return self._chunks_of[piece]

    def offset_bytes(self, chunk: int) -> int:
        """Where a chunk begins in the file."""
        return self._places[chunk][0]

    def chunk_bytes(self, chunk: int) -> int:
        return self._places[chunk][1]

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return (*(FLOAT32_BYTES * elements for elements in self.layers), self.files_bytes)

    @cached_property
    def _chunks_of(self) -> tuple[range, ...]:
        ends = list(accumulate((-(-size // CHUNK_BYTES) for size in self._sizes), initial=0))
        return tuple(range(first, last) for first, last in pairwise(ends))

    @cached_property
    def _places(self) -> tuple[tuple[int, int], ...]:
        return chunk_places(self._sizes)

    def to_bytes(self) -> bytes:
        return pack((VERSION, self.layers, self.files_bytes, CHUNK_BYTES, self.chunks))

    @classmethod
    def from_bytes(cls, packed: bytes) -> StartManifest:
        """Raises ValueError for anything but the canonical bytes of a manifest of this version."""
        try:
            version, layers, files_bytes, chunk_bytes, chunks = msgpack.unpackb(packed, use_list=False)
            if (version, chunk_bytes) != (VERSION, CHUNK_BYTES):
                raise ValueError(f"version {version} with chunks of {chunk_bytes} bytes")
            manifest = cls(layers=layers, files_bytes=files_bytes, chunks=chunks)
            if not manifest._is_sound() or manifest.to_bytes() != packed:
                raise ValueError("its fields do not fit each other")
        except (TypeError, msgpack.UnpackException) as error:
            raise ValueError(str(error) or type(error).__name__) from error
        return manifest

    def _is_sound(self) -> bool:
        return (
            all(type(size) is int and 0 < size < 1 << 40 for size in self.layers)
            and type(self.files_bytes) is int
            and 0 <= self.files_bytes <= MOST_FILES_BYTES
            and all(type(digest) is bytes and len(digest) == DIGEST_BYTES for digest in self.chunks)
            and 0 < len(self.chunks) == len(self._places)
        )


def write(layers: Iterable[Floats], files: Mapping[str, bytes]) -> StartManifest:
    """Write these layers and files to the cache. Raises DiskFull."""
    scratch = folder_of(f"{os.getpid()}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    sizes, chunks, packed = list[int](), list[bytes](), pack(tuple(sorted(files.items())))
    with raising_disk_full(scratch):
        scratch.parent.mkdir(parents=True, exist_ok=True)
        scratch.mkdir(mode=0o700)  # it may be a model of somebody's own
        with (scratch / VECTORS).open("wb") as file:
            for layer in layers:
                sizes.append(layer.size)
                append(file, layer.astype("<f4", copy=False).tobytes(), chunks)
            append(file, packed, chunks)
            file.flush()
            os.fsync(file.fileno())
        manifest = StartManifest(layers=tuple(sizes), files_bytes=len(packed), chunks=tuple(chunks))
        write_atomic(scratch / MANIFEST, manifest.to_bytes())
        publish(scratch, manifest)
    return manifest


def publish(scratch: Path, manifest: StartManifest) -> Path:
    """Move a complete folder to its place in the cache; it is removed if there is one already."""
    place = folder_of(manifest.name)
    place.parent.mkdir(parents=True, exist_ok=True)
    put(scratch, place)
    return place


def put(scratch: Path, place: Path) -> None:
    """Move a folder to its place; it is removed if another peer of this machine was first."""
    try:
        scratch.rename(place)
    except OSError:
        if not place.exists():
            raise
        shutil.rmtree(scratch)


def append(file: Any, payload: bytes, chunks: list[bytes]) -> None:
    """Write the bytes, and note the digests of their chunks."""
    file.write(payload)
    view = memoryview(payload)
    chunks += [digest_of(view[at : at + CHUNK_BYTES]) for at in range(0, len(view), CHUNK_BYTES)]


# ---- reading ----


def is_here(digest: str) -> bool:
    return (folder_of(digest) / MANIFEST).exists()


def read_manifest(digest: str) -> StartManifest:
    """The manifest of the blob with this digest. Raises BadInput if it is not in the cache, or damaged."""
    path = folder_of(digest) / MANIFEST
    with raising_damaged(path):
        manifest = StartManifest.from_bytes(path.read_bytes())
        if manifest.name != digest:
            raise ValueError("it is of another start")
    return manifest


def require_intact(digest: str) -> None:
    """Compare every byte with the manifest, since a disk may have lost some. Raises BadInput."""
    manifest, path = read_manifest(digest), folder_of(digest) / VECTORS
    with raising_damaged(path), path.open("rb") as file:
        for number, expected in enumerate(manifest.chunks):
            payload = os.pread(file.fileno(), manifest.chunk_bytes(number), manifest.offset_bytes(number))
            if digest_of(payload) != expected:
                raise BadInput(f"{path} is damaged; remove {path.parent}, and it is loaded anew")


def read_layers(digest: str) -> Sequence[Floats]:
    """The parameters, layer by layer, mapped: nothing is read before it is looked at. Raises BadInput."""
    manifest, path = read_manifest(digest), folder_of(digest) / VECTORS
    with raising_damaged(path):
        values = np.memmap(path, dtype="<f4", mode="r", shape=(sum(manifest.layers),))
    ends = list(accumulate(manifest.layers, initial=0))
    return [values[first:last] for first, last in pairwise(ends)]


def read_files(digest: str) -> Mapping[str, bytes]:
    """The tokenizer's files, by name. Raises BadInput."""
    manifest, path = read_manifest(digest), folder_of(digest) / VECTORS
    with raising_damaged(path), path.open("rb") as file:
        file.seek(manifest.vector_bytes - manifest.files_bytes)
        files = msgpack.unpackb(file.read(), use_list=False)
        if not all(type(name) is str and "/" not in name and not name.startswith(".") for name, _ in files):
            raise ValueError("its files have names that lead elsewhere")
        return {str(name): bytes(content) for name, content in files}


def tokenizer_folder(digest: str) -> Path:
    """A folder with the tokenizer's files, made at the first call. Raises BadInput, DiskFull."""
    place = folder_of(digest) / "tokenizer"
    if place.exists():
        return place
    scratch = place.with_name(f"tokenizer.{os.getpid()}.new")
    with raising_disk_full(scratch):
        scratch.mkdir(exist_ok=True)
        for name, content in read_files(digest).items():
            write_atomic(scratch / name, content)
        put(scratch, place)
    return place
