"""Removes what a disk has damaged of a chain before its peer starts. The peer then asks others for it.

Each anchor names everything that led to it, and votes name their update. So a chain on disk is valid as far as its
blocks follow each other and the votes of the newest ones hold. At the first block that fails, HEAD is switched back to
the block before it; the rest arrives as for any peer that was away.

Nobody else has what this voter promised: a peer with a damaged `chain/acceptors` does not start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dht.atomic_files import raising_damaged, write_atomic
from dht.errors import BadInput
from dht.protocol_version import require_this_version
from dht.records import Genesis, unpack, verify_record
from peer.consensus.protocol.block import VOID, Block, Update
from peer.consensus.protocol.encoding import Keys
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.validation import after_restarts, fault_of_votes
from peer.node.store import snapshots
from peer.node.store.chain import read_acceptors
from peer.node.store.held_layers import read_held
from peer.node.store.objects import load_object, object_path
from peer.node.store.run_directory import (
    ChainBase,
    base_path,
    block_files,
    block_path,
    genesis_head,
    pointer_bytes,
    read_base,
    read_genesis,
    read_organiser,
    read_pointer,
)

VOTES_CHECKED = 256
"""Of so many of the newest blocks: a voter's signature takes a tenth of a millisecond."""
ASKED = "is asked of the others again"


def repair_chain(directory: Path, keys: Keys) -> tuple[str, ...]:
    """Cut the chain of a stopped peer back to where it is intact; returns a line for each damage. Nothing is written
    if all is intact. Means are checked as far as a start reads them: those of the rounds since the snapshots in use.
    Raises BadInput for a folder of another version, and for damage that no other peer can mend."""
    require_this_version(directory)
    if not (directory / "genesis").exists():
        return ()
    try:
        genesis = genesis_head(_signed_genesis(directory))
    except BadInput as error:
        (directory / "genesis").unlink()
        return (f"{_damage(error)}: it {ASKED}",)
    if (directory / "HEAD").exists() or len(block_files(directory)) > 1:
        return tuple(_repair(directory, genesis, keys))
    return ()


def _signed_genesis(directory: Path) -> Genesis:
    """Raises BadInput if it is not as its organiser signed it."""
    genesis, path = read_genesis(directory), directory / "genesis"
    with raising_damaged(path):
        if not verify_record(unpack(path.read_bytes()), genesis.run):
            raise ValueError("its organiser has not signed it")
    return genesis


@dataclass(frozen=True, kw_only=True)
class _Way:
    """Blocks on disk that follow each other."""

    base: ChainBase
    heads: tuple[ChainHead, ...]
    """The head of the base, and one per block."""
    blocks: tuple[Block, ...] = ()
    end: str = ""
    """Why the file after the last block is not the next one; empty if there is no file."""
    instead_of: str = ""
    """Why the way from the base that HEAD names does not lead to it, where this one does."""

    def until(self, count: int, end: str) -> _Way:
        return replace(self, heads=self.heads[: count + 1], blocks=self.blocks[:count], end=end)

    @property
    def pointer(self) -> bytes:
        return pointer_bytes(self.heads[-1], self.base)


def _repair(directory: Path, genesis: ChainHead, keys: Keys) -> list[str]:
    pointer, said = directory / "HEAD", []
    try:
        last, anchor, begins_at = read_pointer(pointer)
    except BadInput as error:
        last, anchor, begins_at = 0, b"", b""
        said.append(_damage(error))
    way = _way_to(directory, genesis, anchor, begins_at, keys)
    _mend_accepted(directory, way.blocks)
    way = _whole(directory, _up_to(directory, way, anchor), keys)
    if not _is_written(directory, way.base):
        path = base_path(directory, way.base.head.anchor)
        write_atomic(path, way.base.to_bytes())
        if way.base.head.anchor == begins_at:
            return [f"{path} was damaged, and is written again from a snapshot"]
    if pointer.exists() and pointer.read_bytes() == way.pointer:
        return []
    round = way.heads[-1].round
    missing = block_path(directory, round + 1)
    if way.end:
        said.append(way.end)
        missing.unlink(missing_ok=True)
    elif not said:
        is_short = round < last and way.heads[-1].anchor != anchor
        said.append(f"{missing} is gone" if is_short else way.instead_of or f"{pointer} is damaged")
    write_atomic(pointer, way.pointer)
    return [f"{'; '.join(said)}: this peer stands at round {round}, and what follows {ASKED}"]


def _way_to(directory: Path, genesis: ChainHead, anchor: bytes, begins_at: bytes, keys: Keys) -> _Way:
    """The blocks that lead to HEAD, from the base that HEAD names; otherwise the longest chain, and of equal ones
    the earliest."""
    best: _Way | None = None
    lost = ""
    for base in _bases(directory, genesis, begins_at):
        way = _along(directory, base)
        if any(head.anchor == anchor for head in way.heads):
            return replace(way, instead_of=lost)
        lost = lost or _with_votes(directory, way, keys).end
        if best is None or way.heads[-1].round > best.heads[-1].round:
            best = way
    assert best is not None, "a chain may begin at the genesis"
    return best


