"""Peers that were met: kept in a file, newest first, few, and only what can be dialled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dht.errors import BadAddress
from dht.identity import Identity
from dht.reach.peer_store import FILE_BYTES_MOST, PEERS_MOST, PeerStore
from dht.records import MAX_ADDRESSES

PEERS = [Identity.from_seed(number.to_bytes(32, "big")).peer_id for number in range(PEERS_MOST + 3)]


def at(peer: str, port: int = 4001) -> str:
    return f"/ip4/203.0.113.5/tcp/{port}/p2p/{peer}"


def test_who_was_met_last_comes_first_also_in_the_next_life(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    met = PeerStore(path)
    assert met.addresses == ()
    for peer in (PEERS[0], PEERS[1], PEERS[0]):
        met.note(peer, [at(peer)])
    assert met.addresses == PeerStore(path).addresses == (at(PEERS[0]), at(PEERS[1]))


def test_a_peer_that_moved_is_known_at_its_new_address_alone(tmp_path: Path) -> None:
    met = PeerStore(tmp_path / "peers.json")
    met.note(PEERS[0], [at(PEERS[0], 1)])
    met.note(PEERS[0], [at(PEERS[0], 2)])
    assert met.addresses == (at(PEERS[0], 2),)


def test_what_somebody_names_is_dialled_first_beside_what_is_known(tmp_path: Path) -> None:
    """Also at another start, when it may have moved; what cannot be dialled is refused, and nothing is noted."""
    met = PeerStore(tmp_path / "peers.json")
    met.note(PEERS[0], [at(PEERS[0], 9)])
    met.note(PEERS[1], [at(PEERS[1])])
    for _ in range(2):
        met.note_named([at(PEERS[0], 1), at(PEERS[0], 2)])
        assert met.addresses == (*(at(PEERS[0], port) for port in (1, 2, 9)), at(PEERS[1]))
    with pytest.raises(BadAddress, match="the peer id is missing"):
        met.note_named([at(PEERS[2]), "/ip4/203.0.113.5/tcp/1"])
    assert PEERS[2] not in "".join(met.addresses)


def test_only_so_many_peers_and_addresses(tmp_path: Path) -> None:
    met = PeerStore(tmp_path / "peers.json")
    for peer in PEERS:
        met.note(peer, [at(peer, port) for port in range(1, MAX_ADDRESSES + 3)])
    assert len(met.addresses) == PEERS_MOST * MAX_ADDRESSES
    assert PEERS[0] not in "".join(met.addresses)
    assert (tmp_path / "peers.json").stat().st_size < FILE_BYTES_MOST


def test_addresses_of_others_and_nonsense_are_not_noted(tmp_path: Path) -> None:
    met = PeerStore(tmp_path / "peers.json")
    met.note(PEERS[0], [at(PEERS[1]), "nonsense", "/ip4/0.0.0.0/tcp/1"])
    assert met.addresses == ()
    assert not (tmp_path / "peers.json").exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b'{"v": 2, "peers": {}}', b'{"v": 1, "peers": []}', b"[" * 9000, b"\xff",
        json.dumps({"v": 1, "peers": {"x": [1], PEERS[0]: "y", PEERS[1]: [at(PEERS[0])]}}).encode(),
        b" " * (FILE_BYTES_MOST + 1),
    ],
)  # fmt: skip
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "peers.json"
    path.write_bytes(raw)
    met = PeerStore(path)
    assert met.addresses == ()
    met.note(PEERS[2], [at(PEERS[2])])
    assert PeerStore(path).addresses == (at(PEERS[2]),)
