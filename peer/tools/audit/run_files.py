"""The files of a run directory, each read with all the checks that it allows by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgpack

from dht.errors import BadChain, BadInput
from dht.identity import verify
from dht.protocol_version import require_this_version
from dht.records import Genesis, unpack_body, verify_record
from dht.records import pack as pack_record
from dht.records import unpack as unpack_record
from peer.consensus.credit.tally import Tally
from peer.consensus.protocol.block import Block, Update
from peer.consensus.protocol.encoding import DIGEST_BYTES, digest_of
from peer.consensus.protocol.head import ChainHead
from peer.node.store import snapshots
from peer.node.store.chunked_file import damaged_chunks
from peer.node.store.run_directory import ChainBase, base_path, block_files, block_path, genesis_head
from peer.node.store.snapshots import SnapshotManifest
from peer.schema import spec as specs
from peer.schema.spec import RunSpec

T = TypeVar("T")
TRIES = 3
"""A peer at work may commit or drop blocks while this reads: then it is read again."""
NOT_AS_WRITTEN = "its bytes are not those that were written"
NOT_AS_AGREED = "its bytes are not those that were agreed"


@dataclass(frozen=True)
class SignatureChecker:
    """`peer.consensus.protocol.encoding.Keys` of somebody who only checks."""

    run: bytes

    def sign(self, kind: str, payload: bytes) -> bytes:
        raise AssertionError("an audit signs nothing")

    def verify(self, peer: str, kind: str, payload: bytes, signature: bytes) -> bool:
        return verify(peer, self.run, kind, payload, signature)


@dataclass(frozen=True)
class Pointer:
    """What HEAD says."""

    round: int
    anchor: bytes
    base: bytes
    """The anchor where the blocks begin; empty for the genesis."""


class RunFiles:
    """A run directory that is only read. Every method raises BadLink."""

    def __init__(self, directory: Path) -> None:
        if not (directory / "chain").is_dir():
            raise BadInput(f"{directory} holds no chain; name the folder of a peer")
        require_this_version(directory, by_genesis=False)
        self.directory = directory
        self.head_path = directory / "HEAD"

    def settled(self, read: Callable[[], T]) -> T:
        """What `read` finds; once more if the peer of this directory went on meanwhile and it failed for that."""
        for _ in range(TRIES - 1):
            seen = self._head_bytes()
            try:
                return read()
            except BadLink:
                if self.head_path.exists() and self._head_bytes() == seen:
                    raise
        return read()

    def _head_bytes(self) -> bytes:
        return self.head_path.read_bytes() if self.head_path.exists() else b""

    def beginning(self) -> tuple[RunSpec, Genesis]:
        spec_path, genesis_path = self.directory / "spec.toml", self.directory / "genesis"
        with blaming(0, spec_path):
            text = spec_path.read_bytes().decode()
            spec = specs.parse(text)
            require(specs.dump(spec) == text, NOT_AS_WRITTEN)
        with blaming(0, genesis_path):
            packed = genesis_path.read_bytes()
            record = unpack_record(packed)
            genesis = unpack_body(record)
            require(pack_record(record) == packed and isinstance(genesis, Genesis), NOT_AS_WRITTEN)
            assert isinstance(genesis, Genesis)
            require(verify_record(record, genesis.run), f"{record.author} has not signed it")
        if genesis.run != spec.digest():
            raise BadLink(0, spec_path, "it is not the spec of the run that the organiser signed")
        return spec, genesis

    def pointer(self, genesis: Genesis) -> Pointer:
        """HEAD. Without one only the first commit of all can have written a block."""
        start = genesis_head(genesis)
        numbers = sorted(int(path.stem) for path in block_files(self.directory))
        if not self.head_path.exists() and numbers in ([], [1]):
            return Pointer(0, start.anchor, b"")
        with blaming(max(numbers, default=0), self.head_path):
            text = self.head_path.read_bytes().decode()
            round, anchor, *base = text.split()
            found = Pointer(int(round), bytes.fromhex(anchor), bytes.fromhex("".join(base)))
            words = (str(found.round), found.anchor.hex(), found.base.hex())
            require(text == f"{' '.join(word for word in words if word)}\n", NOT_AS_WRITTEN)
        return found

    def base(self, pointer: Pointer, genesis: Genesis) -> ChainBase:
        if not pointer.base:
            return ChainBase(head=genesis_head(genesis))
        path = base_path(self.directory, pointer.base)
        others = [other for other in path.parent.glob("*.base") if other != path]
        if not path.exists() and others:
            raise BadLink(pointer.round, self.head_path, "the model where it says that the blocks begin is not here")
        return self.read_base(path, pointer.round)

    def read_base(self, path: Path, round: int) -> ChainBase:
        """The updates that led to an anchor; their digests make its name."""
        with blaming(round, path):
            packed = path.read_bytes()
            base = ChainBase.from_bytes(packed)
            require(base.to_bytes() == packed and base.head.anchor.hex() == path.stem, NOT_AS_AGREED)
        return base

    def block(self, round: int) -> Block:
        return self.read_block(block_path(self.directory, round), round)

    def read_block(self, path: Path, round: int) -> Block:
        with blaming(round, path):
            packed = path.read_bytes()
            block = Block.from_bytes(packed)
            require(block.to_bytes() == packed, "it is not canonical msgpack")
            require(block.update.round == round, f"it is of round {block.update.round}")
        return block

    def part(self, round: int, name: bytes, size_bytes: int | None = None) -> bytes:
        path = self.directory / "chain" / "objects" / name.hex()
        with blaming(round, path):
            payload = path.read_bytes()
            require(digest_of(payload) == name, NOT_AS_AGREED)
            require(size_bytes in (None, len(payload)), f"it has {len(payload)} bytes, the part has {size_bytes}")
        return payload

    def check_pointer(self, pointer: Pointer, head: ChainHead) -> None:
        if not self.head_path.exists() and head.round == 0:
            return
        with blaming(head.round, self.head_path):
            require(pointer.anchor == head.anchor, "it names another model than the last block makes")

    # ---- snapshots ----

    def manifest(self, round: int, anchor: bytes, run: bytes, layers: tuple[int, ...]) -> SnapshotManifest:
        path = snapshots.path_of(self.directory, round, anchor)
        with blaming(round, path / snapshots.MANIFEST):
            manifest = snapshots.read_manifest(path)
            require((manifest.run, manifest.layers) == (run, layers), "it is of another run or model")
        return manifest

    def check_vectors(self, manifest: SnapshotManifest) -> None:
        """θ and m, chunk by chunk."""
        folder = snapshots.path_of(self.directory, manifest.round, manifest.anchor)
        path = folder / snapshots.VECTORS
        with blaming(manifest.round, path):
            require(path.stat().st_size == manifest.vector_bytes, "it has another size than the model's")
            bad = damaged_chunks(path, manifest, snapshots.chunks_in_folder(folder, manifest))
            require(not bad, f"its chunk {bad[:1]} is not the one that its manifest names")

    # ---- what lies beside the chain ----

    def objects(self) -> Iterator[bytes]:
        for path in sorted((self.directory / "chain" / "objects").glob("*")):
            if not path.suffix:
                with blaming(0, path):
                    name = bytes.fromhex(path.name)
                    require(len(name) == DIGEST_BYTES, "its name is no digest")
                yield name

    def check_tallies(self, round: int) -> None:
        """What blocks counted that are not here any more: their sums cannot be made again, but are as they were."""
        for path in sorted((self.directory / "chain").glob("*.tally")):
            with blaming(round, path):
                require(Tally.from_bytes(path.read_bytes()).anchor.hex() == path.stem, "it is of another model")

    def check_acceptors(self, round: int) -> None:
        """What this peer promised and accepted; nobody can check that but by the digest in front."""
        path = self.directory / "chain" / "acceptors"
        if path.exists():
            with blaming(round, path):
                content = path.read_bytes()
                require(digest_of(content[DIGEST_BYTES:]) == content[:DIGEST_BYTES], NOT_AS_WRITTEN)


def signed_for_its_parent(update: Update, run: bytes) -> bool:
    """Whether all members pledged to the anchor that the update follows, whatever that is."""
    return all(
        header.anchor == update.parent and header.genuine(SignatureChecker(run)) for header in update.members
    )  # fmt: skip


class BadLink(BadChain):
    """A file that is not what the peers agreed on; `round` is the first one that cannot be trusted."""

    def __init__(self, round: int, path: Path, why: str) -> None:
        super().__init__(f"round {round}: {path}: {why}")
        self.round, self.path, self.why = round, path, why


@contextmanager
def blaming(round: int, path: Path) -> Iterator[None]:
    """Raises BadLink for bytes that do not parse, or whatever else the ValueError says, and for a file that is gone."""
    try:
        yield
    except FileNotFoundError as error:
        raise BadLink(round, path, "it is gone") from error
    except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
        raise BadLink(round, path, str(error) or type(error).__name__) from error


def require(condition: bool, why: str) -> None:
    """Raises ValueError, for `blaming` to turn into a fault."""
    if not condition:
        raise ValueError(why)
