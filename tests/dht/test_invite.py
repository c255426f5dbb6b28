"""Invites: issued, read back, and every way in which one can be wrong."""

import base64
import contextlib
import stat
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dht import invite
from dht.errors import BadAddress, BadInvite, RunMismatch
from dht.identity import Identity
from dht.protocol_version import PROTOCOL_VERSION

ORGANISER = Identity.from_seed(b"o" * 32)
ADDRESS = f"/ip4/203.0.113.5/tcp/31337/p2p/{ORGANISER.peer_id}"
SPEC_HASH = b"s" * 32
NOW_S = 1_800_000_000.0
TEXT = invite.issue(ORGANISER, run="tiny", spec_hash=SPEC_HASH, addrs=(ADDRESS,))


def forge(signer: Identity = ORGANISER, **changes: Any) -> str:
    """An invite with other fields, correctly signed by `signer`."""
    fields = {
        "v": 1,
        "run": "tiny",
        "spec_hash": SPEC_HASH,
        "organiser": ORGANISER.peer_id,
        "addrs": [ADDRESS],
        "min_version": 3,
        "protocol": PROTOCOL_VERSION,
    }
    fields |= changes
    body = msgpack.packb({key: value for key, value in fields.items() if value is not ...})
    spec_hash = fields["spec_hash"] if isinstance(fields["spec_hash"], bytes) else b""
    packed = msgpack.packb([body, signer.sign(spec_hash, "invite", body)])
    return "hf1:" + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def test_says_what_was_issued() -> None:
    text = invite.issue(
        ORGANISER, run="tiny", spec_hash=SPEC_HASH, addrs=(ADDRESS,), token=b"t", once=True, expires=NOW_S + 3600
    )  # fmt: skip
    assert invite.parse(text, NOW_S) == invite.Invite(
        run="tiny",
        spec_hash=SPEC_HASH,
        organiser=ORGANISER.peer_id,
        addrs=(ADDRESS,),
        token=b"t",
        once=True,
        expires=NOW_S + 3600,
    )


def test_survives_line_breaks_of_a_mail_program() -> None:
    folded = "  " + "\r\n".join(TEXT[start : start + 60] for start in range(0, len(TEXT), 60)) + "\n"
    assert invite.parse(folded, NOW_S) == invite.parse(TEXT, NOW_S)


def test_forge_makes_a_valid_invite_when_nothing_is_changed() -> None:
    """The tests below would prove nothing otherwise."""
    assert invite.parse(forge(), NOW_S) == invite.parse(TEXT, NOW_S)


def test_fields_of_newer_clients_are_skipped() -> None:
    assert invite.parse(forge(v=2, colour="red"), NOW_S).run == "tiny"


def test_issue_checks_addresses() -> None:
    with pytest.raises(BadAddress):
        invite.issue(ORGANISER, run="tiny", spec_hash=SPEC_HASH, addrs=("/ip4/1.2.3.4/tcp/1",))


def test_a_client_of_the_first_protocol_says_that_it_is_too_old() -> None:
    """It reads what needs version 2 at most, and looks for nothing else."""
    packed = TEXT.removeprefix("hf1:")
    body, _ = msgpack.unpackb(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
    assert msgpack.unpackb(body)["min_version"] == 3


def test_who_has_taken_part_comes_back_with_an_invite_that_is_over(tmp_path: Path) -> None:
    """A service starts the same command line for months."""
    old = forge(expires=NOW_S - 1)
    with pytest.raises(BadInvite, match="expired"):
        invite.parse_for(tmp_path, old, NOW_S)
    (tmp_path / "genesis").touch()
    assert invite.parse_for(tmp_path, old, NOW_S).expires == NOW_S - 1
    with pytest.raises(BadInvite, match="not signed"):
        invite.parse_for(tmp_path, forge(Identity.from_seed(b"x" * 32)), NOW_S)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not an invite"),
        ("hello", "not an invite"),
        ("hf2:abc", "not an invite"),
        ("hf1:", "damaged"),
        ("hf1:!!!", "damaged"),
        ("hf1:é", "damaged"),
        (TEXT[:-1], "damaged|not signed"),
        (TEXT[:-20], "damaged"),
        (TEXT + "A", "damaged|not signed"),
        ("hf1:" + "A" * 9000, "longer"),
        (forge(Identity.from_seed(b"x" * 32)), "not signed"),
        (forge(expires=NOW_S - 7200), r"expired 2\.0 hours ago"),
        (forge(expires=NOW_S - 60), "expired less than an hour ago"),
        (forge(min_version=4), "needs invite version 4"),
        (forge(min_version="2"), "damaged"),
        (forge(min_version=True), "damaged"),
        (forge(min_version=1, protocol=...), r"of protocol version 1, .* install homefires 0\.1"),
        (
            forge(min_version=4, protocol=PROTOCOL_VERSION + 1),
            f"of protocol version {PROTOCOL_VERSION + 1}, .* install a newer homefires",
        ),
        (forge(protocol="2"), "damaged"),
        (forge(addrs=["/ip4/1.2.3.4/tcp/1"]), "bad address.*peer id is missing"),
        (forge(addrs=["/ip4/127.0.0.1/unix/x"]), "bad address"),
        (forge(addrs=[]), "damaged"),
        (forge(addrs=[1]), "damaged"),
        (forge(addrs=[ADDRESS] * 17), "damaged"),
        (forge(run="../etc"), "damaged"),
        (forge(run="\x1b[31m"), "damaged"),
        (forge(run=...), "damaged"),
        (forge(spec_hash=b"short"), "damaged"),
        (forge(spec_hash="x"), "damaged"),
        (forge(organiser="nobody"), "damaged"),
        (forge(expires="soon"), "damaged"),
        (forge(checkpoint=[0, b"a" * 32]), "damaged"),
        (forge(checkpoint=[7, b"a" * 31]), "damaged"),
        (forge(checkpoint=b"a" * 32), "damaged"),
        (forge(token=5), "damaged"),
        (forge(token=b""), "damaged"),
        (forge(token=bytes(33)), "damaged"),
        (forge(token=b"t", once=1), "damaged"),
    ],
)
def test_wrong_ones_are_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(BadInvite, match=says) as caught:
        invite.parse(text, NOW_S)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@given(st.integers(4, len(TEXT) - 1), st.characters(codec="ascii", categories=["L", "N", "P"]))
