"""The files of the chain for readers: the anchor where it begins, and its blocks.

HEAD                          round and anchor of the newest block, and the base's anchor unless that is the genesis:
                              the one pointer that a commit and a new base switch
chain/000017.block            an update and its certificate
chain/<anchor hex>.base       the updates that led to the anchor where the blocks begin, the last one to it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgpack

from dht.atomic_files import raising_damaged
from dht.errors import BadInput, RunMismatch
from dht.protocol_version import require_this_version
from dht.records import Genesis, unpack_body
from dht.records import unpack as unpack_record
from peer.consensus.protocol.block import Block, Roster, Update
from peer.consensus.protocol.encoding import pack
from peer.consensus.protocol.head import ChainHead, genesis_anchor, next_anchor

READ_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class ChainBase:
    """Where a chain on disk begins: the genesis, or an anchor whose earlier blocks others may have."""

    head: ChainHead
    before: tuple[Update, ...] = ()
    """The newest updates up to it, oldest first; none at the genesis."""

    @classmethod
    def after(cls, before: Sequence[Update]) -> ChainBase:
        """The anchor to which these updates lead. Raises ValueError if they do not follow each other."""
        if not before:
            raise ValueError("no update leads to it")
        for update, following in pairwise(before):
            if next_anchor(update.parent, update.digest) != following.parent:
                raise ValueError("its updates do not follow each other")
        return cls(head=head_after(before[-1]), before=tuple(before))

    def to_bytes(self) -> bytes:
        return pack(tuple(update.to_bytes() for update in self.before))

    @classmethod
    def from_bytes(cls, packed: bytes) -> ChainBase:
        """Raises ValueError."""
        items = msgpack.unpackb(packed, use_list=False)
        return cls.after([Update.from_bytes(item) for item in items])


@dataclass(frozen=True, kw_only=True)
class StoredChain:
    """The chain of a run directory."""

    base: ChainBase
    blocks: tuple[Block, ...]
    heads: tuple[ChainHead, ...]
    """The head of the base, and one per block."""


def genesis_head(genesis: Genesis) -> ChainHead:
    """Where every chain of the run begins: the founders are its electorate and the known peers."""
    anchor = genesis_anchor(genesis.run, genesis.founders, genesis.state)
    return ChainHead(
        anchor=anchor, round=0, weight=0, electorate=genesis.founders, members=genesis.founders,
        roster=Roster(0, genesis.founders),
    )  # fmt: skip


def head_after(update: Update) -> ChainHead:
    """The head that this update made, from the update alone."""
    before = ChainHead(anchor=update.parent, round=update.round - 1, weight=0, electorate=(), members=())
    return before.after(update)


def require_same_start(genesis: Genesis, state: bytes) -> None:
    """Requires the digest of this machine's initial parameters to be the founders'. Raises RunMismatch."""
    if genesis.state != state:
        raise RunMismatch(
            f"this machine computed other initial parameters ({state.hex()[:12]}) than the founders "
            f"({genesis.state.hex()[:12]}); compare the versions of torch and transformers with theirs"
        )


def read_genesis(directory: Path) -> Genesis:
    """The founders of the run of a run directory. Raises BadInput if the file is missing there. It is the
    organiser's record, whose signature was checked before it was written."""
    require_this_version(directory)
    path = directory / "genesis"
    with raising_damaged(path):
        body = unpack_body(unpack_record(path.read_bytes()))
        if not isinstance(body, Genesis):
            raise ValueError("it is another record")
        return body


def read_organiser(directory: Path) -> str:
    """The organiser of the run: the peer id that signed the genesis. Raises BadInput as `read_genesis` does."""
    path = directory / "genesis"
    with raising_damaged(path):
        return unpack_record(path.read_bytes()).author


def read_chain_files(directory: Path, genesis: ChainHead) -> StoredChain:
    """The blocks of a run directory from its base up to HEAD, also while its peer writes. Raises BadInput for a
    damaged or missing file."""
    require_this_version(directory)
    pointer = directory / "HEAD"
    for _ in range(READ_TRIES - 1):
        seen = pointer.read_bytes() if pointer.exists() else b""
        try:
            return _read_chain_files(directory, genesis)
        except BadInput:
            if pointer.exists() and pointer.read_bytes() == seen:
                raise
    return _read_chain_files(directory, genesis)


def read_base_at(directory: Path, genesis: ChainHead, anchor: bytes, round: int, most: int) -> ChainBase:
    """An anchor on the chain on disk with at most this many of the updates that led to it. Raises BadInput for a
    damaged or missing file, and if the chain has meanwhile left that anchor."""
    pointer = directory / "HEAD"
    base = read_base(directory, read_pointer(pointer)[2]) if read_pointer(pointer)[2] else ChainBase(head=genesis)
    updates = [update for update in base.before if update.round > round - most]
    for number in range(max(base.head.round, round - most) + 1, round + 1):
        path = block_path(directory, number)
        with raising_damaged(path):
            updates.append(Block.from_bytes(path.read_bytes()).update)
    with raising_damaged(block_path(directory, round)):
        found = ChainBase.after(updates)
        if found.head.anchor != anchor:
            raise ValueError("it does not lead to the model where this peer stands")
    return found


def read_pointer(path: Path) -> tuple[int, bytes, bytes]:
    """Round and anchor of the head, and the anchor of the base, empty for the genesis. Raises BadInput."""
    with raising_damaged(path):
        round, anchor, *base = path.read_text().split()
        return int(round), bytes.fromhex(anchor), bytes.fromhex(base[0]) if base else b""


def read_base(directory: Path, anchor: bytes) -> ChainBase:
    path = base_path(directory, anchor)
    with raising_damaged(path):
        base = ChainBase.from_bytes(path.read_bytes())
        if base.head.anchor != anchor:
            raise ValueError("it leads to another model than HEAD says")
    return base


def block_path(directory: Path, round: int) -> Path:
    return directory / "chain" / f"{round:06d}.block"


def block_files(directory: Path) -> list[Path]:
    return list((directory / "chain").glob("*.block"))


def base_path(directory: Path, anchor: bytes) -> Path:
    return directory / "chain" / f"{anchor.hex()}.base"


def pointer_bytes(head: ChainHead, base: ChainBase) -> bytes:
    words = [str(head.round), head.anchor.hex()] + ([base.head.anchor.hex()] if base.before else [])
    return f"{' '.join(words)}\n".encode()


def _read_chain_files(directory: Path, genesis: ChainHead) -> StoredChain:
    pointer = directory / "HEAD"
    # The first commit of all writes its block and then HEAD.
    if not pointer.exists() and not {path.stem for path in block_files(directory)} - {"000001"}:
        return StoredChain(base=ChainBase(head=genesis), blocks=(), heads=(genesis,))
    last, anchor, begins_at = read_pointer(pointer)
    base = read_base(directory, begins_at) if begins_at else ChainBase(head=genesis)
    blocks: list[Block] = []
    heads = [base.head]
    # A block behind HEAD belongs to a commit that did not finish.
    for round in range(base.head.round + 1, last + 1):
        with raising_damaged(block_path(directory, round)):
            block = Block.from_bytes(block_path(directory, round).read_bytes())
            if block.update.parent != heads[-1].anchor:
                raise ValueError("it does not follow the block before")
            heads.append(heads[-1].after(block.update))
            blocks.append(block)
    with raising_damaged(pointer):
        if heads[-1].anchor != anchor:
            raise ValueError("it names another model than the last block")
    return StoredChain(base=base, blocks=tuple(blocks), heads=tuple(heads))
