"""Frames: every message survives the trip, and nothing but a message gets through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.rounds.frames import decode, encode
from peer.rounds.messages import (
    FETCH_MOST,
    BytesSent,
    ChainSent,
    Fetch,
    Get,
    HeadSent,
    MeanSent,
    Message,
    Nack,
    Norms,
    PartSent,
    Prepare,
    Promise,
    Propose,
    Redo,
    Show,
    Start,
    Table,
    Voted,
    Want,
)
from peer.rounds.names import digest_of
from peer.rounds.update import ALL_MEMBERS, Block, Update
from peer.testing.integers import ModelKeys
from tests.peer.rounds.build import HEAD, NAMES, block, place, pledge, proposal_signature, update, vote

NORMS = Norms(place(), "p1", ((1, 0b111), (2, 0))).signed(ModelKeys("p1"))
MESSAGES: tuple[Message, ...] = (
    Prepare(place(3)),
    Promise(place(), pledge("p0")),
    Promise(place(1), pledge("p1", root=b"", ranges=()), (0, digest_of(b"u")), (5, digest_of(b"v"))),
    Nack(place(), 7),
    Start(place(), tuple(pledge(name) for name in NAMES)),
    PartSent(place(), 1, 2, (digest_of(b"l"), digest_of(b"r")), b"payload"),
    PartSent(place(), 1, 2, (), b"payload", "p2"),
    NORMS,
    Table(place(), (NORMS, replace(NORMS, reducer="p2"))),
    MeanSent(place(), 0, 1, "p1", ALL_MEMBERS, digest_of(b"m"), b"s" * 64, b"mean"),
    Want(place(), (0, 2)),
    Redo(place(), ((0, "p1"), (2, "p2"))),
    Show(place(), 2),
    Propose(place(), update(), proposal_signature(update())),
    Voted(place(), vote("p0", update())),
    Fetch((digest_of(b"a"), digest_of(b"b"))),
    Get((HEAD.anchor,)),
    ChainSent((block(),)),
    ChainSent(()),
    HeadSent(HEAD.anchor, 3, 9, digest_of(b"s"), True, 100, 10, False),
    HeadSent(HEAD.anchor, 0, 0, b"", False, 0, 0, True),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_trip(message: Message) -> None:
    """Equal after encoding and decoding, and its frame is the only one."""
    frame = encode(message)
    assert decode(frame) == message
    assert encode(decode(frame)) == frame


def test_bytes_are_named_by_whoever_receives_them() -> None:
    """The digest of an answer does not travel."""
    assert decode(encode(BytesSent(b"whatever", b"payload"))) == BytesSent(b"", b"payload")


def test_an_update_and_a_block_survive_the_disk() -> None:
    """As they lie in the chain."""
    assert Update.from_bytes(update().to_bytes()) == update()
    assert Block.from_bytes(block().to_bytes()) == block()


def test_an_update_has_one_spelling() -> None:
    """Another msgpack of the same values would be another digest for the same update."""
    plain = update().to_bytes()
    name = b"\xa2" + update().coordinator.encode()
    before, after = plain.rsplit(name, 1)
    longer = before + b"\xd9\x02" + name[1:] + after
    assert msgpack.unpackb(longer, use_list=False) == msgpack.unpackb(plain, use_list=False)
    with pytest.raises(ValueError, match="canonical"):
        Update.from_bytes(longer)


@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_value_error(frame: bytes) -> None:
    """Nor do they become a message that cannot be sent on."""
    _decode_or_refuse(frame)


@given(kind=st.integers(0, 32), body=st.binary(max_size=200))
def test_random_bodies_raise_nothing_but_value_error(kind: int, body: bytes) -> None:
    """Behind every type byte."""
    _decode_or_refuse(bytes((kind,)) + body)


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=70)
    | st.binary(max_size=70) | st.just(HEAD.anchor),
    lambda inner: st.lists(inner, max_size=10) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=30,
)  # fmt: skip


@given(kind=st.sampled_from(sorted({message.code for message in MESSAGES})), value=plain_values)
def test_random_msgpack_raises_nothing_but_value_error(kind: int, value: object) -> None:
    """Well-formed values of the wrong shape, type or range."""
    _decode_or_refuse(bytes((kind,)) + msgpack.packb(value))


@given(message=st.sampled_from(MESSAGES), data=st.data())
def test_mutated_frames_raise_nothing_but_value_error(message: Message, data: st.DataObject) -> None:
    """One byte changed, inserted or cut off, anywhere in a valid frame."""
    frame = bytearray(encode(message))
    at = data.draw(st.integers(0, len(frame) - 1))
    match data.draw(st.sampled_from(("change", "insert", "cut"))):
        case "change":
            frame[at] = data.draw(st.integers(0, 255))
        case "insert":
            frame.insert(at, data.draw(st.integers(0, 255)))
        case _:
            del frame[at:]
    _decode_or_refuse(bytes(frame))


def _decode_or_refuse(frame: bytes) -> None:
    try:
        message = decode(frame)
    except ValueError:
        return
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "spoil",
    [
        lambda: Nack(place(), 1 << 32),
        lambda: PartSent(place(), 2, 0, (), b""),
        lambda: PartSent(place(), 0, 1 << 17, (), b""),
        lambda: PartSent(place(), 0, 0, (digest_of(b""),) * 18, b""),
        lambda: PartSent(place(), 1, 0, (), b"", "p" * 65),
        lambda: Redo(place(), ((1 << 17, "p1"),)),
        lambda: Redo(place(), ((0, "p" * 65),)),
        lambda: Show(place(), 1 << 17),
        lambda: Want(place(), (-1,)),
        lambda: Want(replace(place(), anchor=b"short"), ()),
        lambda: Fetch((digest_of(b""),) * (FETCH_MOST + 1)),
        lambda: Start(place(), (pledge("p0"),) * 65),
        lambda: Promise(place(), pledge("p" * 65)),
        lambda: Promise(place(), pledge("p0", ranges=((0, 0, 1),) * 1025)),
        lambda: Propose(place(), update(weights=((1, 2),)), b"s" * 64),
        lambda: Propose(place(), update(weights=((1, 2, 65537),)), b"s" * 64),
        lambda: Propose(place(), update(), b"short"),
        lambda: Propose(place(), update(took=((0, 0, 0, 0),)), b"s" * 64),
        lambda: Propose(place(), update(took=((0, 0, 0, 1 << 32),) * 3), b"s" * 64),
        lambda: Propose(place(), update(took=((0, 0, 0),) * 3), b"s" * 64),
        lambda: Propose(place(), update(waited=(0, 0, 0, -1)), b"s" * 64),
        lambda: Propose(place(), update(penalties=(("p0", "LATE", 65537, 2, b""),)), b"s" * 64),
        lambda: Propose(place(), update(penalties=(("p0", "LATE", 0, 2, b"short"),)), b"s" * 64),
        lambda: Propose(place(), update(penalties=(("p0", "LATE", 0, 2, b""),) * 257), b"s" * 64),
        lambda: Promise(place(), pledge("p0", staleness=-1)),
        lambda: HeadSent(HEAD.anchor, -1, 0, b"", False, 0, 0, False),
        lambda: HeadSent(HEAD.anchor, 1, 0, b"s" * 33, False, 0, 0, False),
        lambda: replace(NORMS, measured=((0, (1,)),)),
    ],
)
def test_values_out_of_range_are_refused(spoil: Callable[[], Message]) -> None:
    """Each with one value that the protocol does not know."""
    with pytest.raises(ValueError, match=r"expected|version"):
        decode(encode(spoil()))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_frame_above_its_cap_is_refused_before_it_is_unpacked(message: Message) -> None:
    """Each type has a size beyond which it cannot be honest."""
    with pytest.raises(ValueError, match="at most"):
        decode(bytes((message.code,)) + bytes(message.cap_bytes))


def test_the_largest_honest_start_fits() -> None:
    """64 members that each used 1024 ranges of data."""
    ranges = tuple((2**40 + index, 2**40, 2**41) for index in range(1024))
    largest = Start(place(), tuple(pledge(f"p{index}", ranges=ranges) for index in range(64)))
    assert decode(encode(largest)) == largest