def test_no_character_can_be_changed(position: int, character: str) -> None:
    changed = TEXT[:position] + character + TEXT[position + 1 :]
    try:
        parsed = invite.parse(changed, NOW_S)
    except BadInvite:
        return
    # The last base64 character has spare bits.
    assert changed == TEXT or position == len(TEXT) - 1
    assert parsed == invite.parse(TEXT, NOW_S)


MSGPACK_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(-(2**63), 2**64 - 1), inner),
)


PACKED = MSGPACK_LIKE.map(msgpack.packb)


@pytest.mark.slow
@given(st.binary() | PACKED | PACKED.map(lambda body: msgpack.packb([body, b""])))
@example(b"\x91" * 2000)
@example(b"\xdd\xff\xff\xff\xff")
@example(msgpack.packb([msgpack.packb({b"run": 1}), b""]))
@example(msgpack.packb([b"\xd6\xff\xff\xff\xff\xff", b""]))
def test_whatever_the_bytes_the_answer_is_one_line(raw: bytes) -> None:
    with pytest.raises(BadInvite):
        invite.parse("hf1:" + base64.urlsafe_b64encode(raw).decode(), NOW_S)


@given(st.text())
def test_whatever_the_text_the_answer_is_one_line(text: str) -> None:
    with pytest.raises(BadInvite):
        invite.parse(text, NOW_S)


FIELD = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary() | st.text()


@given(
    st.sampled_from(
        ["run", "spec_hash", "organiser", "addrs", "token", "expires", "checkpoint", "min_version", "protocol"]
    ),
    FIELD,
)
def test_whatever_a_signed_field_holds_parse_reads_or_refuses(name: str, value: Any) -> None:
    """Even the organiser cannot make a client fail."""
    with contextlib.suppress(BadInvite):
        parsed = invite.parse(forge(**{name: value}), NOW_S)
        assert parsed.expires is None or parsed.expires > NOW_S


# ---- in files ----


def test_a_file_holds_it_however_it_was_pasted(tmp_path: Path) -> None:
    file = tmp_path / "invite.txt"
    file.write_text(f"\n  {TEXT[:60]}\r\n{TEXT[60:]}\n")
    assert invite.parse(invite.read_text(str(file)), NOW_S) == invite.parse(TEXT, NOW_S)
    assert invite.read_text(TEXT) == TEXT


def test_no_more_of_a_file_is_read_than_an_invite_can_have(tmp_path: Path) -> None:
    file = tmp_path / "invite.txt"
    with file.open("wb") as sparse:
        sparse.write(TEXT.encode())
        sparse.truncate(1 << 40)
    with pytest.raises(BadInvite, match="holds no invite"):
        invite.read_text(str(file))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for named in ("", "no\0file", str(tmp_path / "missing"), str(tmp_path), "/dev/zero"):
        with pytest.raises(BadInvite, match="is no invite"):
            invite.read_text(named)


def test_a_folder_keeps_the_newest_invite_of_one_run(tmp_path: Path) -> None:
    """Nobody else can read it; another run or another organiser needs a folder of its own."""
    kept = invite.save_in(invite.parse(TEXT, NOW_S), tmp_path / "p")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    written_at = kept.stat().st_mtime_ns
    assert invite.save_in(invite.parse(TEXT, NOW_S), tmp_path / "p").stat().st_mtime_ns == written_at
    newer = forge(token=b"t")
    invite.save_in(invite.parse(newer, NOW_S), tmp_path / "p")
    assert kept.read_text() == newer
    other = Identity.generate()
    for text in (forge(spec_hash=b"t" * 32), forge(other, organiser=other.peer_id)):
        with pytest.raises(RunMismatch, match="belongs to another run, tiny"):
            invite.save_in(invite.parse(text, NOW_S), tmp_path / "p")
    assert kept.read_text() == newer
    kept.write_text("rubbish")
    invite.save_in(invite.parse(TEXT, NOW_S), tmp_path / "p")
    assert kept.read_text() == TEXT
