"""Addresses that a person supplies or an invite carries, checked before anything dials them; and the networks that
peers come from. Keys cost nothing but addresses do: an IPv4 /24 or IPv6 /48 counts as one network."""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress

from multiaddr import Multiaddr

from dht.errors import BadAddress
from dht.identity import public_key_of

ALL_INTERFACES = ("/ip4/0.0.0.0/tcp/0",)
"""Where `bootstrap` and `join` listen unless told otherwise; the system picks the port."""
LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
"""Where `demo` listens: nobody else can connect."""

NOWHERE = "none"
"""In the place of an address to listen on: others reach this peer through relays, and connections of its own."""
CIRCUIT = "/p2p-circuit"
"""In an address: from here on through a relay."""
RELAYED = "a relay"
"""The network of those whom this node does not see itself."""
NetworkOf = Callable[[str], str]
"""The network of a peer; empty while it is not known, which counts as one network."""
MAX_ADDRESS_BYTES = 511

_HOSTS = frozenset({"ip4", "ip6", "dns", "dns4", "dns6", "dnsaddr"})
_TRANSPORTS = (["tcp"], ["udp", "quic-v1"])
_EXAMPLE = "/ip4/203.0.113.5/tcp/31337"
_PLAIN = re.compile(r"[A-Za-z0-9./:_%-]+")


def check_dial(address: str) -> str:
    """An address to connect to, such as `/ip4/203.0.113.5/tcp/31337/p2p/12D3Koo…`; raises BadAddress."""
    names, parsed = _parse(address)
    if names[-1:] != ["p2p"]:
        raise BadAddress(f"{_short(address)}: the peer id is missing; an address ends in /p2p/12D3Koo…")
    peer_id = parsed.value_for_protocol("p2p")
    if peer_id is None or public_key_of(peer_id) is None:
        raise BadAddress(f"{_short(address)}: {peer_id} is not an Ed25519 peer id (12D3Koo…)")
    if names[:-1] != ["dnsaddr"]:
        _check_host_and_transport(address, names[:-1])
    if _port(parsed) == "0":
        raise BadAddress(f"{_short(address)}: nobody can dial port 0; name the port")
    if address.startswith(("/ip4/0.0.0.0/", "/ip6/::/")):
        raise BadAddress(f"{_short(address)}: nobody can dial this address; name the one that others reach you at")
    return address


def check_listen(address: str) -> str:
    """An address to listen on, such as `/ip4/0.0.0.0/tcp/0` (port 0: any free one); raises BadAddress."""
    names, _ = _parse(address)
    if "p2p" in names:
        raise BadAddress(f"{_short(address)}: an address to listen on has no /p2p/… part")
    _check_host_and_transport(address, names)
    if names[0] not in ("ip4", "ip6"):
        raise BadAddress(f"{_short(address)}: listen on an IP address, such as /ip4/0.0.0.0/tcp/0")
    return address


def check_announce(address: str) -> str:
    """An address that others shall dial, without /p2p; raises BadAddress."""
    names, parsed = _parse(address)
    if "p2p" in names:
        raise BadAddress(f"{_short(address)}: an address to announce has no /p2p/… part; it is added")
    _check_host_and_transport(address, names)
    if _port(parsed) == "0":
        raise BadAddress(f"{_short(address)}: nobody can dial port 0; name the port")
    if address.startswith(("/ip4/0.0.0.0/", "/ip6/::/")):
        raise BadAddress(f"{_short(address)}: nobody can dial this address; name the one that others reach you at")
    return address


def can_be_dialled(address: str) -> bool:
    """Whether `check_dial` accepts it. It does not accept a relay's circuit: a peer's HEAD names its relays."""
    try:
        check_dial(address)
    except BadAddress:
        return False
    return True


def circuit(relay: str, peer: str) -> str:
    """Where to dial a peer that holds a slot at this relay: any address of the relay works."""
    return f"/p2p/{relay}{CIRCUIT}/p2p/{peer}"


