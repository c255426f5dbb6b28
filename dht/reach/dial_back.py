"""Finds out whether others can connect to this node: another node tries to. A web service would have to be trusted.

The request `knock` holds a port (2 bytes). The node that is asked connects to that port at the asker's own address, and
nowhere else, and waits for the greeting of a libp2p node. The daemon cannot do this: it would reuse the connection that
already exists.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dht.addresses import CIRCUIT, is_global, tcp_target
from dht.errors import Unreachable
from dht.streams.base import Questions
from dht.streams.rpc import RateLimit

KNOCK = "dial-back"
GREETING = b"\x13/multistream/1.0.0\n"
"""What a libp2p node says first to whoever connects (its length, and the name of the protocol)."""
KNOCK_S = 4.0
AT_ONCE = 4
EACH_S, MOST_EACH = 60.0, 6
"""Knocks that one asker gets in that time."""
MOST = 60
"""Likewise all together: names cost nothing."""

Clock = Callable[[], float]
Connect = Callable[[str, int], Awaitable[bool]]
"""Whether a libp2p node answers at this host and port."""


@dataclass(frozen=True, kw_only=True)
class DialBack:
    """What another node found out."""

    host: str
    """The address from which it sees this node's connection."""
    port: int
    answered: bool

    @property
    def tells(self) -> bool:
        """Whether the result says anything about the internet: a node in the same house, or on the same machine,
        does not pass the router."""
        return is_global(self.host)


def serve_dial_back(node: Questions, connect: Connect | None = None, clock: Clock = time.monotonic) -> None:
    """From now on answer requests to try whether a node can be dialled."""
    allowance = RateLimit(at_once=1, each=MOST_EACH, everybody=MOST, window_s=EACH_S, clock=clock)
    at_once, connect = asyncio.Semaphore(AT_ONCE), connect or speaks_libp2p

    async def knock(peer: str, request: bytes) -> bytes | None:
        port = int.from_bytes(request, "big")
        # Whoever waited for a turn would hold one of the node's few questions meanwhile.
        if len(request) != 2 or not port or at_once.locked() or not allowance.grant(peer, 1):
            return None
        try:
            host = _host_of((await node.connections()).get(peer, CIRCUIT))
        except Unreachable:
            return None
        if host is None:
            return None
        async with at_once:
            return bytes([await connect(host, port)]) + host.encode()

    node.answer(KNOCK, knock)


def _host_of(address: str) -> str | None:
    target = None if CIRCUIT in address else tcp_target(address)
    return None if target is None else target[0]


async def speaks_libp2p(host: str, port: int) -> bool:
    """Connect, and wait for the greeting; within KNOCK_S."""
    try:
        async with asyncio.timeout(KNOCK_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                return await reader.readexactly(len(GREETING)) == GREETING
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False


async def request_dial_back(node: Questions, peer: str, port: int) -> DialBack | None:
    """Ask this peer to try that port of ours. None if it does not: it is older, busy, or connected through a relay."""
    try:
        told = await node.ask(peer, KNOCK, 2 * KNOCK_S, 64, port.to_bytes(2, "big"))
    except Unreachable:
        return None
    if not told or told[0] > 1:
        return None
    with suppress(ValueError):
        return DialBack(host=str(ipaddress.ip_address(told[1:].decode("ascii"))), port=port, answered=bool(told[0]))
    return None


def port_of(addresses: Sequence[str]) -> int | None:
    """The TCP port at which others would dial a node with these addresses; None if it listens on none. The port of a
    public address comes first: a router may forward another port than the node listens on."""
    targets = [target for address in addresses if CIRCUIT not in address and (target := tcp_target(address))]
    outside = [port for host, port in targets if is_global(host)]
    return next(iter([*outside, *(port for _, port in targets)]), None)
