"""The notice board: peers publish small signed records about themselves, which expire; and how such
records are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from dht.errors import Unreachable
from dht.records import (
    HEAD,
    MAX_RECORD_BYTES,
    Genesis,
    Malformed,
    PeerRecord,
    Record,
    unpack,
    unpack_body,
    verify_record,
)
from dht.streams.base import Asking

ASK_GENESIS_S = 5.0


class Board(Protocol):
    """Publish and read records; the same contract on hivemind's DHT and in memory."""

    async def publish(self, topic: str, record: Record, ttl_s: float) -> bool:
        """Store `record` under (`topic`, its author); a newer one replaces it.

        False when no node stored it. `ttl_s` is at most `records.MAX_TTL_S`.
        """

    async def read(self, topic: str) -> dict[str, Record]:
        """Every record under `topic` that is valid and has not expired, by its author's peer id."""


async def read_peers(board: Board) -> dict[str, PeerRecord]:
    """What each peer on the board says about itself, by peer id."""
    return peers_in(await board.read(HEAD))


def peers_in(said: Mapping[str, Record]) -> dict[str, PeerRecord]:
    """Those of these records that are about a peer, by peer id."""
    heads = {}
    for peer, record in said.items():
        with suppress(Malformed):
            body = unpack_body(record)
            if isinstance(body, PeerRecord):
                heads[peer] = body
    return heads


async def ask_genesis(node: Asking, peer: str) -> Record | None:
    """The genesis that a peer keeps, by whoever signed it: its record on the board expires soon after the
    organiser's node is gone."""
    with suppress(Unreachable, Malformed):
        served = await node.ask(peer, "genesis", ASK_GENESIS_S, MAX_RECORD_BYTES)
        return None if served is None else unpack(served)
    return None


def genesis_in(record: Record, run: bytes, organiser: str) -> Genesis | None:
    """The genesis in a record, if the organiser signed it for this run."""
    with suppress(Malformed):
        genesis = unpack_body(record)
        is_genuine = record.author == organiser and verify_record(record, run)
        return genesis if is_genuine and isinstance(genesis, Genesis) and genesis.run == run else None
    return None
