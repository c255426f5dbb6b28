"""The contract of Board, in memory and on hivemind's DHT."""

import time
from typing import Any

import pytest

from dht.identity import Identity
from dht.records import GENESIS, HEAD, PeerRecord, Record, sign_record
from tests.memory_board import MemoryBoard

RUN = b"r" * 32


def head(identity: Identity, *, round: int = 0, ttl_s: float = 60.0, run: bytes = RUN) -> Record:
    body = PeerRecord(
        run=run,
        anchor=b"",
        round=round,
        weight=0,
        state=b"s" * 32,
        ready=False,
        tokens=0,
        steps=0,
        leaving=False,
        name="",
        version="0",
    )
    return sign_record(identity, run, HEAD, body.pack(), time.time() + ttl_s)


@pytest.mark.outside
async def test_everybody_reads_what_each_published(world: Any) -> None:
    peers = [await world.add_peer() for _ in range(3)]
    records = [head(identity, round=number) for number, (identity, _, _) in enumerate(peers)]
    for (_, board, _), record in zip(peers, records, strict=True):
        assert await board.publish(HEAD, record, 60.0)
    for _, board, _ in peers:
        assert await board.read(HEAD) == {record.author: record for record in records}


@pytest.mark.outside
async def test_a_newer_record_replaces_the_older_and_not_the_other_way(world: Any) -> None:
    identity, board, _ = await world.add_peer()
    _, reader, _ = await world.add_peer()
    older, newer = head(identity, round=1, ttl_s=50), head(identity, round=2, ttl_s=60)
    assert await board.publish(HEAD, older, 60.0)
    assert await board.publish(HEAD, newer, 60.0)
    assert not await board.publish(HEAD, older, 60.0)
    assert await reader.read(HEAD) == {identity.peer_id: newer}


@pytest.mark.outside
async def test_topics_are_apart(world: Any) -> None:
    identity, board, _ = await world.add_peer()
    assert await board.publish(HEAD, head(identity), 60.0)
    assert await board.read(GENESIS) == {}


@pytest.mark.outside
async def test_a_record_of_another_topic_run_or_life_is_not_published(world: Any) -> None:
    identity, board, _ = await world.add_peer()
    assert not await board.publish(GENESIS, head(identity), 60.0)
    assert not await board.publish(HEAD, head(identity, run=b"x" * 32), 60.0)
    assert not await board.publish(HEAD, head(identity, ttl_s=-1), 60.0)
    assert not await board.publish(HEAD, head(identity, ttl_s=3600), 60.0)
    assert await board.read(HEAD) == {}


@pytest.mark.outside
async def test_a_forged_record_is_not_published(world: Any) -> None:
    identity, board, _ = await world.add_peer()
    real = head(identity)
    forged = Record(Identity.generate().peer_id, real.kind, real.body, real.expires, real.signature)
    assert not await board.publish(HEAD, forged, 60.0)
    assert await board.read(HEAD) == {}


async def test_records_expire() -> None:
    """In memory, where the clock can be moved."""
    now_s = time.time()
    board = MemoryBoard(RUN, lambda: now_s)
    identity = Identity.generate()
    assert await board.publish(HEAD, head(identity, ttl_s=60), 60.0)
    now_s += 59
    assert await board.read(HEAD)
    now_s += 2
    assert await board.read(HEAD) == {}


@pytest.mark.swarm
async def test_other_nodes_refuse_what_a_dishonest_node_stores(real_world: Any) -> None:
    """A node that skips the checks itself still cannot place a forged record, nor one of no topic, with others."""
    mallory, _, _ = await real_world.add_peer()
    alice, honest, _ = await real_world.add_peer()
    dht = real_world.nodes[mallory.peer_id].board._dht
    dht.protocol.record_validator = None
    from dht.records import dht_key, pack

    real = head(alice)
    assert await honest.publish(HEAD, real, 60.0)
    lie = head(mallory, round=9)
    for author, value in ((alice.peer_id, pack(lie)), (mallory.peer_id, bytes(2000)), (mallory.peer_id, b"junk")):
        await dht.store(dht_key(HEAD, RUN), value, expiration_time=time.time() + 70, subkey=author, exclude_self=True)
    longer = time.time() + 70
    await dht.store(dht_key(HEAD, RUN), pack(lie), expiration_time=longer, subkey=mallory.peer_id, exclude_self=True)
    assert not await dht.store("anything", b"x", expiration_time=time.time() + 60, exclude_self=True)
    assert await honest.read(HEAD) == {alice.peer_id: real}


@pytest.mark.swarm
async def test_a_record_that_just_expired_does_not_hide_the_others(real_world: Any) -> None:
    """hivemind refuses a whole answer for one bad record; an expired one must not be bad."""
    import msgpack

    from dht.dht_board import rejection_of
    from dht.records import pack

    identity = Identity.generate()
    old = head(identity, ttl_s=-5)
    subkey, value = msgpack.packb(identity.peer_id), msgpack.packb(pack(old))
    assert rejection_of(RUN, HEAD, subkey, value, old.expires) is None
    assert rejection_of(RUN, HEAD, subkey, value, old.expires + 1) is not None
