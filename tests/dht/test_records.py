"""Records: signatures, sizes, strict bodies."""

import math
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.identity import Identity
from dht.protocol_version import PROTOCOL_VERSION
from dht.records import (
    GENESIS,
    GENESIS_TTL_S,
    HEAD,
    HEAD_TTL_S,
    MAX_FOUNDERS,
    MAX_RECORD_BYTES,
    MAX_TTL_S,
    TOPICS,
    Genesis,
    Malformed,
    PeerRecord,
    Record,
    SoughtHomes,
    dht_key,
    is_current,
    pack,
    short_id,
    sign_record,
    unpack,
    unpack_body,
    verify_record,
)

ALICE = Identity.from_seed(b"a" * 32)
MALLORY = Identity.from_seed(b"m" * 32)
RUN = b"r" * 32
NOW_S = 1_800_000_000.0
HEAD_BODY = PeerRecord(
    run=RUN,
    anchor=b"a" * 32,
    round=7,
    weight=21,
    state=b"s" * 32,
    ready=True,
    tokens=1_000_000,
    steps=50,
    leaving=False,
    name="Zoë's attic",
    version="0.1.0",
)
FIELDS: dict[str, Any] = msgpack.unpackb(HEAD_BODY.pack())


def head_record(**changes: Any) -> Record:
    return sign_record(ALICE, RUN, HEAD, replace(HEAD_BODY, **changes).pack(), NOW_S + 60)


def genesis_of(count: int) -> Genesis:
    founders = sorted(Identity.from_seed(bytes([number]) * 32).peer_id for number in range(count))
    return Genesis(run=RUN, founders=tuple(founders), state=b"s" * 32)


def test_a_record_comes_back_from_its_bytes() -> None:
    record = head_record()
    assert unpack(pack(record)) == record
    assert verify_record(unpack(pack(record)), RUN)
    assert unpack_body(record) == HEAD_BODY


def test_genesis_comes_back_from_its_bytes() -> None:
    record = sign_record(ALICE, RUN, GENESIS, genesis_of(3).pack(), NOW_S + 60)
    assert unpack_body(unpack(pack(record))) == genesis_of(3)


def test_the_largest_honest_records_fit() -> None:
    full = replace(
        HEAD_BODY,
        round=2**62,
        weight=2**62,
        tokens=2**62,
        steps=2**62,
        name="𝔸" * 32,
        version="v" * 32,
        relays=(b"r" * 32, b"s" * 32),
    )
    for kind, body in ((HEAD, full.pack()), (GENESIS, genesis_of(MAX_FOUNDERS).pack())):
        record = sign_record(ALICE, RUN, kind, body, NOW_S + 60)
        assert len(pack(record)) <= MAX_RECORD_BYTES
        assert is_current(record, RUN, NOW_S)


@pytest.mark.parametrize(
    "change",
    [
        {"author": MALLORY.peer_id},
        {"kind": GENESIS},
        {"body": replace(HEAD_BODY, tokens=2).pack()},
        {"expires": NOW_S + 61},
        {"signature": bytes(64)},
    ],
)
def test_the_signature_covers_everything(change: dict[str, Any]) -> None:
    assert verify_record(head_record(), RUN)
    assert not verify_record(replace(head_record(), **change), RUN)
    assert not is_current(replace(head_record(), **change), RUN, NOW_S)


def test_a_record_speaks_for_one_run() -> None:
    assert not verify_record(head_record(), b"x" * 32)
    assert not is_current(head_record(), b"x" * 32, NOW_S)
    foreign = sign_record(ALICE, b"x" * 32, HEAD, HEAD_BODY.pack(), NOW_S + 60)
    assert not is_current(foreign, b"x" * 32, NOW_S), "signed for a run that its body does not name"


def test_acceptable_from_now_until_the_longest_life() -> None:
    assert is_current(head_record(), RUN, NOW_S)
    assert not is_current(head_record(), RUN, NOW_S + 60), "expired"
    forever = sign_record(ALICE, RUN, HEAD, HEAD_BODY.pack(), NOW_S + MAX_TTL_S + 60)
    assert not is_current(forever, RUN, NOW_S), "lives too long"


def test_a_body_that_is_too_large_is_not_acceptable() -> None:
    body = msgpack.packb(FIELDS | {"more": bytes(MAX_RECORD_BYTES)})
    assert not is_current(sign_record(ALICE, RUN, HEAD, body, NOW_S + 60), RUN, NOW_S)


def test_fields_of_newer_clients_are_skipped() -> None:
    assert PeerRecord.unpack(msgpack.packb(FIELDS | {"colour": "red"})) == HEAD_BODY


@pytest.mark.parametrize("name", sorted(FIELDS.keys() - {"addrs"}))
def test_every_field_is_needed(name: str) -> None:
    with pytest.raises(Malformed, match=name):
        PeerRecord.unpack(msgpack.packb({key: value for key, value in FIELDS.items() if key != name}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run", b"short"),
        ("run", "r" * 32),
        ("anchor", b"a" * 31),
        ("state", b"s" * 31),
        ("round", -2),
        ("round", "7"),
        ("round", True),
        ("round", 2**63),
        ("weight", -1),
        ("weight", 1.0),
        ("ready", 1),
        ("leaving", None),
        ("loss", -1.0),
        ("loss", math.nan),
        ("loss", math.inf),
        ("loss", 1e10),
        ("tokens", -1),
        ("name", "x" * 33),
        ("name", "\x1b[2J"),
        ("name", "a\nb"),
        ("version", b"0.1.0"),
    ],
)
def test_types_and_ranges_are_strict(name: str, value: Any) -> None:
    with pytest.raises(Malformed, match=name):
        PeerRecord.unpack(msgpack.packb(FIELDS | {name: value}))


