"""Packs: the tokens of documents on this machine, written once and then read in place.

<cache>/packs/<digest>/      one for all peers of this machine; for private data in the folder of their peer
    tokens                   those of each shard one after the other, and then those that are held out
    manifest                 how many they are, and a digest per chunk
<cache>/packs/of/<name>      which pack holds the documents of a folder in their present state

The digest is the manifest's. Tokens are read, not mapped: a failing disk then raises an error instead of a signal.
"""

from __future__ import annotations

import os
import shutil
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import BinaryIO

import msgpack
import numpy as np
import numpy.typing as npt

from dht.atomic_files import raising_disk_full, write_atomic
from dht.errors import BadInput
from peer.consensus.codec.state_digest import CHUNK_BYTES
from peer.consensus.protocol.encoding import digest_of, pack
from peer.consensus.protocol.rules import DATA_SHARDS
from peer.node.store import start_blob
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import DataTable
from peer.training.data.data_shards import Document, shard_of
from peer.training.data.document_tokens import DocumentEncoder
from peer.training.data.source import WindowOrders, require_enough, spread
from peer.training.data.tokenizer import Tokens

VERSION = 2
READERS = 5
"""Changes where the same files are read as other documents."""
HELD_OUT = DATA_SHARDS
"""The part of a pack that is no shard."""
PARTS = DATA_SHARDS + 1
ITEMS = ("<u2", "<i4")
"""Of a token: small ones where the vocabulary allows it."""
BUFFERED = 1 << 16
"""Bytes of each part that are collected before they are written: a row has about a thousand."""
TOKENS, MANIFEST = "tokens", "manifest"


