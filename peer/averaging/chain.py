"""The link's part of the run directory: the chain, the objects it names, and the voter's memory.

chain/000001.block     an update and its certificate
chain/objects/<hex>    bytes by digest: encoded means of parts, accepted updates
chain/acceptor         what this peer promised and accepted for its head
HEAD                   round number and anchor: the one pointer that a commit switches
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

import msgpack

from dht.errors import RunMismatch
from dht.files import naming_damage, write_whole
from dht.records import Genesis
from peer.averaging.codec import Codec
from peer.averaging.contribution import Contribution
from peer.rounds.layout import Part
from peer.rounds.names import digest_of, genesis_anchor, pack
from peer.rounds.state import Acceptor, Head
from peer.rounds.update import VOID, Block, Update

BLOCKS_PER_ANSWER = 32
ANSWER_BYTES = 8 << 20


class ChainOnDisk:
    """`peer.averaging.driver.Disk` in a run directory. Large writes go through `executor`."""

    def __init__(
        self, directory: Path, genesis: Head, parts: tuple[Part, ...], codec: Codec, executor: Executor,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:  # fmt: skip
        self._directory, self._parts, self.codec = directory, parts, codec
        self._executor, self._call_soon = executor, call_soon
        self._folder = directory / "chain"
        self._objects = self._folder / "objects"
        self._objects.mkdir(parents=True, exist_ok=True)
        self.blocks, self.heads = read_blocks(directory, genesis)
        self._rounds = {head.anchor: index for index, head in enumerate(self.heads)}
        self._contribution: Contribution | None = None
        self._writing: dict[bytes, list[Callable[[], None]]] = {}
        named = {digest for block in self.blocks for digest in block.update.parts}
        self._unused = {bytes.fromhex(path.name) for path in self._objects.iterdir() if not path.suffix} - named
        self._stale: set[bytes] = set()
        """Objects of the round before that no block names; they go with the next commit."""

    @property
    def head(self) -> Head:
        """The newest anchor on this disk."""
        return self.heads[-1]

    @property
    def ancestors(self) -> dict[bytes, int]:
        """Every anchor of the chain, to its round."""
        return {head.anchor: head.round for head in self.heads}

    # ---- the voter's memory ----

    def save_acceptor(self, acceptor: Acceptor) -> None:
        fields = (acceptor.anchor, acceptor.instance, acceptor.promised, acceptor.accepted)
        write_whole(self._folder / "acceptor", pack(fields))

    def load_acceptor(self) -> Acceptor | None:
        path = self._folder / "acceptor"
        if not path.exists():
            return None
        with naming_damage(path):
            return Acceptor(*msgpack.unpackb(path.read_bytes(), use_list=False))

    def accepted_update(self, acceptor: Acceptor | None) -> Update | None:
        """The update that the acceptor names; none if a later commit made its vote history."""
        if acceptor is None or acceptor.accepted is None or acceptor.instance != self.head.instance:
            return None
        payload = self.load(acceptor.accepted[1])
        assert payload is not None, "an update is written before it is accepted"
        return Update.from_bytes(payload)

    # ---- objects ----

    def save_object(self, digest: bytes, payload: bytes) -> None:
        if not (self._objects / digest.hex()).exists():
            self._unused.add(digest)
            write_whole(self._objects / digest.hex(), payload)

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None:
        if digest in self._writing:
            self._writing[digest].append(done)  # two parts may well hold the same bytes, such as zeros
            return
        path = self._objects / digest.hex()
        if path.exists():
            self._call_soon(done)
            return
        self._unused.add(digest)
        self._writing[digest] = [done]
        writing = self._executor.submit(write_whole, path, payload)

        def written() -> None:
            waiting = self._writing.pop(digest)
            writing.result()
            for call in waiting:
                call()

        writing.add_done_callback(lambda _: self._call_soon(written))

    def load(self, digest: bytes) -> bytes | None:
        path = self._objects / digest.hex()
        return path.read_bytes() if path.exists() else None

    def held(self, accepted: Update | None = None) -> dict[bytes, int]:
        """Digests of the objects on disk that no block or only the `accepted` update names, with their sizes.

        A part of that update may well have the bytes of an older one, such as zeros.
        """
        parts = {name for name in (accepted.parts if accepted else ()) if name != VOID}
        paths = {digest: self._objects / digest.hex() for digest in self._unused | parts}
        return {digest: path.stat().st_size for digest, path in paths.items() if path.exists()}

    # ---- the chain ----

    def commit(self, block: Block, head: Head, awaited: frozenset[bytes]) -> None:
        write_whole(_block_path(self._directory, head.round), block.to_bytes())
        write_whole(self._directory / "HEAD", f"{head.round} {head.anchor.hex()}\n".encode())
        self.blocks.append(block)
        self.heads.append(head)
        self._rounds[head.anchor] = len(self.heads) - 1
        named = set(block.update.parts)
        for digest in self._stale - named - awaited:
            (self._objects / digest.hex()).unlink(missing_ok=True)
        # A write may still be under way and its `done` report it as held: it stays for one more round.
        self._stale, self._unused = (self._unused | self._stale & awaited) - named, set()

    def blocks_after(self, anchor: bytes) -> tuple[Block, ...]:
        chosen: list[Block] = []
        size = 0
        for block in self.blocks[self._rounds[anchor] :][:BLOCKS_PER_ANSWER]:
            size += len(block.to_bytes())
            if chosen and size > ANSWER_BYTES:
                break
            chosen.append(block)
        return tuple(chosen)

    # ---- my contribution ----

    def contribution(self, anchor: bytes) -> Contribution | None:
        """What the trainer froze for `anchor`."""
        if self._contribution is None or self._contribution.anchor != anchor:
            self._contribution = Contribution.find(self._directory / "x", anchor, self._parts, self.codec)
        return self._contribution

    def my_part(self, anchor: bytes, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        mine = self.contribution(anchor)
        return None if mine is None else (mine.path(part), mine.payload(part))


def first_head(genesis: Genesis) -> Head:
    """Where every chain of the run begins: the founders are its electorate."""
    anchor = genesis_anchor(genesis.run, genesis.founders, genesis.state)
    return Head(anchor=anchor, round=0, weight=0, electorate=genesis.founders, members=genesis.founders)


def require_same_start(genesis: Genesis, state: bytes) -> None:
    """The initial parameters of this machine, by their digest, are the founders'. Raises RunMismatch."""
    if genesis.state != state:
        raise RunMismatch(
            f"this machine computed other initial parameters ({state.hex()[:12]}) than the founders "
            f"({genesis.state.hex()[:12]}); compare the versions of torch and transformers with theirs"
        )