def test_what_is_for_people_may_be_missing_and_is_left_out() -> None:
    """Records of peers that say nothing of their losses are as they always were."""
    assert not FIELDS.keys() & {"loss", "tokens_per_s", "evaluated", "evaluated_round", "device_gb"}
    told = replace(HEAD_BODY, loss=2.5, tokens_per_s=1e4, evaluated=2.25, evaluated_round=6, device_gb=24.0)
    assert PeerRecord.unpack(told.pack()) == told


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss", math.nan), ("loss", -1.0), ("loss", "2.5"), ("tokens_per_s", math.inf),
        ("loss", 1e308), ("evaluated", 1.1e9), ("tokens_per_s", 1e12),
        ("device_gb", -1.0), ("device_gb", 1e10), ("device_gb", math.nan),
        ("evaluated", b""), ("evaluated_round", -1), ("evaluated_round", 1.0),
    ],
)  # fmt: skip
def test_and_is_checked_if_it_is_there(name: str, value: Any) -> None:
    with pytest.raises(Malformed, match=name):
        PeerRecord.unpack(msgpack.packb(FIELDS | {name: value}))


SOUGHT = SoughtHomes(
    memory_gb=9.0, tokens_per_s=100.0, upload_mbps=20.0, trips_ms=((short_id("a"), 30),), gathers=(short_id("b"),),
    expects=250.0, leads=True, free=1,
)  # fmt: skip


def test_what_a_home_says_that_looks_for_others_comes_back() -> None:
    assert "homes" not in FIELDS, "records of other peers are as they always were"
    told = replace(HEAD_BODY, homes=SOUGHT)
    assert PeerRecord.unpack(told.pack()) == told


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_gb", 1e10), ("memory_gb", -1.0), ("memory_gb", math.nan), ("tokens_per_s", math.inf),
        ("tokens_per_s", "100"), ("upload_mbps", 1e300), ("trips_ms", [[b"x" * 8, 1]] * 17),
        ("trips_ms", [[b"x" * 7, 1]]), ("trips_ms", [[b"x" * 8, -1]]), ("trips_ms", [[b"x" * 8, 60_001]]),
        ("trips_ms", [[b"x" * 8]]), ("gathers", [b"x" * 8] * 33), ("gathers", [b"x" * 9]), ("gathers", ["x" * 8]),
        ("expects", -1.0), ("leads", 1), ("free", -1), ("free", 2**63),
    ],
)  # fmt: skip
def test_hostile_offers_of_homes_are_refused(name: str, value: Any) -> None:
    body = FIELDS | {"homes": msgpack.unpackb(replace(HEAD_BODY, homes=SOUGHT).pack())["homes"] | {name: value}}
    with pytest.raises(Malformed, match=f"homes.{name}"):
        PeerRecord.unpack(msgpack.packb(body))


def test_before_genesis_there_is_no_anchor_and_perhaps_no_state_yet() -> None:
    body = replace(HEAD_BODY, anchor=b"", round=-1, state=b"")
    assert PeerRecord.unpack(body.pack()) == body


@pytest.mark.parametrize(
    "founders",
    [None, [], ["12D3"], [b"k" * 31], [b"k" * 32, b"k" * 32], [bytes([n]) * 32 for n in range(17)], b"k" * 32],
)
def test_founders_are_distinct_sorted_and_few(founders: Any) -> None:
    with pytest.raises(Malformed):
        Genesis.unpack(msgpack.packb({"run": RUN, "founders": founders, "state": b"s" * 32}))


@given(st.binary(max_size=200))
def test_garbage_is_malformed(data: bytes) -> None:
    for parse in (unpack, PeerRecord.unpack, Genesis.unpack):
        with pytest.raises(Malformed):
            parse(data)


@given(st.integers(0, len(pack(head_record())) - 1), st.integers(1, 255))
def test_no_byte_of_a_record_can_be_changed(position: int, flip: int) -> None:
    data = bytearray(pack(head_record()))
    data[position] ^= flip
    try:
        record = unpack(bytes(data))
    except Malformed:
        return
    assert not is_current(record, RUN, NOW_S)


def test_keys_differ_between_runs_and_topics() -> None:
    keys = {dht_key(topic, run) for topic in TOPICS for run in (RUN, b"x" * 32)}
    assert len(keys) == 2 * len(TOPICS)
    assert max(HEAD_TTL_S, GENESIS_TTL_S) <= MAX_TTL_S


def test_a_head_tells_where_to_dial_and_still_fits() -> None:
    """Four long addresses beside everything else stay within a record; a fifth is refused; none is fine."""
    addresses = tuple(f"/ip6/2001:db8:ffff:ffff:ffff:ffff:ffff:{n}/tcp/65535/p2p/{ALICE.peer_id}" for n in range(4))
    record = head_record(addrs=addresses)
    assert len(pack(record)) <= MAX_RECORD_BYTES
    assert PeerRecord.unpack(record.body).addrs == addresses
    with pytest.raises(Malformed, match="addrs"):
        PeerRecord.unpack(head_record(addrs=(*addresses, addresses[0])).body)


@pytest.mark.parametrize(("version", "release"), [(4, "homefires 0.4"), (PROTOCOL_VERSION + 1, "a newer homefires")])
def test_a_record_of_another_release_is_refused_with_the_release_that_reads_it(version: int, release: str) -> None:
    """So an audit of an older folder says what to install, and not that its genesis is damaged."""
    fields = [version, *msgpack.unpackb(pack(head_record()))[1:]]
    with pytest.raises(Malformed, match=f"protocol version {version}, .*; install {release}$"):
        unpack(msgpack.packb(fields))