def _bases(directory: Path, genesis: ChainHead, begins_at: bytes) -> Iterator[ChainBase]:
    """Where a chain on this disk may begin: at the base that HEAD names, at the genesis, and at any snapshot."""
    named = [begins_at] if begins_at else []
    if not begins_at:
        yield ChainBase(head=genesis)
        with suppress(ValueError):
            named = [bytes.fromhex(path.stem) for path in sorted((directory / "chain").glob("*.base"))]
    for anchor in named:
        with suppress(BadInput):
            yield read_base(directory, anchor)
    for round, anchor in snapshots.names(directory):
        with suppress(BadInput):
            yield snapshots.read_manifest(snapshots.path_of(directory, round, anchor)).base
    if begins_at:
        yield ChainBase(head=genesis)


def _is_written(directory: Path, base: ChainBase) -> bool:
    path = base_path(directory, base.head.anchor)
    return not base.before or (path.exists() and path.read_bytes() == base.to_bytes())


def _along(directory: Path, base: ChainBase) -> _Way:
    heads, blocks = [base.head], list[Block]()
    while (path := block_path(directory, heads[-1].round + 1)).exists():
        try:
            with raising_damaged(path):
                block = Block.from_bytes(path.read_bytes())
                if block.update.parent != heads[-1].anchor:
                    raise ValueError("it does not follow the block before")
        except BadInput as error:
            return _Way(base=base, heads=tuple(heads), blocks=tuple(blocks), end=_damage(error))
        blocks.append(block)
        heads.append(heads[-1].after(block.update))
    return _Way(base=base, heads=tuple(heads), blocks=tuple(blocks))


def _up_to(directory: Path, way: _Way, anchor: bytes) -> _Way:
    """Up to HEAD: a block after it belongs to a commit that did not finish. If HEAD is lost, all of it."""
    for count, head in enumerate(way.heads):
        if head.anchor == anchor:
            return way.until(count, "")
    return way


def _whole(directory: Path, way: _Way, keys: Keys) -> _Way:
    """Up to the first block without valid votes, or with a damaged mean."""
    way = _with_votes(directory, way, keys)
    holds_all, first = read_held(directory) is None, _first_read(directory, way)
    for count, block in enumerate(way.blocks):
        if block.update.round > first and (fault := _drop_damaged_means(directory, block.update, holds_all)):
            return way.until(count, fault)
    return way


def _with_votes(directory: Path, way: _Way, keys: Keys) -> _Way:
    """Up to the first block without valid votes, of the last VOTES_CHECKED ones."""
    for count, block in list(enumerate(way.blocks))[-VOTES_CHECKED:]:
        head, phase, fault = after_restarts(keys, read_organiser(directory), way.heads[count], block)
        if fault or (fault := fault_of_votes(keys, head, block.votes, block.update.digest, phase)):
            return way.until(count, f"{block_path(directory, block.update.round)} is damaged ({fault})")
    return way


def _first_read(directory: Path, way: _Way) -> int:
    """The round of the earliest snapshot from which a start may go on: the newest one, or that of a checkpoint."""
    on_way = {head.anchor: head.round for head in way.heads}
    taken = [round for round, anchor in snapshots.names(directory) if on_way.get(anchor) == round]
    named = [round for round, anchor in snapshots.named_by_checkpoints(directory) if on_way.get(anchor) == round]
    return min([*taken[-1:], *(round for round in named if round in taken)], default=way.base.head.round)


def _drop_damaged_means(directory: Path, update: Update, holds_all: bool) -> str:
    """Remove a mean of an update whose bytes are damaged; returns it, if there was one. A home of a cluster does not
    hold all of them."""
    fault = ""
    for digest in {part for part in update.parts if part != VOID}:
        path = object_path(directory, digest)
        if not path.exists() and not holds_all:
            continue
        try:
            load_object(directory, digest)
        except BadInput as error:
            path.unlink(missing_ok=True)
            fault = fault or _damage(error)
    return fault


def _mend_accepted(directory: Path, blocks: Iterable[Block]) -> None:
    """Updates that this voter accepted, and that were decided, are in their blocks. Raises BadInput for a damaged
    memory."""
    decided = {block.update.digest: block.update for block in blocks}
    for _, acceptor in read_acceptors(directory).values():
        if acceptor.accepted is None or acceptor.accepted[1] not in decided:
            continue
        digest = acceptor.accepted[1]
        try:
            load_object(directory, digest)
        except BadInput:
            write_atomic(object_path(directory, digest), decided[digest].to_bytes())


def _damage(error: BadInput) -> str:
    """What is damaged, without what a person would have to do."""
    return str(error).partition("; ")[0]
