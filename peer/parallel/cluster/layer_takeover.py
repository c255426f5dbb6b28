"""A home of a cluster takes other layers than it has kept: what is missing of them comes from the homes that had them.

It begins at a snapshot of its chain, whose manifest is the same at all homes, and has the means that followed.
So θ and momentum are those of the chain, to the bit; the optimizer's moments begin anew.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from dht.atomic_files import raising_disk_full, write_atomic
from dht.errors import BadInput
from peer.consensus.protocol.block import VOID, Update
from peer.consensus.protocol.encoding import pack
from peer.consensus.protocol.layout import Part, divide
from peer.node.store import snapshots
from peer.node.store.chunked_file import read_chunk
from peer.node.store.held_layers import keep_from, read_held
from peer.node.store.objects import object_path
from peer.node.store.run_directory import StoredChain, genesis_head, read_chain_files, read_genesis
from peer.node.store.snapshots import SnapshotManifest

Fetch = Callable[[Sequence[bytes], Callable[[bytes, bytes], None]], bool]
"""Calls its second argument with each of these digests and its bytes; returns False if some are with nobody."""


def take_over(directory: Path, held: range, parts: Sequence[Part], fragments: int, fetch: Fetch) -> None:
    """Have on disk what leads from a snapshot to the head of the chain for the layers `held`. Changes nothing if these
    are the layers that this home keeps, or if nobody has what is missing. Raises DiskFull, HomeGone."""
    known = read_held(directory)
    if known is None or known.layers == held:
        return
    # Not only the newest: the others may have written that one after these layers were dealt, or not at all.
    for path, manifest, chain in _on_chain(directory):
        after = [block.update for block in chain.blocks if block.update.round > manifest.round]
        means = list(_means(after, held, parts, fragments))
        missing = [digest for digest in means if not object_path(directory, digest).exists()]
        if _have_chunks(path, manifest, held, fetch) and fetch(missing, partial(_keep_object, directory)):
            for folder in ("checkpoints", "contributions"):  # of other layers
                shutil.rmtree(directory / folder, ignore_errors=True)
            keep_from(directory, held, manifest.round)
            return


def _keep_object(directory: Path, digest: bytes, payload: bytes) -> None:
    write_atomic(object_path(directory, digest), payload)


def stands_at(directory: Path, held: range) -> tuple[int, bytes] | None:
    """Round and anchor of the newest snapshot on the chain that has these layers, if this home keeps these: without a
    checkpoint it goes on from there."""
    known = read_held(directory)
    if known is None or known.layers != held:
        return None
    for path, manifest, _ in _on_chain(directory):
        if manifest.round >= known.since and set(held) <= set(snapshots.layers_in(path, manifest)):
            return manifest.round, manifest.anchor
    return None


def _on_chain(directory: Path) -> Iterator[tuple[Path, SnapshotManifest, StoredChain]]:
    """The intact snapshots on the chain of this folder, the newest first."""
    if not (directory / "genesis").exists() or not (directory / "HEAD").exists():
        return
    chain = read_chain_files(directory, genesis_head(read_genesis(directory)))
    rounds = {head.anchor: head.round for head in chain.heads}
    for round, anchor in reversed(snapshots.names(directory)):
        path = snapshots.path_of(directory, round, anchor)
        if rounds.get(anchor) == round:
            with suppress(BadInput):
                yield path, snapshots.read_manifest(path), chain


def _have_chunks(path: Path, manifest: SnapshotManifest, held: range, fetch: Fetch) -> bool:
    """Write the chunks of these layers that are missing to where they belong in the snapshot's file."""
    vectors, here = path / snapshots.VECTORS, snapshots.layers_in(path, manifest)
    numbers = [
        number
        for layer in held
        for number in manifest.chunks_of(layer)
        if read_chunk(vectors, manifest, number) is None
    ]
    with raising_disk_full(path), vectors.open("r+b") as file:

        def keep(digest: bytes, payload: bytes) -> None:
            for number in numbers:
                if manifest.chunks[number] == digest:
                    os.pwrite(file.fileno(), payload, manifest.offset_bytes(number))

        if not fetch([manifest.chunks[number] for number in numbers], keep):
            return False
        os.fsync(file.fileno())
    adjoins = held.start <= here.stop and here.start <= held.stop
    first, end = (min(held.start, here.start), max(held.stop, here.stop)) if adjoins else (held.start, held.stop)
    if end - first == len(manifest.layers):
        (path / snapshots.LAYERS).unlink(missing_ok=True)
    else:
        write_atomic(path / snapshots.LAYERS, pack((first, end - 1)))
    return True


def _means(updates: Sequence[Update], held: range, parts: Sequence[Part], fragments: int) -> Iterator[bytes]:
    """The digests of the means of these layers."""
    divided = divide(parts, fragments)
    for update in updates:
        averaged = divided[(update.round - 1) % fragments].parts
        for part, digest in zip(averaged, update.parts, strict=True):
            if part.layer in held and digest != VOID:
                yield digest
