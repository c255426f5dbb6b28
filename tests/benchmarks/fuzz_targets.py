"""What is fuzzed: how examples are made, and what must become of them."""

from __future__ import annotations

import base64
import json
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
from hypothesis import strategies as st

from dht import invite
from dht.admission import issue_admission, read_admission, read_quarantine, sign_quarantine
from dht.dht_board import rejection_of
from dht.errors import BadInvite
from dht.identity import Identity
from dht.records import HEAD, MAX_TTL_S, Malformed, PeerRecord, Record, pack, sign_record, unpack
from peer.consensus.protocol.block import Vote
from peer.consensus.protocol.messages import VoteCast, decode, encode
from peer.network.link.link import RunKeys
from peer.node.control.server import MAX_LINE_BYTES, Commands, ControlServer
from peer.node.telemetry.reporter import Reporter
from peer.schema.events import EventLine, format_line, parse_line
from tests.peer.consensus.protocol.test_messages import MESSAGES

ORGANISER, ALICE, MALLORY = (Identity.from_seed(letter * 32) for letter in (b"o", b"a", b"m"))
RUN, NOW_S = b"r" * 32, 1_800_000_000.0
ADDRS = (f"/ip4/203.0.113.5/tcp/31337/p2p/{ORGANISER.peer_id}",)

Check = Callable[[Any], str]
Target = tuple[st.SearchStrategy[Any], Check]


