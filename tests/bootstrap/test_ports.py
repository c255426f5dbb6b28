"""A node takes the ports again that its invites name."""

from __future__ import annotations

from pathlib import Path

import pytest

from bootstrap.server import PORTS_FILE, restore_ports, save_ports
from dht.errors import BadInput

LISTEN = ("/ip4/0.0.0.0/tcp/0", "/ip6/::/udp/0/quic-v1", "/ip4/192.168.1.5/tcp/4001")
ADDRESSES = (
    "/ip4/203.0.113.5/tcp/55555/p2p/x",  # what a router maps tells nothing of the port here
    "/ip4/127.0.0.1/tcp/40001/p2p/x", "/ip6/::1/udp/40002/quic-v1/p2p/x", "/ip4/192.168.1.5/tcp/4001/p2p/x",
)  # fmt: skip


def test_the_ports_of_the_first_time_are_taken_again(tmp_path: Path) -> None:
    assert restore_ports(tmp_path, LISTEN) == LISTEN
    save_ports(tmp_path, LISTEN, ADDRESSES)
    kept = ("/ip4/0.0.0.0/tcp/40001", "/ip6/::/udp/40002/quic-v1", "/ip4/192.168.1.5/tcp/4001")
    assert restore_ports(tmp_path, LISTEN) == kept
    save_ports(tmp_path, LISTEN, [address.replace("4000", "4111") for address in ADDRESSES])
    assert restore_ports(tmp_path, LISTEN) == kept, "most invites name the first ones"


def test_who_names_a_port_gets_that_one(tmp_path: Path) -> None:
    save_ports(tmp_path, LISTEN, ADDRESSES)
    named = ("/ip4/0.0.0.0/tcp/31337",)
    assert restore_ports(tmp_path, named) == named


def test_where_others_are_told_another_address_nothing_is_kept(tmp_path: Path) -> None:
    save_ports(tmp_path, LISTEN, ["/dns4/my-host.example/tcp/4001/p2p/x"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("raw", ["", "[]", '{"/ip4/0.0.0.0/tcp/0": "x"}', '{"/ip4/0.0.0.0/tcp/0": 70000}'])
def test_a_damaged_file_is_named(tmp_path: Path, raw: str) -> None:
    (tmp_path / PORTS_FILE).write_text(raw)
    with pytest.raises(BadInput, match=r"ports\.json is damaged"):
        restore_ports(tmp_path, LISTEN)
