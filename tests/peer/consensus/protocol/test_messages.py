"""Frames: every message survives the trip, and nothing but a message gets through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.protocol_version import PROTOCOL_VERSION
from peer.consensus.aggregation.peer_history import NOTHING, NormStats, PeerHistory
from peer.consensus.protocol import messages
from peer.consensus.protocol.block import (
    ALL_MEMBERS,
    MAX_DELEGATES,
    MAX_EVIDENCE,
    MAX_NORMS,
    MAX_RECORDS,
    MAX_REPORTS,
    MAX_RESTARTS,
    Block,
    Penalty,
    Restart,
    Roster,
    Stuck,
    Update,
)
from peer.consensus.protocol.encoding import digest_of, require_few, unpack
from peer.consensus.protocol.messages import (
    FETCH_MOST,
    Blocks,
    EquivocationProof,
    GetBlocks,
    GetMeans,
    GetObjects,
    Heartbeat,
    MeanData,
    Message,
    Nack,
    ObjectData,
    Objection,
    PartData,
    Prepare,
    Promise,
    Propose,
    Reassign,
    Restarted,
    RosterSaid,
    RowDispute,
    Start,
    StuckSaid,
    VoteCast,
    decode,
    encode,
)
from tests.peer.consensus.rounds.build import (
    HEAD,
    NAMES,
    block,
    header,
    place,
    proposal_signature,
    update,
    vote,
)

MEMBERS = tuple(header(name) for name in NAMES)
RECORD = PeerHistory("p0", 3, (NormStats(1.0, 0.25, 4, 1), NOTHING), b"8 bytes.8 more..")
ROSTER = Roster(7, NAMES, ("x0", "x1"), b"s" * 64)
JUDGED = replace(
    update(), members=(header("p0", reports=(("p1", "it lied"), ("p2", "it too")), away=("p1", "p2")), *MEMBERS[1:]),
    records=(RECORD,), scales=(65_536, 0, 1), pulls=(0, 1, 65_536), weights=((65_536, 0, 0), (0, 0, 0), (1, 2, 3)),
    penalties=(("p0", "MISDECLARED", 0, 9, -1, "2 of 3 members caught it"), ("p1", "ANOMALY", 65_536, 2, 65_536, "é")),
    roster=ROSTER,
)  # fmt: skip
MEAN = MeanData(place(), 0, 1, "p1", ALL_MEMBERS, digest_of(b"m"), b"s" * 64, b"mean")
PREPARED = tuple(vote(name, update(), phase=1) for name in NAMES[:2])
"""The votes of a quorum that has checked an update."""
STUCK = Stuck("p0", HEAD.anchor, NAMES, 1, (0, update().digest), PREPARED, b"s" * 64)
RESTART = Restart(HEAD.anchor, 1, (STUCK, replace(STUCK, voter="p1", accepted=None, certificate=())), True, b"s" * 64)
MESSAGES: tuple[Message, ...] = (
    Prepare(place(3)),
    Promise(place(), header("p0")),
    Promise(place(1), header("p1", root=b"", ranges=()), (0, update().digest), PREPARED),
    Nack(place(), 7),
    Start(place(), tuple(header(name) for name in NAMES)),
    PartData(place(), 1, 2, (digest_of(b"l"), digest_of(b"r")), b"payload"),
    MEAN,
    GetMeans(place(), (0, 2)),
    Reassign(place(), ((0, "p1"), (2, "p2"))),
    Propose(place(), update(), proposal_signature(update())),
    Propose(place(1), JUDGED, proposal_signature(JUDGED), PREPARED),
    *(VoteCast(place(), vote("p0", update(), phase=phase)) for phase in range(3)),
    GetObjects((digest_of(b"a"), digest_of(b"b"))),
    GetBlocks((HEAD.anchor,)),
    Blocks((block(), replace(block(), restarts=(RESTART,)))),
    Blocks(()),
    Heartbeat(HEAD.anchor, 3, 9, digest_of(b"s"), True, 100, 10, False),
    Heartbeat(HEAD.anchor, 0, 0, b"", False, 0, 0, True),
    Heartbeat(HEAD.anchor, 0, 0, b"", False, 0, 0, False, "a name", 4, (1 << 64) - 1),
    EquivocationProof(place(), (digest_of(b"one"), b"s" * 64), (digest_of(b"other"), b"t" * 64)),
    RowDispute(place(), 2, digest_of(b"m"), ALL_MEMBERS, (digest_of(b"l"),), b"payload"),
    RowDispute(place(), 0, digest_of(b"m"), 1, (), b"payload", "p2"),
    Objection(place(), 2, digest_of(b"m"), ALL_MEMBERS),
    StuckSaid(STUCK),
    Restarted(RESTART),
    RosterSaid(ROSTER),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_trip(message: Message) -> None:
    """Equal after encoding and decoding, and its frame is the only one."""
    frame = encode(message)
    assert decode(frame) == message
    assert encode(decode(frame)) == frame


def test_bytes_are_named_by_whoever_receives_them() -> None:
    """The digest of an answer does not travel."""
    assert decode(encode(ObjectData(b"whatever", b"payload"))) == ObjectData(b"", b"payload")


def test_an_update_and_a_block_survive_the_disk() -> None:
    """As they lie in the chain."""
    assert Update.from_bytes(update().to_bytes()) == update()
    assert Update.from_bytes(JUDGED.to_bytes()) == JUDGED
    assert Block.from_bytes(block().to_bytes()) == block()
    restarted = replace(block(), restarts=(RESTART,))
    assert Block.from_bytes(restarted.to_bytes()) == restarted


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


def test_a_frame_of_another_version_says_which_program_helps() -> None:
    """Peers of a run update on different days."""
    frame = encode(MESSAGES[0])
    with pytest.raises(ValueError, match=r"of protocol version 1, .* install homefires 0\.1"):
        decode(b"\x01" + frame[1:])
    with pytest.raises(ValueError, match="install a newer homefires"):
        decode(bytes((PROTOCOL_VERSION + 1,)) + frame[1:])


@given(kind=st.integers(0, 32), body=st.binary(max_size=200))
def test_random_bodies_raise_nothing_but_value_error(kind: int, body: bytes) -> None:
    """Behind every type byte."""
    _decode_or_refuse(bytes((PROTOCOL_VERSION, kind)) + body)


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=70)
    | st.binary(max_size=70) | st.just(HEAD.anchor),
    lambda inner: st.lists(inner, max_size=10) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=30,
)  # fmt: skip


@pytest.mark.slow
@given(kind=st.sampled_from(sorted({message.code for message in MESSAGES})), value=plain_values)
def test_random_msgpack_raises_nothing_but_value_error(kind: int, value: object) -> None:
    """Well-formed values of the wrong shape, type or range."""
    _decode_or_refuse(bytes((PROTOCOL_VERSION, kind)) + msgpack.packb(value))


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


def late(factor: int = 0, until: int = 2, layer: int = -1, evidence: str = "late") -> Penalty:
    return "p0", "LATE", factor, until, layer, evidence


def proposing(**changes: object) -> Propose:
    return Propose(place(), replace(update(), **changes), b"s" * 64)  # type: ignore[arg-type]


def promising(**changes: object) -> Promise:
    return Promise(place(), header("p0", **changes))


def stuck_with(**changes: object) -> StuckSaid:
    return StuckSaid(replace(STUCK, **changes))  # type: ignore[arg-type]


def row_dispute(**changes: object) -> RowDispute:
    plain = RowDispute(place(), 2, digest_of(b"m"), 7, (), b"payload")
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda: Nack(place(), 1 << 32),
        lambda: PartData(place(), 2, 0, (), b""),
        lambda: PartData(place(), 0, 1 << 17, (), b""),
        lambda: PartData(place(), 0, 0, (digest_of(b""),) * 18, b""),
        lambda: Reassign(place(), ((1 << 17, "p1"),)),
        lambda: Reassign(place(), ((0, "p" * 65),)),
        lambda: GetMeans(place(), (-1,)),
        lambda: GetMeans(replace(place(), anchor=b"short"), ()),
        lambda: GetObjects((digest_of(b""),) * (FETCH_MOST + 1)),
        lambda: Start(place(), (header("p0"),) * 65),
        lambda: Promise(place(), header("p" * 65)),
        lambda: Promise(place(), header("p0", ranges=((0, 0, 1),) * 1025)),
        lambda: Propose(place(), update(weights=((1, 2),)), b"s" * 64),
        lambda: Propose(place(), update(), b"short"),
        lambda: Propose(place(), update(took=((0, 0, 0, 0),)), b"s" * 64),
        lambda: Propose(place(), update(took=((0, 0, 0, 1 << 32),) * 3), b"s" * 64),
        lambda: Propose(place(), update(took=((0, 0, 0),) * 3), b"s" * 64),
        lambda: Propose(place(), update(waited=(0, 0, 0, -1)), b"s" * 64),
        lambda: proposing(penalties=(late(factor=65_537),)),
        lambda: proposing(penalties=(late(until=0),)),
        lambda: proposing(penalties=(late(layer=-2),)),
        lambda: proposing(penalties=(late(layer=65_537),)),
        lambda: proposing(penalties=(late(evidence="a line\n"),)),
        lambda: proposing(penalties=(late(evidence="e" * (MAX_EVIDENCE + 1)),)),
        lambda: proposing(penalties=(late()[:5],)),
        lambda: proposing(penalties=(late(),) * 513),
        lambda: proposing(scales=(65_537,)),
        lambda: proposing(scales=(-1,)),
        lambda: proposing(pulls=(1.0,)),
        lambda: proposing(roster=replace(ROSTER, number=-1)),
        lambda: proposing(roster=replace(ROSTER, known=NAMES[::-1])),
        lambda: proposing(roster=replace(ROSTER, out=("x0", "x0"))),
        lambda: proposing(roster=replace(ROSTER, signature=b"s" * 65)),
        lambda: replace(proposing(), certificate=PREPARED[:1] * 65),
        lambda: proposing(records=(RECORD,) * (MAX_RECORDS + 1)),
        lambda: proposing(records=(replace(RECORD, stats=(NormStats(float("nan"), 0.0, 1, 0),)),)),
        lambda: proposing(records=(replace(RECORD, stats=(NormStats(1.0, float("inf"), 1, 0),)),)),
        lambda: proposing(records=(replace(RECORD, stats=(NormStats(-1.0, 0.0, 1, 0),)),)),
        lambda: proposing(records=(replace(RECORD, roots=b"short"),)),
        lambda: proposing(records=(replace(RECORD, seen=-1),)),
        lambda: proposing(records=(replace(RECORD, peer="p" * 65),)),
        lambda: Promise(place(), header("p0", reports=(("p1", "a line\n"),))),
        lambda: Promise(place(), header("p0", reports=(("p1", "e" * (MAX_EVIDENCE + 1)),))),
        lambda: Promise(place(), header("p0", reports=(("p" * 65, "it lied"),))),
        lambda: Promise(place(), header("p0", reports=(("p2", "it lied"), ("p1", "it lied")))),
        lambda: Promise(place(), header("p0", reports=(("p1", "it lied"), ("p1", "twice")))),
        lambda: Promise(place(), header("p0", reports=tuple((f"p{i:02}", "") for i in range(MAX_REPORTS + 1)))),
        lambda: promising(away=("p2", "p1")),
        lambda: promising(away=("p1", "p1")),
        lambda: Start(place(), (header("p0", norms=b"n" * (MAX_NORMS + 1)),)),
        lambda: replace(promising(), accepted=(-1, digest_of(b"u"))),
        lambda: replace(promising(), accepted=(0, b"short")),
        lambda: replace(promising(), certificate=PREPARED[:1] * 65),
        lambda: VoteCast(place(), vote("p0", update(), phase=3)),
        lambda: VoteCast(place(), vote("p0", update(), phase=-1)),
        lambda: row_dispute(part=1 << 17),
        lambda: row_dispute(digest=b"short"),
        lambda: row_dispute(contributors=-1),
        lambda: row_dispute(path=(digest_of(b""),) * 18),
        lambda: row_dispute(giver="p" * 65),
        lambda: Objection(place(), -1, digest_of(b"m"), 7),
        lambda: Objection(place(), 0, b"", 7),
        lambda: Objection(place(), 0, digest_of(b"m"), -1),
        lambda: stuck_with(voter="p" * 65),
        lambda: stuck_with(electorate=NAMES[::-1]),
        lambda: stuck_with(number=0),
        lambda: stuck_with(number=MAX_RESTARTS + 1),
        lambda: stuck_with(accepted=(0, b"short")),
        lambda: stuck_with(certificate=PREPARED[:1] * 65),
        lambda: stuck_with(signature=b"short"),
        lambda: Restarted(replace(RESTART, stuck=())),
        lambda: Restarted(replace(RESTART, stuck=(STUCK,) * 65)),
        lambda: Restarted(replace(RESTART, signature=b"")),
        lambda: RosterSaid(replace(ROSTER, number=-1)),
        lambda: RosterSaid(replace(ROSTER, known=tuple(f"p{i:02}" for i in range(65)))),
        lambda: Blocks((replace(block(), restarts=(RESTART,) * (MAX_RESTARTS + 1)),)),
        lambda: Heartbeat(HEAD.anchor, -1, 0, b"", False, 0, 0, False),
        lambda: Heartbeat(HEAD.anchor, 1, 0, b"s" * 33, False, 0, 0, False),
        lambda: Heartbeat(HEAD.anchor, 1, 0, b"", False, 0, 0, False, unreachable=-1),
    ],
)
def test_values_out_of_range_are_refused(spoil: Callable[[], Message]) -> None:
    """Each with one value that the protocol does not know."""
    with pytest.raises(ValueError, match="expected"):
        decode(encode(spoil()))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_frame_above_its_cap_is_refused_before_it_is_unpacked(message: Message) -> None:
    """Each type has a size beyond which it cannot be honest."""
    with pytest.raises(ValueError, match="at most"):
        decode(bytes((PROTOCOL_VERSION, message.code)) + bytes(message.cap_bytes))


NESTED = b"\xdd\x00\x00\x3f\xff" + b"\x91\x91\x91\xc0" * 16_383


@pytest.mark.parametrize("kind", sorted({message.code for message in MESSAGES}))
def test_many_small_values_are_counted_before_one_of_them_is_made(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a payload or a list of digests may be, 16 million lists of one fit: to make them takes four seconds."""
    room = max(message.cap_bytes for message in MESSAGES if message.code == kind) - 7
    filled = NESTED * (room // len(NESTED)) or b"\x91" * (room - 1) + b"\xc0"
    junk = b"\xdd" + (room // len(NESTED) or 1).to_bytes(4, "big") + filled
    made = list[int]()
    monkeypatch.setattr(messages, "unpack", lambda packed: made.append(len(packed)) or unpack(packed))
    _decode_or_refuse(bytes((PROTOCOL_VERSION, kind)) + junk)
    assert sum(made) <= 1 << 12


def test_an_extension_hides_nothing_from_the_count() -> None:
    """An empty one, of the type that begins long bytes: what follows is no part of it."""
    hidden = b"\x92\xc7\x00\xc6" + b"\x00\xff\xff\xff" * 100
    with pytest.raises(ValueError, match="extension"):
        require_few(hidden, 4)


@given(plain_values)
def test_what_is_counted_is_what_msgpack_makes(value: object) -> None:
    """No value more, none less."""

    def size(value: object) -> int:
        if isinstance(value, dict):
            return 1 + sum(size(key) + size(item) for key, item in value.items())
        return 1 + (sum(map(size, value)) if isinstance(value, list) else 0)

    require_few(msgpack.packb(value), size(value))
    with pytest.raises(ValueError, match="at most"):
        require_few(msgpack.packb(value), size(value) - 1)


def test_the_largest_honest_start_fits() -> None:
    """64 members that each used 1024 ranges of data."""
    ranges = tuple((2**40 + index, 2**40, 2**41) for index in range(1024))
    largest = Start(place(), tuple(header(f"p{index}", ranges=ranges) for index in range(64)))
    assert decode(encode(largest)) == largest


def test_the_largest_honest_promise_and_stuck_fit() -> None:
    """Certificates of 64 voters, 1,024 ranges of data, 16 reports, 63 voters away, 32 delegates, 2,048 layers."""
    names = tuple(f"Qm{index:044}" for index in range(64))
    votes, accepted = tuple(vote(name, update(), phase=1) for name in names), (0, update().digest)
    largest = header(
        names[0], ranges=tuple((2**40 + index, 2**40, 2**41) for index in range(1024)), away=names[1:],
        reports=tuple((name, "e" * MAX_EVIDENCE) for name in names[:MAX_REPORTS]), norms=b"n" * 12 * 2048,
        delegates=tuple((2**40, 2**40, name) for name in names[:MAX_DELEGATES]),
    )  # fmt: skip
    promise = Promise(place(), largest, accepted, votes)
    assert decode(encode(promise)) == promise
    start = Start(place(), (largest,) * 64)
    assert decode(encode(start)) == start
    stuck = replace(STUCK, electorate=names, certificate=votes)
    assert decode(encode(StuckSaid(stuck))) == StuckSaid(stuck)
    restarted = Restarted(replace(RESTART, stuck=(stuck,) * 64))
    assert decode(encode(restarted)) == restarted


def test_the_largest_honest_list_fits() -> None:
    """64 names that are known, and 64 that are kept out."""
    names = tuple(f"Qm{index:044}" for index in range(64))
    said = RosterSaid(Roster(1, names, names, b"s" * 64))
    assert decode(encode(said)) == said
