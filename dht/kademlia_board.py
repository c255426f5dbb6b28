"""The notice board on hivemind's Kademlia DHT."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dht.access import RejectionLog
from dht.record_validator import bound_storage, make_validator
from dht.records import MAX_TTL_S, Malformed, Record, dht_key, is_current, pack, unpack

TIMEOUT_S = 15.0


class DhtBoard:
    """The contract of `dht.board.Board` on hivemind's DHT."""

    def __init__(self, dht_node: Any, run: bytes) -> None:
        self._dht = dht_node
        self._run = run

    async def meet(self, peer_id: str) -> None:
        """Know a node to which there is a connection; one that does not answer is left out."""
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
        return records


async def start_dht(p2p: Any, run: bytes, met: Sequence[str], refusals: RejectionLog, *, client_mode: bool) -> Any:
    """A hivemind DHTNode that holds and believes the records of `run` alone; it begins with the addresses `met`."""
    from hivemind.dht import DHTNode
    from hivemind.dht.protocol import DHTProtocol
    from hivemind.proto import dht_pb2

    # hivemind answers pings a moment before it knows what to say of itself: until then it says nothing of itself.
    DHTProtocol.node_info = dht_pb2.NodeInfo()
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
    bound_storage(dht_node.protocol)
    return dht_node