def read_genesis(directory: Path) -> Genesis:
    """Who founded the run of a run directory. Raises BadInput if that is not known there."""
    path = directory / "genesis"
    with naming_damage(path):
        return Genesis.unpack(path.read_bytes())


def read_blocks(directory: Path, first: Head) -> tuple[list[Block], list[Head]]:
    """The blocks of a run directory up to HEAD, and every head from `first` on.

    A block behind HEAD belongs to a commit that did not finish. Raises BadInput for a file that is damaged or gone.
    """
    blocks: list[Block] = []
    heads = [first]
    pointer = directory / "HEAD"
    if not pointer.exists() and not _block_path(directory, 2).exists():
        return blocks, heads
    with naming_damage(pointer):
        rounds, anchor = pointer.read_text().split()
        last = int(rounds)
    for round in range(1, last + 1):
        with naming_damage(_block_path(directory, round)):
            block = Block.from_bytes(_block_path(directory, round).read_bytes())
            if block.update.parent != heads[-1].anchor:
                raise ValueError("it does not follow the block before")
            heads.append(heads[-1].after(block.update))
            blocks.append(block)
    with naming_damage(pointer):
        if heads[-1].anchor.hex() != anchor:
            raise ValueError("it names another anchor than the last block")
    return blocks, heads


def load_object(directory: Path, digest: bytes) -> bytes:
    """The bytes of this digest in a run directory. Raises BadInput if they are damaged or gone."""
    path = directory / "chain" / "objects" / digest.hex()
    with naming_damage(path):
        payload = path.read_bytes()
        if digest_of(payload) != digest:
            raise ValueError("its bytes are not those that were agreed")
    return payload


def _block_path(directory: Path, round: int) -> Path:
    return directory / "chain" / f"{round:06d}.block"
