"""The notice board on hivemind's Kademlia DHT. Its nodes store and believe our signed records and nothing else.

Every node checks what others ask it to store and what it finds, so that the first honest node drops a forged or
oversized record. Records that expired a moment ago are let through: hivemind refuses a whole answer because of one of
them, and our reader drops expired records anyway.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from enum import IntEnum
from typing import Any

import msgpack

from dht.access import RejectCode, RejectionLog
from dht.addresses import NetworkOf, nowhere, rivals_of
from dht.identity import public_key_of
from dht.records import (
    CLOCK_SKEW_S,
    MAX_RECORD_BYTES,
    MAX_TTL_S,
    TOPICS,
    Malformed,
    Record,
    dht_key,
    is_current,
    is_valid,
    pack,
    unpack,
    unpack_value,
)

TIMEOUT_S = 15.0
MAX_VALUE_BYTES = MAX_RECORD_BYTES + 3
"""A record as msgpack bytes."""
MAX_SUBKEY_BYTES = 64
"""A peer id as msgpack text has 54."""
AUTHORS_MOST = 1024
"""Under one topic. Keys cost nothing, so there is an end. So many of the longest records fit into one answer of
hivemind's, which has at most 2 MiB."""
STRANGERS_MOST = 128
"""Of them those of whom nothing is known: as many of each network where this node sees from where they come, and by a
lot that is drawn anew each hour."""
LOT_S = 3600.0
LATE_S = 60.0
"""A record that expired so long ago is nobody's answer any more, but put up again."""


class Rank(IntEnum):
    """The order in which peers get places on the board."""

    VOTER = 0
    """Elected by the chain, or the organiser. Only they may put up records of others."""
    ADMITTED = 1
    """Admitted by the organiser."""
    EARNED = 2
    """Its work was counted."""
    STRANGER = 3


