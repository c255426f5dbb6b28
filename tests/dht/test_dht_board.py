"""What strangers can have a node of the DHT remember: little, and nothing false."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from dht import dht_board
from dht.access import RejectCode
from dht.dht_board import (
    MAX_SUBKEY_BYTES,
    MAX_VALUE_BYTES,
    STRANGERS_MOST,
    DhtBoard,
    Places,
    Rank,
    bound_storage,
    rejection_of,
)
from dht.identity import Identity
from dht.records import HEAD, MAX_RECORD_BYTES, pack, sign_record

RUN = b"r" * 32
NOW_S = 1_800_000_000.0


def test_a_value_that_is_too_large_for_a_record_is_not_kept_in_memory() -> None:
    """One of 2 MiB passes through the network, and what is parsed is remembered 2,048 times over."""
    dht_board._parse.cache_clear()
    for size in (MAX_VALUE_BYTES + 1, 1 << 20):
        fault = rejection_of(RUN, HEAD, b"subkey", bytes(size), time.time() + 60)
        assert fault == (RejectCode.RECORD, f"it has {size} bytes; a record has at most {MAX_RECORD_BYTES}")
    assert dht_board._parse.cache_info().currsize == 0


def test_the_name_of_an_author_is_not_read_out_of_anything_longer() -> None:
    assert dht_board._author_of(b"\xdd\x00\x10\x00\x00" + b"\xc0" * (1 << 20)) == "somebody"
    assert dht_board._author_of(bytes(MAX_SUBKEY_BYTES + 1)) == "somebody"


class Clock:
    """hivemind's, which stands still."""

    def __init__(self) -> None:
        self.now = NOW_S

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("hivemind.utils.timed_storage.get_dht_time", clock)
    return clock


def storage(places: Places | None = None) -> Any:
    from hivemind.dht.storage import DHTLocalStorage

    protocol = SimpleNamespace(storage=DHTLocalStorage(), cache=DHTLocalStorage())
    protocol.storage.store_subkey(KEY, "first", b"here before", NOW_S + 60)
    bound_storage(protocol, places or Places())
    assert protocol.cache is not protocol.storage
    return protocol.storage


KEY: Any = 1
SAID = msgpack.packb(b"what a stranger says")


def held(stored: Any) -> dict[str, bytes]:
    return {author: item.value for author, item in stored.get(KEY).value.items()}


def ranked(**ranks: Rank) -> Places:
    places = Places()
    places.rank = lambda peer: ranks.get(peer, Rank.STRANGER)
    return places