def is_circuit(address: str) -> bool:
    """Whether this is what `circuit` gives for two peer ids."""
    match address.split("/"):
        case ["", "p2p", relay, "p2p-circuit", "p2p", peer]:
            return relay != peer and public_key_of(relay) is not None and public_key_of(peer) is not None
    return False


def peer_id_in(address: str) -> str:
    """The peer id of a checked dial address, or the one at the far end of a circuit."""
    return address.rpartition("/p2p/")[2]


def tcp_target(address: str) -> tuple[str, int] | None:
    """Host and port of a checked address that is dialled by TCP; None for any other."""
    parts = address.split("/")
    if len(parts) < 5 or parts[3] != "tcp" or parts[1] == "dnsaddr":
        return None
    return parts[2], int(parts[4])


def is_global(host: str) -> bool:
    """Whether it is a public IP address; False for a name."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_global
    return False


def listened_on(said: Iterable[str]) -> tuple[str, ...]:
    """The addresses to listen on that these words name."""
    return tuple(word for word in said if word != NOWHERE)


def are_loopback(addresses: Iterable[str]) -> bool:
    return all(address.startswith(("/ip4/127.", "/ip6/::1/")) for address in addresses)


# ---- networks ----


def network_of(address: str) -> str:
    """The /24 or /48 of a multiaddr; all relayed addresses count as one network; empty if it tells none."""
    if CIRCUIT in address:
        return RELAYED
    match address.split("/")[1:3]:
        case ["ip4" | "ip6" as family, host]:
            bits = 24 if family == "ip4" else 48
            return str(ipaddress.ip_network(f"{ipaddress.ip_address(host)}/{bits}", strict=False))
    return ""


def nowhere(peer: str) -> str:
    """The `NetworkOf` of a node that does not look."""
    return ""


def rivals_of(asker: str, holders: Iterable[str], of: NetworkOf) -> tuple[list[str], bool]:
    """Among which holders somebody makes room for one that asks, in their order, and whether one must: those of the
    network with most places, if it has at least two more than the asker's; else those of the asker's own."""
    holding = defaultdict[str, list[str]](list)
    for holder in holders:
        holding[of(holder)].append(holder)
    mine = holding.pop(of(asker), [])
    most = max(holding.values(), key=len, default=[])
    return (most, True) if len(most) > len(mine) + 1 else (mine, False)


def displaced_by(asker: str, holders: Iterable[str], of: NetworkOf) -> str | None:
    """Who makes room for one that asks: the first holder of the network with most places; nobody where that is the
    asker's own, or has hardly more."""
    rivals, must = rivals_of(asker, holders, of)
    return rivals[0] if must else None


# ---- checks ----


def _parse(address: str) -> tuple[list[str], Multiaddr]:
    if len(address) > MAX_ADDRESS_BYTES:
        raise BadAddress(f"{_short(address)}: longer than {MAX_ADDRESS_BYTES} characters")
    if not _PLAIN.fullmatch(address):
        raise BadAddress(f"{_short(address)}: not an address; write one such as {_EXAMPLE}")
    try:
        parsed = Multiaddr(address)
        return [protocol.name for protocol in parsed.protocols()], parsed
    except ValueError as error:
        reason = re.sub(r"^Invalid MultiAddr '.*?': | \(string: .*\)$", "", str(error))
        if not address.startswith("/"):
            reason = "not an address"
        raise BadAddress(f"{_short(address)}: {reason}; write one such as {_EXAMPLE}") from error


def _check_host_and_transport(address: str, names: list[str]) -> None:
    if names[:1] and names[0] not in _HOSTS:
        raise BadAddress(f"{_short(address)}: cannot use /{names[0]}; start with /ip4, /ip6 or /dns")
    if names[1:] not in _TRANSPORTS:
        raise BadAddress(f"{_short(address)}: needs /tcp/PORT or /udp/PORT/quic-v1 after the host")


def _port(parsed: Multiaddr) -> str | None:
    values = dict((protocol.name, value) for protocol, value in parsed.items())
    return values.get("tcp", values.get("udp"))


def _short(address: str) -> str:
    text = address if len(address) <= 90 else address[:87] + "…"
    return repr(text)
