"""Founding a run: the node chooses the first peers once and never changes that choice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dht.atomic_files import write_atomic
from dht.board import ask_genesis, genesis_in
from dht.errors import BadInput, RunMismatch
from dht.identity import Identity
from dht.node import Node
from dht.records import (
    GENESIS,
    Genesis,
    Malformed,
    PeerRecord,
    Record,
    sign_record,
    unpack,
    unpack_body,
)
from dht.records import pack as pack_record


@dataclass(frozen=True, kw_only=True)
class FounderPool:
    """The peers that are here before the genesis."""

    agreed: tuple[str, ...]
    """Peers whose initial state is the most common one, sorted."""
    odd: tuple[str, ...]
    """Peers that start from other parameters; they cannot take part."""
    state: bytes
    training: tuple[str, ...]
    """Peers that say they already train in this run. That proves nothing: anybody can say so."""

    def founders(self, count: int, arrived: Sequence[str] = ()) -> tuple[str, ...] | None:
        """The first `count` peers that agree, in the order in which they `arrived`, sorted; None while there are too
        few."""
        if len(self.agreed) < count:  # that a run has begun shows its genesis, which this organiser has signed
            return None
        place = {peer: index for index, peer in enumerate(arrived)}
        first = sorted(self.agreed, key=lambda peer: (place.get(peer, len(place)), peer))
        return tuple(sorted(first[:count]))


def look(heads: Mapping[str, PeerRecord], named: Collection[str] = ()) -> FounderPool:
    """The peers that could found the run: those that the organiser has `named`, or all if it named none."""
    training = tuple(sorted(peer for peer, head in heads.items() if head.round >= 0))
    heads = {peer: head for peer, head in heads.items() if not named or peer in named}
    here = {peer: head for peer, head in heads.items() if head.round == -1 and head.state and not head.leaving}
    counts = Counter(head.state for head in here.values())
    # Of two equally common states the smaller digest, so that the answer does not depend on order.
    state = max(sorted(counts), key=counts.__getitem__, default=b"")
    return FounderPool(
        agreed=tuple(sorted(peer for peer, head in here.items() if head.state == state)),
        odd=tuple(sorted(peer for peer, head in here.items() if head.state != state)),
        state=state,
        training=training,
    )


class GenesisFile:
    """The organiser's one genesis, written to disk before it is sent."""

    def __init__(self, path: Path, identity: Identity, run: bytes) -> None:
        self._path, self._identity, self._run = path, identity, run
        self.genesis: Genesis | None = self._load()

    def decide(self, genesis: Genesis, now_s: float) -> None:
        """Write it to disk, for good. There is no second one."""
        assert self.genesis is None, "a run has one genesis"
        write_atomic(self._path, pack_record(self._sign(genesis, now_s)))
        self.genesis = genesis

    def restore(self, record: Record) -> bool:
        """Restore what this organiser once signed, from a peer that has kept it; returns whether it is that."""
        genesis = genesis_in(record, self._run, self._identity.peer_id)
        if genesis is None:
            return False
        write_atomic(self._path, pack_record(record))
        self.genesis = genesis
        return True

    def record(self, expires: float) -> Record | None:
        return None if self.genesis is None else self._sign(self.genesis, expires)

    def _sign(self, genesis: Genesis, expires: float) -> Record:
        return sign_record(self._identity, self._run, GENESIS, genesis.pack(), expires)

    def _load(self) -> Genesis | None:
        if not self._path.exists():
            return None
        try:
            record = unpack(self._path.read_bytes())
            unpack_body(record)
        except Malformed as error:
            raise BadInput(f"{self._path} is damaged: {error}; restore it from a copy, or start a new run") from error
        genesis = genesis_in(record, self._run, self._identity.peer_id)
        if genesis is None:
            raise RunMismatch(
                f"{self._path} is the genesis of another run or organiser: the spec was changed since, or the key; go "
                "on with the spec as it was, or begin another run in another folder"
            )
        return genesis


ASK_MOST = 8
"""Peers at a time."""


async def restore(node: Node, file: GenesisFile, heads: Mapping[str, PeerRecord]) -> bool:
    """Whether a peer that trains in this run already gave back what this organiser has signed."""
    training = [peer for peer, head in heads.items() if head.round >= 0]
    asked = random.sample(training, min(ASK_MOST, len(training)))
    answers = await asyncio.gather(*(ask_genesis(node, peer) for peer in asked))
    return any(answer is not None and file.restore(answer) for answer in answers)