@dataclass(frozen=True, kw_only=True)
class PackManifest:
    """The content of a pack. Its bytes are canonical."""

    item: str
    sizes: tuple[int, ...]
    """Tokens of each part."""
    chunks: tuple[bytes, ...]
    """Digests, in the order of the file: each part is cut by itself."""

    @property
    def name(self) -> str:
        return digest_of(self.to_bytes()).hex()

    @property
    def item_bytes(self) -> int:
        return np.dtype(self.item).itemsize

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First byte of each part, and the end."""
        return tuple(accumulate((size * self.item_bytes for size in self.sizes), initial=0))

    @cached_property
    def first_chunks(self) -> tuple[int, ...]:
        """Number of the first chunk of each part, and of all."""
        return tuple(accumulate((-(-(end - at) // CHUNK_BYTES) for at, end in pairwise(self.starts)), initial=0))

    def to_bytes(self) -> bytes:
        return pack((VERSION, self.item, self.sizes, CHUNK_BYTES, self.chunks))

    @classmethod
    def from_bytes(cls, packed: bytes) -> PackManifest:
        """Raises ValueError for bytes that are no manifest of this version."""
        try:
            version, item, sizes, chunk_bytes, chunks = msgpack.unpackb(packed, use_list=False)
        except (TypeError, msgpack.UnpackException) as error:
            raise ValueError(str(error) or type(error).__name__) from error
        manifest = cls(item=item, sizes=sizes, chunks=chunks)
        known = (version, chunk_bytes) == (VERSION, CHUNK_BYTES) and item in ITEMS and len(sizes) == PARTS
        if not known or len(chunks) != manifest.first_chunks[-1]:
            raise ValueError("it is no manifest of this version")
        return manifest


class Pack:
    """A pack in the cache. Raises OSError and ValueError if it is missing or incomplete."""

    def __init__(self, name: str, place: Path) -> None:
        """The pack of this name in the folder `place`."""
        self.folder = place / name
        self.manifest = PackManifest.from_bytes((self.folder / MANIFEST).read_bytes())
        self._file = os.open(self.folder / TOKENS, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._intact = bytearray(len(self.manifest.chunks))
        if self.manifest.name != name or os.fstat(self._file).st_size != self.manifest.starts[-1]:
            raise ValueError(f"{self.folder} is damaged")

    def read(self, part: int, start: int, stop: int) -> Tokens:
        """Tokens from `start` to `stop` of a part. What is read for the first time is compared with its digest:
        raises ValueError if it differs, OSError if the disk fails."""
        manifest = self.manifest
        begin, end = (manifest.starts[part] + at * manifest.item_bytes for at in (start, stop))
        first = manifest.first_chunks[part]
        offset = manifest.starts[part]
        for chunk in range((begin - offset) // CHUNK_BYTES, -(-(end - offset) // CHUNK_BYTES)):
            if not self._intact[first + chunk]:
                at = offset + chunk * CHUNK_BYTES
                self._compare(first + chunk, at, min(CHUNK_BYTES, manifest.starts[part + 1] - at))
        found = os.pread(self._file, end - begin, begin)
        return np.frombuffer(found, manifest.item).astype(np.int32)

    def _compare(self, chunk: int, at: int, size: int) -> None:
        if digest_of(os.pread(self._file, size, at)) != self.manifest.chunks[chunk]:
            raise ValueError(f"{self.folder} is damaged")
        self._intact[chunk] = True


class PackSource:
    """A source like `MemorySource`, read from a pack. Raises BadSpec if there is too little text."""

    def __init__(self, spec: RunSpec, packed: Callable[[], Pack]) -> None:
        """`packed` finds the pack, or makes it."""
        self._packed, self._pack = packed, packed()
        self._context, self._eval_sequences = spec.model.context, spec.data.eval_sequences
        sizes = self._pack.manifest.sizes
        self.windows: Mapping[int, int] = {
            shard: (sizes[shard] - 1) // self._context for shard in range(DATA_SHARDS) if sizes[shard] > self._context
        }
        require_enough(self.windows, sizes[HELD_OUT], self._context)
        if spec.data.format == "chat":
            self.held_out()  # of conversations nothing may be predicted
        self._orders = WindowOrders(spec.run.seed, self.windows)

    def window(self, shard: int, position: int) -> Tokens:
        """Tokens (T): the shard's windows in a permutation of (run seed, shard, pass over the shard)."""
        start = self._orders.place(shard, position) * self._context
        return self._read(shard, start, start + self._context + 1)

    def held_out(self) -> npt.NDArray[np.int64]:
        """Tokens (B, T) evenly spread over the held-out text; B may be less than asked for if it is short."""
        return spread(self._read(HELD_OUT, 0, self._pack.manifest.sizes[HELD_OUT]), self._eval_sequences, self._context)

    def _read(self, part: int, start: int, stop: int) -> Tokens:
        try:
            return self._pack.read(part, start, stop)
        except (OSError, ValueError):
            # Documents that have changed since are other text: cursors would point into it.
            name = self._pack.manifest.name
            shutil.rmtree(self._pack.folder, ignore_errors=True)
            self._pack = self._packed()
            if self._pack.manifest.name != name:
                raise BadInput(
                    f"the pack {name[:8]} is damaged, and its documents have changed since; start this peer again"
                ) from None
            return self._pack.read(part, start, stop)


def folder() -> Path:
    return start_blob.cache() / "packs"


def item_of(vocabulary: int) -> str:
    return ITEMS[0] if vocabulary <= 1 << 16 else ITEMS[1]


def fingerprint(base: Path, names: Sequence[str]) -> bytes:
    """A fingerprint of files: it changes with any name, size, or time of change."""
    listed = []
    for name in names:
        found = os.stat(os.path.join(base, name))  # a path of pathlib costs as much again
        listed.append((name, found.st_size, found.st_mtime_ns))
    return digest_of(pack(tuple(listed)))


def packed(
    place: str, files: bytes, documents: Callable[[], Iterable[Document]], encoder: DocumentEncoder, spec: RunSpec,
    packs: Path | None = None,
) -> Pack:  # fmt: skip
    """The pack of these documents; they are read, one at a time, only if `packs` has none (by default the cache).
    `place`: where they come from; `files`: their fingerprint. A pack of text is valid for any context, and each pack
    for one tokenizer, share of held-out documents and column. Raises DiskFull, OSError if the cache cannot be
    written."""
    packs = packs or folder()
    item = item_of(encoder.most)
    table = spec.data
    said = (
        VERSION, READERS, place, encoder.identity, item, table.held_out_every, table.held_out_by, table.text_field,
    )  # fmt: skip
    index = packs / "of" / digest_of(pack(said)).hex()[:32]
    known = _read_index(index)
    if known is not None and known[0] == files.hex():
        try:
            return Pack(known[1], packs)
        except (OSError, ValueError):
            shutil.rmtree(packs / known[1], ignore_errors=True)
    manifest = write(documents(), encoder, table, item, packs)
    with raising_disk_full(index):
        index.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = index.with_name(f"{index.name}.{os.getpid()}")  # another peer of this machine may write it just now
        write_atomic(own, f"{files.hex()} {manifest.name}".encode(), private=True)
        own.replace(index)
    if known is not None and known[1] not in {entry[1] for entry in map(_read_index, index.parent.iterdir()) if entry}:
        shutil.rmtree(packs / known[1], ignore_errors=True)  # who still reads it has it open
    return Pack(manifest.name, packs)


