"""Identities: the key file, the peer id, signatures."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.errors import BadInput
from dht.identity import Identity, id_bytes_of, peer_id_of, public_key_of, verify

ALICE = Identity.from_seed(bytes(32))
RUN = b"r" * 32


def test_peer_id_of_a_known_key() -> None:
    """The id that libp2p gives the all-zero seed."""
    assert ALICE.peer_id == "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"


def test_key_survives_a_restart(tmp_path: Path) -> None:
    first = Identity.load_or_create(tmp_path / "run" / "identity.key")
    again = Identity.load_or_create(tmp_path / "run" / "identity.key")
    assert again.peer_id == first.peer_id
    assert verify(first.peer_id, RUN, "x", b"payload", again.sign(RUN, "x", b"payload"))


def test_nobody_else_can_read_the_key(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        Identity.load_or_create(tmp_path / "run" / "identity.key")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "run" / "identity.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "content", [b"", b"\x08\x01\x12\x40", b"\x08\x01\x12\x40" + bytes(64), b"\x08\x00" + bytes(66)]
)
def test_a_file_that_is_no_key_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.key"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="not an Ed25519 identity"):
        Identity.load_or_create(path)
    assert path.read_bytes() == content


def test_a_signature_holds_for_its_run_kind_payload_and_signer_only() -> None:
    signature = ALICE.sign(RUN, "vote", b"payload")
    assert verify(ALICE.peer_id, RUN, "vote", b"payload", signature)
    assert not verify(Identity.generate().peer_id, RUN, "vote", b"payload", signature)
    assert not verify(ALICE.peer_id, b"s" * 32, "vote", b"payload", signature)
    assert not verify(ALICE.peer_id, RUN, "promise", b"payload", signature)
    assert not verify(ALICE.peer_id, RUN, "vote", b"payloae", signature)


def test_run_kind_and_payload_do_not_run_together() -> None:
    signature = ALICE.sign(b"ab", "c", b"d")
    assert not verify(ALICE.peer_id, b"a", "bc", b"d", signature)
    assert not verify(ALICE.peer_id, b"ab", "cd", b"", signature)


@pytest.mark.slow
@given(st.text(max_size=60) | st.just(ALICE.peer_id), st.binary(max_size=70))
def test_verify_never_raises(peer_id: str, signature: bytes) -> None:
    assert not verify(peer_id, RUN, "vote", b"payload", signature)


@given(st.binary(min_size=32, max_size=32))
def test_public_key_and_peer_id_are_one(key: bytes) -> None:
    assert public_key_of(peer_id_of(key)) == key


@pytest.mark.parametrize(
    "peer_id",
    [
        "",
        "12D3KooW",
        "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",
        ALICE.peer_id + "1",
        "1" + ALICE.peer_id,
        "0" * 52,
    ],
)
def test_what_is_no_ed25519_peer_id_has_no_key(peer_id: str) -> None:
    assert public_key_of(peer_id) is None
    assert id_bytes_of(peer_id) is None