def test_there_is_room_for_so_many_authors_by_rank(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is known better takes the place of who is known less; time passes, and places are free again."""
    monkeypatch.setattr(dht_board, "AUTHORS_MOST", 2)
    places = ranked(first=Rank.EARNED, second=Rank.ADMITTED, third=Rank.VOTER)
    stored = storage(places)
    assert stored.store_subkey(KEY, "stranger", SAID, NOW_S + 60)
    assert stored.store_subkey(KEY, "second", b"2", NOW_S + 60)
    assert held(stored) == {"first": b"here before", "second": b"2"}
    assert stored.store_subkey(KEY, "third", b"3", NOW_S + 600)
    assert held(stored) == {"second": b"2", "third": b"3"}
    assert not stored.store_subkey(KEY, "first", b"again", NOW_S + 80)
    assert stored.store_subkey(KEY, "second", b"again", NOW_S + 80)
    clock.now += 81
    assert stored.store_subkey(KEY, "first", b"again", NOW_S + 160), "the second's time is over"


def test_two_thousand_names_of_one_process_take_nothing_that_honest_peers_need(clock: Clock) -> None:
    """Before or after them: those whom the chain or the organiser knows are there, and a lot has 128 of the others."""
    early, late = [f"early{index}" for index in range(20)], [f"late{index}" for index in range(20)]
    ranks = dict.fromkeys((*early[:10], *late[:10]), Rank.VOTER) | dict.fromkeys((*early[10:], *late[10:]), Rank.EARNED)
    stored = storage(ranked(**ranks))
    for names in (early, [f"sybil{index}" for index in range(2_000)], late):
        for name in names:
            stored.store_subkey(KEY, name, SAID, NOW_S + 600)
    there = held(stored).keys()
    assert {*early, *late} <= there
    assert len(there) == STRANGERS_MOST + 40


def test_one_address_with_all_places_of_strangers_makes_room_for_others(clock: Clock) -> None:
    """Whatever names it has tried for the lot; and it does not get them back."""
    places = Places()
    places.network_of = lambda peer: peer[0]
    stored = storage(places)
    for name in (*(f"a{index}" for index in range(500)), "b", "c", *(f"a{index}" for index in range(500, 1_000))):
        stored.store_subkey(KEY, name, SAID, NOW_S + 600)
    there = held(stored).keys()
    assert {"b", "c"} <= there
    assert len(there) == STRANGERS_MOST


def test_the_lot_is_another_each_hour(clock: Clock) -> None:
    """Nobody has a place for ever by a name that was tried for one hour."""
    names, found = [f"s{index}" for index in range(600)], []
    for _ in range(2):
        stored = storage()
        for name in names:
            stored.store_subkey(KEY, name, SAID, clock.now + 60)
        found.append(held(stored).keys())
        clock.now += 3600.0
    assert len(found[0]) == len(found[1]) == STRANGERS_MOST
    assert len(found[0] & found[1]) < STRANGERS_MOST / 2


def test_a_stranger_that_shows_an_admission_is_none(clock: Clock) -> None:
    """It is looked at before it takes part in the lot."""
    identity, places, admitted = Identity.generate(), Places(), set[str]()
    places.rank = lambda peer: Rank.ADMITTED if peer in admitted else Rank.STRANGER
    places.look = lambda record: admitted.add(record.author)
    record = sign_record(identity, b"r" * 32, "head", b"body", NOW_S + 60)
    stored = storage(places)
    for index in range(500):
        stored.store_subkey(KEY, f"s{index}", SAID, NOW_S + 60)
    assert stored.store_subkey(KEY, identity.peer_id, msgpack.packb(pack(record)), NOW_S + 60)
    assert admitted == {identity.peer_id}


def test_only_voters_put_up_what_others_say(clock: Clock) -> None:
    """Everybody else what it says itself, by a connection of its own."""
    places = ranked(voter=Rank.VOTER, admitted=Rank.ADMITTED)
    stored = storage(places)
    for giver, may in (("mallory", False), ("admitted", False), ("voter", True), ("somebody", True)):
        token = places.giver.set(giver)
        assert stored.store_subkey(KEY, "somebody", giver.encode(), clock.now + 60) is may
        places.giver.reset(token)
        clock.now += 1.0


def test_an_older_record_that_is_put_up_again_does_not_take_the_newer_with_it(clock: Clock) -> None:
    """hivemind would refuse the older, and yet forget the newer when the older one's time is over."""
    stored = storage()
    assert stored.store_subkey(KEY, "first", b"newer", NOW_S + 80)
    assert not stored.store_subkey(KEY, "first", b"here before", NOW_S + 60)
    clock.now += 61
    assert held(stored) == {"first": b"newer"}


async def test_a_node_that_gives_two_thousand_names_fills_nobodys_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader holds itself to the same places: who is known is among them."""
    known = Identity.generate()
    everybody = (*(Identity.from_seed(index.to_bytes(32, "big")) for index in range(2_000)), known)
    expires = time.time() + 60
    found = {
        one.peer_id: SimpleNamespace(value=pack(sign_record(one, RUN, HEAD, b"body", expires))) for one in everybody
    }

    async def get(key: str, latest: bool) -> SimpleNamespace:
        return SimpleNamespace(value=found)

    board = DhtBoard(SimpleNamespace(get=get), RUN, ranked(**{known.peer_id: Rank.EARNED}))
    read = await board.read(HEAD)
    assert known.peer_id in read
    assert len(read) == STRANGERS_MOST + 1