def _read_index(index: Path) -> tuple[str, str] | None:
    """Fingerprint and name of a pack."""
    try:
        files, name = index.read_text().split()
    except (OSError, ValueError):
        return None
    return files, name


def write(
    documents: Iterable[Document], encoder: DocumentEncoder, table: DataTable, item: str, packs: Path
) -> PackManifest:
    """Write these documents' tokens to the folder `packs`, readable by no other user of this machine. Raises
    DiskFull."""
    scratch = packs / f"{os.getpid()}.new"
    shutil.rmtree(scratch, ignore_errors=True)
    with raising_disk_full(scratch):
        packs.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch.mkdir(mode=0o700)
        try:
            manifest = _write(scratch, documents, encoder, table, item)
            start_blob.put(scratch, packs / manifest.name)
        finally:
            encoder.rest()
            shutil.rmtree(scratch, ignore_errors=True)
    return manifest


def _write(
    scratch: Path, documents: Iterable[Document], encoder: DocumentEncoder, table: DataTable, item: str
) -> PackManifest:
    with ExitStack() as opened:
        parts = [
            opened.enter_context(open(scratch / f"{part}", "wb+", BUFFERED, opener=_for_its_owner))
            for part in range(PARTS)
        ]
        lengths = [array("I") for _ in range(PARTS)]
        for document, tokens in encoder.encoded(documents):
            part = HELD_OUT if document.is_held_out(table) else shard_of(document.name)
            parts[part].write(tokens.astype(item).data)
            lengths[part].append(len(tokens))
        sizes, chunks = list[int](), list[bytes]()
        with open(scratch / TOKENS, "wb", opener=_for_its_owner) as file:
            for number, (part_file, of_documents) in enumerate(zip(parts, lengths, strict=True)):
                part_file.seek(0)
                pieces = _read_all(part_file) if encoder.follows else _joined(part_file, of_documents, encoder, item)
                begins_at = file.tell()
                for payload in _in_chunks(pieces):
                    start_blob.append(file, payload, chunks)
                sizes.append((file.tell() - begins_at) // np.dtype(item).itemsize)
                part_file.truncate(0)
                (scratch / f"{number}").unlink()
            file.flush()
            os.fsync(file.fileno())
    manifest = PackManifest(item=item, sizes=tuple(sizes), chunks=tuple(chunks))
    write_atomic(scratch / MANIFEST, manifest.to_bytes(), private=True)
    return manifest


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _read_all(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(CHUNK_BYTES):
        yield piece


def _joined(file: BinaryIO, lengths: Sequence[int], encoder: DocumentEncoder, item: str) -> Iterator[bytes]:
    """Documents as their encoder puts them into windows, with the tokens behind the last one."""
    pieces = encoder.joined(_read_each(file, lengths, item))
    for piece in chain(pieces, [encoder.end] if lengths else ()):
        yield piece.astype(item).tobytes()


def _read_each(file: BinaryIO, lengths: Iterable[int], item: str) -> Iterator[Tokens]:
    """Documents of so many tokens, one after the other."""
    for length in lengths:
        yield np.frombuffer(file.read(length * np.dtype(item).itemsize), item).astype(np.int32)


def _in_chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, cut into the pieces that have one digest each."""
    pending = bytearray()
    for piece in pieces:
        pending += piece
        while len(pending) >= CHUNK_BYTES:
            yield bytes(pending[:CHUNK_BYTES])
            del pending[:CHUNK_BYTES]
    if pending:
        yield bytes(pending)