class Places:
    """The peers with a place. `rank` of a peer id is what this node knows about it at the moment."""

    def __init__(self) -> None:
        self.rank: Callable[[str], Rank] = lambda peer: Rank.STRANGER
        self.look: Callable[[Record], None] = lambda record: None
        """Is shown each record of a stranger, and may know its author better from then on."""
        self.network_of: NetworkOf = nowhere
        self.giver: ContextVar[str | None] = ContextVar("giver", default=None)
        """The peer that asks this node to store something, while it does so; None: this node itself."""

    def may_be_given(self, author: str) -> bool:
        """Whether the asking peer may put up a record of `author`: otherwise one process could fill the board with
        invented peer ids."""
        giver = self.giver.get()
        return giver is None or giver == author or self.rank(giver) is Rank.VOTER

    def make_room(self, authors: Any, author: str, value: bytes, now_s: float) -> bool:
        """Whether `author`, whose record is `value`, gets a place beside those in a DictionaryDHTValue; the last of
        them is removed if necessary."""
        if self.rank(author) is Rank.STRANGER:
            with suppress(Malformed):
                self.look(unpack(unpack_value(value)))
        rivals, must = list(authors.data), False
        is_full = len(rivals) >= AUTHORS_MOST
        if self.rank(author) is Rank.STRANGER:
            strangers = [peer for peer in rivals if self.rank(peer) is Rank.STRANGER]
            if not is_full and len(strangers) < STRANGERS_MOST:
                return True
            rivals, must = rivals_of(author, strangers, self.network_of)
            rivals = rivals or strangers
        elif not is_full:
            return True
        last = max(rivals, key=lambda peer: self._order(peer, now_s), default=author)
        if not must and self._order(last, now_s) <= self._order(author, now_s):
            return False
        del authors[last]
        return True

    def given_to(self, records: Mapping[str, Record], now_s: float) -> dict[str, Record]:
        """Those of these records, by author, that have a place: another node may have returned more."""
        for record in records.values():
            with suppress(Malformed):
                self.look(record)
        first = sorted(records, key=lambda peer: self._order(peer, now_s))[:AUTHORS_MOST]
        strangers = [peer for peer in first if self.rank(peer) is Rank.STRANGER][STRANGERS_MOST:]
        chosen = {*first} - {*strangers}
        return {peer: record for peer, record in records.items() if peer in chosen}

    def _order(self, peer: str, now_s: float) -> tuple[Rank, bytes]:
        return self.rank(peer), _lot(peer, int(now_s // LOT_S))


@functools.lru_cache(maxsize=4 * AUTHORS_MOST)
def _lot(peer: str, hour: int) -> bytes:
    return hashlib.blake2b(f"{hour} {peer}".encode(), digest_size=8).digest()


class DhtBoard:
    """The contract of `dht.board.Board` on hivemind's DHT."""

    def __init__(self, dht_node: Any, run: bytes, places: Places) -> None:
        self._dht = dht_node
        self._run = run
        self.places = places

    async def meet(self, peer_id: str) -> None:
        """Add a connected node to the routing table; one that does not answer is left out."""
        from hivemind.p2p import PeerID

        await self._dht.protocol.call_ping(PeerID.from_base58(peer_id))

    async def publish(self, topic: str, record: Record, ttl_s: float) -> bool:
        """Store the record on the nodes nearest to the topic's key."""
        assert 0 < ttl_s <= MAX_TTL_S, ttl_s
        if record.kind != topic or not is_current(record, self._run, time.time()):
            return False
        key = dht_key(topic, self._run)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return bool(await self._dht.store(key, pack(record), record.expires, subkey=record.author))
        except TimeoutError:
            return False

    async def read(self, topic: str) -> dict[str, Record]:
        """The newest records that the nodes nearest to the key hold; none if they do not answer in time."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await self._dht.get(dht_key(topic, self._run), latest=True)
        except TimeoutError:
            return {}
        if found is None or not isinstance(found.value, dict):
            return {}
        records: dict[str, Record] = {}
        for author, item in found.value.items():
            with suppress(Malformed):
                record = unpack(item.value)
                if record.author == author and record.expires > time.time():
                    records[author] = record
        return self.places.given_to(records, time.time())


async def start_dht(
    p2p: Any, run: bytes, met: Sequence[str], refusals: RejectionLog, places: Places, *, client_mode: bool
) -> Any:
    """A hivemind DHTNode that stores and believes only the records of `run`; it begins with the addresses `met`."""
    from hivemind.dht import DHTNode
    from hivemind.dht.protocol import DHTProtocol
    from hivemind.proto import dht_pb2

    # hivemind answers pings a moment before it knows what to say of itself: until then it says nothing of itself.
    DHTProtocol.node_info = dht_pb2.NodeInfo()
    _note_givers(DHTProtocol, places)
    # Records are small, short-lived and always read anew: caches would only serve old ones.
    dht_node = await DHTNode.create(
        p2p=p2p,
        initial_peers=list(met) or None,
        client_mode=client_mode,
        record_validator=make_validator(run, refusals),
        ensure_bootstrap_success=False,
        strict=False,
        cache_locally=False,
        cache_nearest=0,
        cache_on_store=False,
    )
    bound_storage(dht_node.protocol, places)
    return dht_node


def _note_givers(protocol: Any, places: Places) -> None:
    """Let the handlers that a DHTProtocol registers record which peer asks."""
    store = protocol.rpc_store.__wrapped__ if hasattr(protocol.rpc_store, "__wrapped__") else protocol.rpc_store

    @functools.wraps(store)
    async def rpc_store(self: Any, request: Any, context: Any) -> Any:
        giver = places.giver.set(context.remote_id.to_base58())
        try:
            return await store(self, request, context)
        finally:
            places.giver.reset(giver)

    protocol.rpc_store = rpc_store


def make_validator(run: bytes, refusals: RejectionLog) -> Any:
    """A hivemind RecordValidatorBase for the topics of `run`; its refusals go to `refusals`."""
    from hivemind.dht.routing import DHTID
    from hivemind.dht.validation import RecordValidatorBase

    topics = {DHTID.generate(source=dht_key(topic, run)).to_bytes(): topic for topic in TOPICS}

    class RecordValidator(RecordValidatorBase):  # type: ignore[misc]
        def validate(self, record: Any) -> bool:
            topic = topics.get(record.key)
            if topic is None:
                refusals(RejectCode.RECORD, "somebody", "it has no topic of this run")
                return False
            fault = rejection_of(run, topic, record.subkey, record.value, record.expiration_time)
            if fault is not None:
                refusals(fault[0], _author_of(record.subkey), fault[1])
            return fault is None

    return RecordValidator()


def bound_storage(protocol: Any, places: Places) -> None:
    """Let a hivemind DHTProtocol store only authors with a place under a topic, and never an older record beside a
    newer one. By itself it stores any number, and forgets the newer record when an older one, put up again, expires."""
    from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
    from hivemind.utils import timed_storage

    class Storage(DHTLocalStorage):  # type: ignore[misc]
        def store_subkey(self, key: Any, subkey: Any, value: bytes, expiration_time: float) -> bool:
            if not places.may_be_given(subkey):
                return False
            held = self.get(key)
            authors = held.value if held is not None else None
            if isinstance(authors, DictionaryDHTValue):
                known = authors.get(subkey)
                if known is None and not places.make_room(authors, subkey, value, timed_storage.get_dht_time()):
                    return False
                if known is not None and known.expiration_time >= expiration_time:
                    return False
            return bool(super().store_subkey(key, subkey, value, expiration_time))

    for name in ("storage", "cache"):
        bounded = Storage()
        bounded.__dict__.update(getattr(protocol, name).__dict__)
        setattr(protocol, name, bounded)


def rejection_of(run: bytes, topic: str, subkey: bytes, value: bytes, expires: float) -> tuple[RejectCode, str] | None:
    """Why `value` (msgpack of the packed record) is not the statement of the peer named by `subkey`; None if it is."""
    now = time.time()
    if expires > now + MAX_TTL_S + CLOCK_SKEW_S:
        return RejectCode.RECORD, f"it is to live for {expires - now:.0f} s; none lives longer than {MAX_TTL_S:.0f} s"
    if expires < now - LATE_S:
        return RejectCode.REPLAY, f"it expired {now - expires:.0f} s ago"
    if len(value) > MAX_VALUE_BYTES:  # looked at first: what is parsed is remembered
        return RejectCode.RECORD, f"it has {len(value)} bytes; a record has at most {MAX_RECORD_BYTES}"
    record = _parse(run, topic, value)
    if record is None:
        return RejectCode.RECORD, f"it is no {topic} that its author signed for this run"
    if record.expires != expires:
        return RejectCode.REPLAY, "it is to live longer than its author signed"
    if msgpack.packb(record.author) != subkey:
        return RejectCode.RECORD, f"it is a statement of {record.author}"
    return None


def _author_of(subkey: Any) -> str:
    """The author that a record claims, for the log; a stranger wrote it."""
    name = None
    with suppress(Malformed):
        name = unpack_value(subkey) if len(subkey) <= MAX_SUBKEY_BYTES else None
    return name if isinstance(name, str) and public_key_of(name) is not None else "somebody"


@functools.lru_cache(maxsize=2048)
def _parse(run: bytes, topic: str, value: bytes) -> Record | None:
    """The record, if everything is right that does not depend on the time. Cached, since nodes see each record many
    times."""
    try:
        packed = unpack_value(value)
        record = unpack(packed) if isinstance(packed, bytes) else None
    except Malformed:
        return None
    return record if record is not None and record.kind == topic and is_valid(record, run) else None