class Forged(AssertionError):
    """Something was believed that nobody signed."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise Forged(what)


@contextmanager
def targets() -> Iterator[dict[str, Target]]:
    """By name: how an example is made, and what looks at it."""
    with tempfile.TemporaryDirectory(prefix="hf-") as folder, controlled(Path(folder)) as control:
        yield {
            "invites": (invites(), check_invite),
            "records": records(),
            "admissions and orders": (certificates(), check_certificate),
            "frames": (frames(), check_frame),
            "control messages": (requests(), control),
            "event lines": (lines(), check_line),
        }


# ---- how examples are made ----

SCALAR = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary(max_size=80) | st.text()
ANYTHING = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=12) | st.integers(0, 9), inner)
)


def _packed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


@st.composite
def changed(draw: st.DrawFn, genuine: tuple[bytes, ...]) -> bytes:
    """One of these, with up to three bytes flipped, cut out, put in or repeated; or the genuine one."""
    data = bytearray(draw(st.sampled_from(genuine)))
    for kind in draw(st.lists(st.sampled_from(["flip", "cut", "put", "repeat", "end"]), max_size=3)):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        length = draw(st.integers(1, 8))
        match kind:
            case "flip" if data:
                data[at] ^= draw(st.integers(1, 255))
            case "cut":
                del data[at : at + length]
            case "put":
                data[at:at] = draw(st.binary(min_size=1, max_size=length))
            case "repeat":
                data[at:at] = data[at : at + length]
            case "end":
                del data[at:]
    return bytes(data)


def wild(genuine: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """Mostly changed ones; else msgpack of anything, or bytes."""
    return changed(genuine) | changed(genuine) | ANYTHING.map(_packed) | st.binary(max_size=300)


# ---- invites ----

INVITES = tuple(
    invite.issue(ORGANISER, run="tiny", spec_hash=RUN, addrs=ADDRS, **terms)
    for terms in ({}, {"token": b"t" * 16, "once": True}, {"token": b"t", "expires": NOW_S + 60})
)
READ = {text: invite.parse(text, NOW_S) for text in INVITES}


def _raw(text: str) -> bytes:
    payload = text.removeprefix(invite.PREFIX)
    return base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))


def _text(raw: bytes) -> str:
    return invite.PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")


@st.composite
def _claimed(draw: st.DrawFn) -> bytes:
    """Fields of somebody's making in the organiser's name, signed by another or by nobody."""
    fields = msgpack.unpackb(msgpack.unpackb(_raw(INVITES[1]))[0])
    name = draw(st.sampled_from([*fields, "colour"]))
    body = _packed({**fields, name: draw(SCALAR)})
    signature = MALLORY.sign(RUN, "invite", body) if draw(st.booleans()) else draw(st.binary(min_size=64, max_size=64))
    return _packed([body, signature])


def invites() -> st.SearchStrategy[str]:
    genuine = tuple(map(_raw, INVITES))
    texts = changed(tuple(text.encode() for text in INVITES)).map(lambda raw: raw.decode("latin-1"))
    return texts | (wild(genuine) | _claimed()).map(_text) | st.text()


def check_invite(text: str) -> str:
    why = ""
    try:
        read = invite.parse(text, NOW_S)
    except BadInvite as error:
        why = str(error)
    if why:
        assert len(why.splitlines()) == 1, why
        assert len(why) < 700, why
        return "refused"
    must(read.organiser != ORGANISER.peer_id or read in READ.values(), f"{read}")
    return "genuine" if read.organiser == ORGANISER.peer_id else "of another organiser"


# ---- records ----

BODY = PeerRecord(
    run=RUN, anchor=b"a" * 32, round=3, weight=9, state=b"s" * 32, ready=True, tokens=1, steps=1,
    leaving=False, name="x", version="1", addrs=ADDRS,
)  # fmt: skip


def _record(author: Identity, run: bytes = RUN, **changes: Any) -> Record:
    return sign_record(author, run, HEAD, replace(BODY, run=run, **changes).pack(), round(time.time()) + MAX_TTL_S)


def records() -> Target:
    """(subkey, value, expiry) as a node is asked to store them. Signed now, since no record lives for long."""
    genuine = (_record(ALICE), _record(ALICE, round=4), _record(MALLORY))
    # Of another run; and Mallory's words in Alice's name.
    foreign = (_record(ALICE, b"x" * 32), replace(_record(MALLORY), author=ALICE.peer_id))
    values = wild(tuple(map(pack, (*genuine, *foreign)))).map(_packed) | wild(tuple(map(pack, genuine)))
    subkeys = st.sampled_from([_packed(ALICE.peer_id), _packed(MALLORY.peer_id)]) | st.binary(max_size=60)
    expiries = st.sampled_from([record.expires for record in genuine]) | st.floats(0, 4e9) | st.floats()
    return st.tuples(subkeys, values, expiries), partial(check_record, genuine)


def check_record(genuine: tuple[Record, ...], example: tuple[bytes, bytes, float]) -> str:
    subkey, value, expires = example
    if rejection_of(RUN, HEAD, subkey, value, expires) is not None:
        return "refused"
    record = unpack(msgpack.unpackb(value))
    must(record in genuine, f"{record}")
    must(record.expires == expires, f"{record} until {expires}")
    must(subkey == _packed(record.author), f"{record} under {subkey!r}")
    return "genuine"


# ---- admissions and orders ----

ADMISSION = issue_admission(ORGANISER, RUN, ALICE.peer_id, NOW_S)
ORDERS = sign_quarantine(ORGANISER, RUN, 3, {MALLORY.peer_id: "sends noise"})
OTHERS = (issue_admission(MALLORY, RUN, ALICE.peer_id), issue_admission(ORGANISER, b"x" * 32, ALICE.peer_id))


def certificates() -> st.SearchStrategy[bytes]:
    return wild(
        (
            ADMISSION.to_bytes(),
            ORDERS.to_bytes(),
            sign_quarantine(MALLORY, RUN, 9, {ALICE.peer_id: "in my way"}).to_bytes(),
            *(other.to_bytes() for other in OTHERS),
        )
    )


def check_certificate(packed: bytes) -> str:
    found = "refused"
    for peer in (ALICE.peer_id, MALLORY.peer_id):
        try:
            admission = read_admission(packed, RUN, ORGANISER.peer_id, peer)
        except Malformed:
            continue
        must(admission == ADMISSION, f"{admission}")
        found = "genuine"
    try:
        orders = read_quarantine(packed, RUN, ORGANISER.peer_id)
    except Malformed:
        return found
    must(orders == ORDERS, f"{orders}")
    return "genuine"


# ---- frames of a round ----

KEYS = RunKeys(ALICE, RUN)
VOTE = Vote(ALICE.peer_id, b"i" * 32, 2, b"u" * 32, b"p" * 64).signed(KEYS)
FRAMES = (encode(VoteCast(MESSAGES[0].place, VOTE)), *map(encode, MESSAGES))  # type: ignore[attr-defined]


def frames() -> st.SearchStrategy[bytes]:
    return (
        wild(FRAMES) | changed(FRAMES[:1]) | st.builds(bytes.__add__, st.binary(min_size=1, max_size=1), wild(FRAMES))
    )


def check_frame(frame: bytes) -> str:
    try:
        message = decode(frame)
    except ValueError:
        return "refused"
    if isinstance(message, VoteCast) and message.vote != VOTE:
        must(not message.vote.genuine(KEYS), f"{message.vote}")
    return "read"


# ---- requests at the control socket ----

REQUESTS = tuple(
    json.dumps({"v": 1, "id": 7, "cmd": cmd, **more}).encode()
    for cmd, more in (
        ("status", {}), ("pause", {}), ("resume", {}), ("finish", {}), ("leave", {}), ("events", {"from": 0}),
        ("snooze", {"minutes": 60}), ("set", {"values": {"upload_mbps": 5}}),
    )
)  # fmt: skip


def _request(cmd: Any, values: Any, id: Any) -> bytes:
    return json.dumps({"v": 1, "id": id, "cmd": cmd, "values": values, "minutes": values, "from": values}).encode()


def requests() -> st.SearchStrategy[bytes]:
    plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    value = st.recursive(
        plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
    )
    names = st.sampled_from(["status", "pause", "resume", "finish", "snooze", "set", "events"]) | plain
    made = st.builds(_request, names, value, plain) | changed(REQUESTS) | st.binary(max_size=200)
    return made.map(lambda line: line.replace(b"\n", b" ")[: MAX_LINE_BYTES - 1])


@contextmanager
def controlled(directory: Path) -> Iterator[Check]:
    """A control socket with a peer behind it that has nothing to do; each example is one line."""
    (directory / "run").mkdir(mode=0o700)
    session = Reporter(lambda event: None)
    commands = Commands(session, "run", ALICE.peer_id, "fuzzed", lambda: None)
    with ControlServer(directory, commands), socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30.0)
        client.connect(str(directory / "run" / "control"))
        with client.makefile("rb") as answers:
            yield partial(_ask, client, answers)


def _ask(client: socket.socket, answers: Any, line: bytes) -> str:
    """One line in, one object out, and it says whether it was understood."""
    client.sendall(line + b"\n")
    answer = json.loads(answers.readline())
    assert answer["ok"] or (isinstance(answer["error"], str) and "\n" not in answer["error"]), answer
    return "done" if answer["ok"] else "refused"


# ---- event lines ----

LINES = tuple(
    text.encode()
    for text in (Path(__file__).parents[1] / "tui" / "recordings" / "demo.jsonl").read_text().splitlines()[::40]
)


@st.composite
def _retyped(draw: st.DrawFn) -> bytes:
    """A genuine line in which one field holds something else."""
    row = json.loads(draw(st.sampled_from(LINES)))
    plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    row[draw(st.sampled_from(sorted(row)))] = draw(
        plain | st.lists(plain, max_size=3) | st.dictionaries(st.text(), plain)
    )
    return json.dumps(row).encode()


def lines() -> st.SearchStrategy[str]:
    made = changed(LINES) | _retyped() | st.binary(max_size=200)
    return made.map(lambda raw: raw.decode("utf-8", "replace"))


def check_line(text: str) -> str:
    try:
        line = parse_line(text)
    except ValueError:
        return "refused"
    if line is None:
        return "unknown"
    again = parse_line(format_line(line))
    assert isinstance(again, EventLine)
    assert format_line(again) == format_line(line), text
    assert (line.run + line.peer).isprintable(), text
    return "read"
