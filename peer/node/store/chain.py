"""The link's part of the run directory: the chain, the objects that it names, and the voter's promises.

The files of the chain are those of `peer.node.store.run_directory`; beside them lie

chain/objects/<hex>    bytes by digest: encoded means of parts, accepted updates
chain/way              `peer.node.store.kept_way`
chain/<hex>.tally      what blocks before the base counted for each peer (`peer.consensus.credit.tally`)
chain/acceptors        what this peer promised and accepted in the newest instances

Every change is one switch of HEAD. Files that it will name are written before, files that it no longer names are
removed after, so that a crash in between leaves only files that do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

from dht.atomic_files import raising_damaged, write_atomic
from peer.consensus.codec.codec import Codec
from peer.consensus.credit.tally import Counting, read_tally, tally_path
from peer.consensus.organiser.light_chain import way_of
from peer.consensus.protocol.block import VOID, Block, Update
from peer.consensus.protocol.encoding import DIGEST_BYTES, digest_of, pack, unpack
from peer.consensus.protocol.head import ChainEntry, ChainHead
from peer.consensus.protocol.layout import Part, divide
from peer.consensus.rounds.state import Acceptor
from peer.node.store import snapshots
from peer.node.store.contributions import Contribution
from peer.node.store.kept_way import FILE, KeptWay, read_kept_way, write_kept_way
from peer.node.store.objects import ObjectStore, load_object
from peer.node.store.run_directory import (
    ChainBase,
    base_path,
    block_files,
    block_path,
    pointer_bytes,
    read_chain_files,
)

BLOCKS_PER_ANSWER = 32
ANSWER_BYTES = 8 << 20
KEEP_ROUNDS = 8
QUOTA_BYTES = 4 << 30
NO_CAP = 1 << 63


class ChainStore:
    """`peer.consensus.rounds.driver.ChainPort` in a run directory. Raises BadInput if that is damaged.

    For `keep_rounds` rounds of the spec votes and contributions are kept; `quota_bytes` is room for updates that others
    may need.
    """

    def __init__(
        self, directory: Path, genesis: ChainHead, parts: tuple[Part, ...], codec: Codec, executor: Executor,
        call_soon: Callable[[Callable[[], None]], object], *, fragments: int = 1, keep_rounds: int = KEEP_ROUNDS,
        quota_bytes: int = QUOTA_BYTES, tokens_cap: int = NO_CAP,
    ) -> None:  # fmt: skip
        self._directory, self._divided, self.codec = directory, divide(parts, fragments), codec
        self._keep_rounds, self.quota_bytes = keep_rounds, quota_bytes
        self._counting = Counting(parts=tuple(fragment.parts for fragment in self._divided), tokens_cap=tokens_cap)
        self.objects = ObjectStore(directory / "chain" / "objects", executor, call_soon)
        found = read_chain_files(directory, genesis)
        self.base, self.blocks, self.heads = found.base, list(found.blocks), list(found.heads)
        self.way = read_kept_way(directory / "chain", self.base.head.round)
        self.tally = read_tally(directory, self.base.head)
        """Of the rounds before the first block."""
        self._rounds = {head.anchor: head.round for head in self.heads}
        self._block_bytes = [len(block.to_bytes()) for block in self.blocks]
        self._acceptors = read_acceptors(directory)
        self._contribution: Contribution | None = None
        self._accepted: dict[bytes, tuple[bytes, ...]] = {}
        """Updates that this peer remembers having accepted, each with the digests that it needs."""
        self._remove_leftovers()
        for block in self.blocks:
            self.objects.name(_means(block.update))
        self._name_accepted()

    @property
    def head(self) -> ChainHead:
        return self.heads[-1]

    @property
    def disk_bytes(self) -> int:
        """The bytes that count against `quota_bytes`: the blocks, and the objects that they name."""
        return self.objects.named_bytes + sum(self._block_bytes)

    @property
    def ancestors(self) -> dict[bytes, int]:
        """Every anchor of the chain from the base on, to its round."""
        return dict(self._rounds)

    @property
    def trail(self) -> tuple[ChainEntry, ...]:
        """The newest `keep_rounds` blocks, oldest first, each with the head before it."""
        steps = [ChainEntry(before, block) for before, block in zip(self.heads, self.blocks, strict=False)]
        return tuple(steps[-self._keep_rounds :])

    @property
    def voters(self) -> frozenset[str]:
        """All peers that this chain has elected, as far as it is here."""
        return frozenset(peer for head in self.heads for peer in head.electorate)

    # ---- the voter's memory ----

    def save_acceptor(self, acceptor: Acceptor) -> None:
        """Keep this in place of the earlier memory of its instance, and forget anchors that were decided long ago."""
        oldest = self.head.round - self._keep_rounds
        kept = {**self._acceptors, acceptor.instance: (self.head.round, acceptor)}
        kept = {instance: item for instance, item in kept.items() if item[0] >= oldest}
        packed = pack(tuple((round, item.packed()) for round, item in kept.values()))
        write_atomic(self._directory / "chain" / "acceptors", digest_of(packed) + packed)
        self._acceptors = kept
        self._name_accepted()

    def load_acceptors(self) -> dict[bytes, Acceptor]:
        return {instance: acceptor for instance, (_, acceptor) in self._acceptors.items()}

    def accepted_update(self, acceptor: Acceptor | None) -> Update | None:
        """The update that the acceptor names. Raises BadInput if it is damaged."""
        if acceptor is None or acceptor.accepted is None:
            return None
        return Update.from_bytes(load_object(self._directory, acceptor.accepted[1]))

    def _name_accepted(self) -> None:
        """An accepted update can be asked for as long as the vote is remembered."""
        accepted = {item.accepted[1] for _, item in self._acceptors.values() if item.accepted is not None}
        for digest in accepted - self._accepted.keys():
            update = Update.from_bytes(load_object(self._directory, digest))
            self._accepted[digest] = (digest, *_means(update))
            self.objects.name(self._accepted[digest])
        for digest in self._accepted.keys() - accepted:
            self.objects.unname(self._accepted.pop(digest))

    # ---- objects ----

    def save_object(self, digest: bytes, payload: bytes) -> None:
        self.objects.save(digest, payload)

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None:
        self.objects.store(digest, payload, done)

    def load(self, digest: bytes) -> bytes | None:
        return self.objects.load(digest)

    def held(self) -> dict[bytes, int]:
        """Digests of the objects on disk that belong to no block, or to accepted updates, with their sizes. A part
        of an accepted update may have the bytes of an older one, such as zeros."""
        return self.objects.held(digest for named in self._accepted.values() for digest in named)

    # ---- the chain ----

    def commit(self, block: Block, head: ChainHead, awaited: frozenset[bytes]) -> None:
        """Append a block; drop the oldest ones beyond the quota, and objects that no block names, except the awaited
        ones."""
        packed = block.to_bytes()
        write_atomic(block_path(self._directory, head.round), packed)
        self.blocks.append(block)
        self._block_bytes.append(len(packed))
        self.heads.append(head)
        self._rounds[head.anchor] = head.round
        self.objects.name(_means(block.update))
        dropped = self._beyond_quota()
        if dropped:
            self.base = ChainBase.after(self.updates_up_to(self.heads[dropped].anchor))
            write_atomic(base_path(self._directory, self.base.head.anchor), self.base.to_bytes())
            self._keep_way(dropped)
            self._tally_up(dropped)
        self._switch()
        self._drop_blocks(dropped)
        self.objects.sweep(awaited)

    def head_at(self, anchor: bytes) -> ChainHead:
        return self.heads[self._index(anchor)]

    def blocks_after(self, anchor: bytes) -> tuple[Block, ...]:
        """The blocks after an anchor, as many as one answer may carry; none if they are no longer here."""
        if anchor not in self._rounds:
            return ()
        chosen: list[Block] = []
        size = 0
        first = self._index(anchor)
        for block in self.blocks[first : first + BLOCKS_PER_ANSWER]:
            size += len(block.to_bytes())
            if chosen and size > ANSWER_BYTES:
                break
            chosen.append(block)
        return tuple(chosen)

    def way_between(self, start: int, end: int) -> tuple[Block, ...]:
        """The blocks that are needed to follow this chain from one round to another, or, if that is 0, to its head;
        none if they are not all here."""
        base, last = self.base.head, end or self.head.round
        if not max(start, base.round) < last <= self.head.round:
            return ()
        if start >= base.round:
            index = start - base.round
            return way_of(self.blocks[index : last - base.round], self.heads[index])
        kept = self.way.since(start)
        return () if kept is None else (*kept, *way_of(self.blocks[: last - base.round], base))

    def updates_up_to(self, anchor: bytes) -> tuple[Update, ...]:
        """The newest updates that led to an anchor on the chain, oldest first: one more than `keep_rounds`."""
        updates = [block.update for block in self.blocks[: self._index(anchor)]]
        return (*self.base.before, *updates)[-self._keep_rounds - 1 :]

    def _switch(self) -> None:
        write_atomic(self._directory / "HEAD", pointer_bytes(self.head, self.base))

    def _index(self, anchor: bytes) -> int:
        return self._rounds[anchor] - self.heads[0].round

    def _beyond_quota(self) -> int:
        """How many of the oldest blocks go: their votes are forgotten, and no snapshot is older than they are."""
        total_bytes = self.disk_bytes
        taken = [round for round, anchor in snapshots.names(self._directory) if self._rounds.get(anchor) == round]
        named = snapshots.named_by_checkpoints(self._directory)
        needed = [round for round, anchor in named if self._rounds.get(anchor) == round]
        last = min(self.head.round - self._keep_rounds, *taken[-2:], *needed) if len(taken) > 1 else 0
        dropped = 0
        while total_bytes > self.quota_bytes and self.heads[dropped].round < last:
            block = self.blocks[dropped]
            total_bytes -= self._block_bytes[dropped] + self.objects.freed_bytes(_means(block.update))
            dropped += 1
        return dropped

    def _keep_way(self, count: int) -> None:
        """Keep what is needed of the oldest blocks, which are dropped."""
        way = self.way.and_then(self.blocks[:count], self.heads[0])
        if way != self.way or not (self._directory / "chain" / FILE).exists():
            write_kept_way(self._directory / "chain", way)
        self.way = way

    def _tally_up(self, count: int) -> None:
        """Count the oldest blocks, which are dropped."""
        for block, after in zip(self.blocks[:count], self.heads[1 : count + 1], strict=True):
            self.tally = self.tally.plus(self._counting.of(block.update), after)
        write_atomic(tally_path(self._directory, self.tally.anchor), self.tally.to_bytes())

    def _drop_blocks(self, count: int) -> None:
        for block, before in zip(self.blocks[:count], self.heads[:count], strict=True):
            self.objects.unname(_means(block.update))
            del self._rounds[before.anchor]
        del self.blocks[:count], self._block_bytes[:count], self.heads[:count]
        if count:
            self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        for path in block_files(self._directory):
            if int(path.stem) <= self.base.head.round:
                path.unlink()
        for path in (*self._directory.glob("chain/*.base"), *self._directory.glob("chain/*.tally")):
            if path.stem != self.base.head.anchor.hex():
                path.unlink()

    # ---- my contribution ----

    def contribution(self, anchor: bytes) -> Contribution | None:
        """The trainer's contribution for `anchor`; None also if that is not on the chain as it is here."""
        if self._contribution is not None and self._contribution.anchor == anchor:
            return self._contribution
        round = self._rounds.get(anchor)
        if round is None:
            return None
        parts = self._divided[round % len(self._divided)].parts
        self._contribution = Contribution.find(self._directory / "contributions", anchor, parts, self.codec)
        return self._contribution

    def my_part(self, anchor: bytes, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        mine = self.contribution(anchor)
        if mine is None or part not in mine.here:
            return None
        return mine.path(part) if mine.leaves else (), mine.payload(part)

    def my_path(self, anchor: bytes, part: int) -> tuple[bytes, ...] | None:
        """The Merkle path of a part, also of one that another home of a cluster has; None in a home that need not
        know it."""
        mine = self.contribution(anchor)
        return mine.path(part) if mine is not None and part < len(mine.leaves) else None


def read_acceptors(directory: Path) -> dict[bytes, tuple[int, Acceptor]]:
    """The voter's memory in a run directory: by instance, with the round. Raises BadInput."""
    path = directory / "chain" / "acceptors"
    if not path.exists():
        return {}
    with raising_damaged(path):
        content = path.read_bytes()
        if digest_of(content[DIGEST_BYTES:]) != content[:DIGEST_BYTES]:
            raise ValueError("its bytes are not those that were written")
        rows = ((round, Acceptor.unpacked(item)) for round, item in unpack(content[DIGEST_BYTES:]))
        return {acceptor.instance: (round, acceptor) for round, acceptor in rows}


def start_chain_at(directory: Path, base: ChainBase, way: KeptWay) -> None:
    """Begin the chain of a stopped link at `base`, to which `way` leads; what was there before no longer counts."""
    (directory / "chain").mkdir(exist_ok=True)
    write_kept_way(directory / "chain", way)
    write_atomic(base_path(directory, base.head.anchor), base.to_bytes())
    write_atomic(directory / "HEAD", pointer_bytes(base.head, base))


def _means(update: Update) -> tuple[bytes, ...]:
    return tuple(part for part in update.parts if part != VOID)
