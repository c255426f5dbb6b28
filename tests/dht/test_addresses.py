"""Addresses: what can be dialled, listened on, announced."""

import pytest

from dht.addresses import (
    ALL_INTERFACES,
    LOOPBACK,
    NOWHERE,
    are_loopback,
    check_announce,
    check_dial,
    check_listen,
    circuit,
    is_circuit,
    listened_on,
    peer_id_in,
)
from dht.errors import BadAddress
from dht.identity import Identity

ID = Identity.from_seed(bytes(32)).peer_id


@pytest.mark.parametrize(
    "address",
    [
        f"/ip4/203.0.113.5/tcp/31337/p2p/{ID}",
        f"/ip6/2001:db8::1/tcp/31337/p2p/{ID}",
        f"/ip4/203.0.113.5/udp/31337/quic-v1/p2p/{ID}",
        f"/dns/example.org/tcp/1/p2p/{ID}",
        f"/dns4/example.org/tcp/65535/p2p/{ID}",
        f"/dns6/example.org/udp/7/quic-v1/p2p/{ID}",
        f"/dnsaddr/example.org/tcp/7/p2p/{ID}",
        f"/dnsaddr/example.org/p2p/{ID}",
    ],
)
def test_can_be_dialled(address: str) -> None:
    assert check_dial(address) == address
    assert peer_id_in(address) == ID


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("", "not an address"),
        ("example.org:31337", "not an address"),
        ("/ip4/203.0.113.5/tcp/31337", "peer id is missing"),
        (f"/ip4/203.0.113.5/tcp/0/p2p/{ID}", "port 0"),
        (f"/ip4/203.0.113.5/udp/0/quic-v1/p2p/{ID}", "port 0"),
        (f"/ip4/203.0.113/tcp/1/p2p/{ID}", "not IPv4"),
        (f"/ip4/203.0.113.5/tcp/99999/p2p/{ID}", "range"),
        (f"/ip4/203.0.113.5/udp/1/p2p/{ID}", "needs /tcp"),
        (f"/ip4/203.0.113.5/udp/1/quic/p2p/{ID}", "needs /tcp"),
        (f"/ip4/203.0.113.5/tcp/1/ws/p2p/{ID}", "needs /tcp"),
        (f"/unix/tmp/x/p2p/{ID}", "."),
        ("/unix/tmp/x", "peer id is missing"),
        (f"/p2p/{ID}", "needs /tcp|cannot use"),
        (f"/ip4/1.2.3.4/tcp/1/p2p/{ID}/p2p-circuit/p2p/{ID}", "needs /tcp"),
        ("/ip4/1.2.3.4/tcp/1/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "not an Ed25519"),
        ("/ip4/1.2.3.4/tcp/1/p2p/xyz", "."),
        (f"/dns/{'a' * 600}/tcp/1/p2p/{ID}", "longer"),
        (f"/ip4/1.2.3.4/tcp/1/p2p/{ID}\n/ip4", "not an address"),
        (f"/ip4/1.2.3.4/tcp/1/p2p/{ID},/ip4/1.2.3.4/tcp/1/p2p/{ID}", "not an address"),
    ],
)
def test_cannot_be_dialled(address: str, says: str) -> None:
    """One line that names the value and what is wrong."""
    with pytest.raises(BadAddress, match=says) as caught:
        check_dial(address)
    assert "\n" not in str(caught.value)
    assert repr(address)[:40].rstrip("'") in str(caught.value)


@pytest.mark.parametrize("address", [*ALL_INTERFACES, *LOOPBACK, "/ip6/::/tcp/31337", "/ip4/0.0.0.0/udp/31337/quic-v1"])
def test_can_be_listened_on(address: str) -> None:
    assert check_listen(address) == address


@pytest.mark.parametrize(
    "address",
    [
        f"/ip4/0.0.0.0/tcp/0/p2p/{ID}",
        "/unix/tmp/x",
        "/dns/example.org/tcp/1",
        "/ip4/0.0.0.0",
        "/ip4/0.0.0.0/tcp/x",
        "0.0.0.0",
    ],
)
def test_cannot_be_listened_on(address: str) -> None:
    with pytest.raises(BadAddress):
        check_listen(address)


def test_announced_addresses_have_a_port_and_no_id() -> None:
    assert check_announce("/dns/example.org/tcp/31337") == "/dns/example.org/tcp/31337"
    for address in ("/dns/example.org/tcp/0", f"/dns/example.org/tcp/1/p2p/{ID}"):
        with pytest.raises(BadAddress):
            check_announce(address)


def test_loopback_is_this_machine_alone() -> None:
    assert are_loopback(LOOPBACK)
    assert not are_loopback(ALL_INTERFACES)
    assert not are_loopback([*LOOPBACK, *ALL_INTERFACES])


@pytest.mark.parametrize("address", ["/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4001"])
def test_nobody_can_dial_all_interfaces(address: str) -> None:
    with pytest.raises(BadAddress, match="name the one"):
        check_announce(address)


def test_a_circuit_leads_through_one_peer_to_another() -> None:
    relay = Identity.from_seed(b"r" * 32).peer_id
    through = circuit(relay, ID)
    assert is_circuit(through)
    assert peer_id_in(through) == ID
    for other in (
        circuit(ID, ID),
        circuit("12D3KooWnobody", ID),
        f"/ip4/203.0.113.5/tcp/1/p2p/{ID}",
        through + "/p2p/x",
        "",
    ):
        assert not is_circuit(other)
    with pytest.raises(BadAddress):
        check_dial(through)


def test_who_listens_nowhere_says_so() -> None:
    assert listened_on([NOWHERE]) == ()
    assert listened_on(LOOPBACK) == LOOPBACK
