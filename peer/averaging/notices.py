"""What this peer puts on the board of its run, and what it reads there."""

from __future__ import annotations

import time
from dataclasses import dataclass

from dht import keys as topics
from dht.board import Board
from dht.identity import Identity
from dht.records import Genesis, Record, sign_record, unpack_body
from dht.records import Head as HeadRecord
from peer.rounds.messages import HeadSent


@dataclass(frozen=True)
class Notices:
    """The board of one run, in the words of the round."""

    board: Board
    identity: Identity
    run: bytes
    name: str
    """What people call this peer."""
    addrs: tuple[str, ...] = ()
    """Where it can be dialled."""

    async def publish(self, head: HeadSent) -> None:
        """Put a HEAD up, signed; it replaces my last one."""
        body = HeadRecord(
            run=self.run, anchor=head.anchor, round=head.round, weight=head.weight, state=head.state,
            ready=head.ready, stuck_s=0.0, tokens=head.tokens, steps=head.steps, bandwidth_bps=0,
            leaving=head.leaving, reach=0, name=self.name, version="1", addrs=self.addrs,
        )  # fmt: skip
        expires = time.time() + topics.HEAD_TTL_S
        record = sign_record(self.identity, self.run, topics.HEAD, body.pack(), expires)
        await self.board.publish(topics.HEAD, record, topics.HEAD_TTL_S)

    async def read_others(self) -> dict[str, tuple[HeadSent | None, tuple[str, ...]]]:
        """By peer id: the HEAD of each other peer, None before it takes part, and where it says it can be dialled."""
        others = {}
        for author, record in (await self.board.read(topics.HEAD)).items():
            body = unpack_body(record)
            if author != self.identity.peer_id and isinstance(body, HeadRecord):
                others[author] = (_said(body) if body.anchor else None, body.addrs)
        return others

    async def read_genesis(self, organiser: str) -> Record | None:
        """Who founds the run, signed by its organiser; None before he has said it."""
        record = (await self.board.read(topics.GENESIS)).get(organiser)
        return record if record is not None and isinstance(unpack_body(record), Genesis) else None


def _said(body: HeadRecord) -> HeadSent:
    return HeadSent(
        anchor=body.anchor, round=body.round, weight=body.weight, state=body.state, ready=body.ready,
        tokens=body.tokens, steps=body.steps, leaving=body.leaving, name=body.name,
    )  # fmt: skip
