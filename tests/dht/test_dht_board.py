"""What strangers can have a node of the DHT remember: little, and nothing false."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from dht import dht_board
from dht.access import RejectCode
from dht.dht_board import MAX_SUBKEY_BYTES, MAX_VALUE_BYTES, bound_storage, rejection_of
from dht.records import HEAD, MAX_RECORD_BYTES

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


def storage() -> Any:
    from hivemind.dht.storage import DHTLocalStorage

    protocol = SimpleNamespace(storage=DHTLocalStorage(), cache=DHTLocalStorage())
    protocol.storage.store_subkey(KEY, "first", b"here before", NOW_S + 60)
    bound_storage(protocol)
    assert protocol.cache is not protocol.storage
    return protocol.storage


KEY: Any = 1


def held(stored: Any) -> dict[str, bytes]:
    return {author: item.value for author, item in stored.get(KEY).value.items()}


def test_there_is_room_for_so_many_authors_and_who_is_there_stays(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dht_board, "AUTHORS_MOST", 2)
    stored = storage()
    assert stored.store_subkey(KEY, "second", b"2", NOW_S + 60)
    assert not stored.store_subkey(KEY, "third", b"3", NOW_S + 600)
    assert stored.store_subkey(KEY, "first", b"again", NOW_S + 80)
    assert held(stored) == {"first": b"again", "second": b"2"}
    clock.now += 61
    assert stored.store_subkey(KEY, "third", b"3", NOW_S + 600), "the second's time is over"


def test_an_older_record_that_is_put_up_again_does_not_take_the_newer_with_it(clock: Clock) -> None:
    """hivemind would refuse the older, and yet forget the newer when the older one's time is over."""
    stored = storage()
    assert stored.store_subkey(KEY, "first", b"newer", NOW_S + 80)
    assert not stored.store_subkey(KEY, "first", b"here before", NOW_S + 60)
    clock.now += 61
    assert held(stored) == {"first": b"newer"}
