"""What this peer puts on the board of its run, and what it reads there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version

from dht import topics
from dht.board import Board
from dht.identity import Identity, public_key_of
from dht.records import (
    MAX_LABEL_CHARS,
    MAX_MEASURE,
    MAX_RECORD_BYTES,
    MAX_RELAYS,
    Genesis,
    Malformed,
    Record,
    pack,
    sign_record,
    unpack_body,
)
from dht.records import PeerRecord as HeadRecord
from dht.rejections import RejectCode, RejectionLog
from peer.link.gatekeeper import Gatekeeper
from peer.protocol.messages import Heartbeat


@dataclass(frozen=True, kw_only=True)
class TrainingFigures:
    """How this peer's training goes: what people who only read the board see of it.

    Nothing is decided by it but how many steps the others make, where `round.pace` is `speed`.
    """

    loss: float | None = None
    """Nats per token, as last said."""
    tokens_per_s: float | None = None
    evaluated: float | None = None
    """The newest held-out loss that this peer measured, and of which anchor."""
    evaluated_round: int | None = None
    device_gb: float | None = None
    """Memory of the GPU that it trains with, in 10⁹ bytes; None without one."""


NOTHING = TrainingFigures()


@cache
def client_version() -> str:
    """Of this client, as far as a HEAD has room for it."""
    return version("homefires")[:MAX_LABEL_CHARS]


@dataclass(frozen=True)
class Announcer:
    """The board of one run, in the words of the round."""

    board: Board
    identity: Identity
    run: bytes
    name: str
    """What people call this peer."""
    addrs: Callable[[], tuple[str, ...]] = tuple
    """Where it can be dialled, now."""
    refusals: RejectionLog = field(default_factory=RejectionLog)
    guard: Gatekeeper | None = None
    """Who is listened to; None: everybody."""
    admission: Callable[[], bytes | None] = lambda: None
    """What I show now, in a run that asks for it."""
    upload_bps: Callable[[], int] = lambda: 0
    """How fast it can send, in bits per second; 0: not known."""
    relays: Callable[[], tuple[str, ...]] = tuple
    """Peer ids of those through whom it can be dialled, now."""

    async def publish(self, head: Heartbeat, learning: TrainingFigures = NOTHING) -> None:
        """Put a HEAD up, signed; it replaces my last one."""
        addrs = self.addrs()
        record = self._signed(head, learning, addrs)
        most = len(addrs)
        while (
            len(pack(record)) > MAX_RECORD_BYTES and most >= 0
        ):  # a long name and long addresses: others must hear of this peer
            record = self._signed(head, NOTHING, addrs[:most])
            most -= 1
        await self.board.publish(topics.HEAD, record, topics.HEAD_TTL_S)

    def _signed(self, head: Heartbeat, learning: TrainingFigures, addrs: tuple[str, ...]) -> Record:
        # A record with any other value would be refused, and this peer not be seen.
        figures = {
            name: value for name, value in asdict(learning).items() if value is not None and 0 <= value <= MAX_MEASURE
        }
        body = HeadRecord(
            run=self.run, anchor=head.anchor, round=head.round, weight=head.weight, state=head.state,
            ready=head.ready, stuck_s=0.0, tokens=head.tokens, steps=head.steps,
            bandwidth_bps=self.upload_bps(), leaving=head.leaving, reach=0, name=self.name, version=client_version(),
            addrs=addrs, admission=self.admission(), relays=self._relay_keys(),
            orders=self.guard.roster.orders.number or None if self.guard is not None else None, **figures,
        )  # fmt: skip
        return sign_record(self.identity, self.run, topics.HEAD, body.pack(), time.time() + topics.HEAD_TTL_S)

    def _relay_keys(self) -> tuple[bytes, ...] | None:
        keys = (public_key_of(relay) for relay in self.relays()[:MAX_RELAYS])
        return tuple(key for key in keys if key is not None) or None

    async def read_heads(self) -> dict[str, HeadRecord]:
        """By peer id what each other peer says of itself that is let in; its anchor is empty before it takes part."""
        heads = {}
        for author, record in (await self.board.read(topics.HEAD)).items():
            with suppress(Malformed):
                body = unpack_body(record)
                if author == self.identity.peer_id or not isinstance(body, HeadRecord):
                    continue
                if self.guard is None or self.guard.takes(author, body):
                    heads[author] = body
        return heads

    async def read_others(self) -> dict[str, tuple[Heartbeat | None, tuple[str, ...]]]:
        """By peer id: the HEAD of each other peer, None before it takes part, and where it says it can be dialled."""
        return said_by(await self.read_heads())

    async def read_genesis(self, organiser: str) -> Record | None:
        """Who founds the run, signed by its organiser; None before he has said it."""
        said = await self.board.read(topics.GENESIS)
        for author in said.keys() - {organiser}:
            self.refusals(RejectCode.ORGANISER, author, "it names founders, but is not the organiser of the invite")
        record = said.get(organiser)
        return record if record is not None and isinstance(unpack_body(record), Genesis) else None


def said_by(heads: Mapping[str, HeadRecord]) -> dict[str, tuple[Heartbeat | None, tuple[str, ...]]]:
    """By peer id what `Announcer.read_others` says of these records."""
    return {peer: (_said(body) if body.anchor else None, body.ways(peer)) for peer, body in heads.items()}


def _said(body: HeadRecord) -> Heartbeat:
    return Heartbeat(
        anchor=body.anchor, round=body.round, weight=body.weight, state=body.state, ready=body.ready,
        tokens=body.tokens, steps=body.steps, leaving=body.leaving, name=body.name,
    )  # fmt: skip
