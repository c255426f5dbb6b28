"""Who asks others to try whether it can be dialled learns the truth, and nobody else is dialled for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dht.errors import Unreachable
from dht.reach.dial_back import (
    AT_ONCE,
    EACH_S,
    GREETING,
    KNOCK,
    MOST,
    MOST_EACH,
    DialBack,
    port_of,
    request_dial_back,
    serve_dial_back,
    speaks_libp2p,
)

ADDRESS = "/ip4/203.0.113.7/tcp/50001"


class Node:
    """Asks itself; whoever asks comes from `address`."""

    def __init__(self, address: str | None = ADDRESS) -> None:
        self.tried: list[tuple[str, int]] = []
        self.now = 0.0
        self._address = address
        self._answer: Callable[[str, bytes], Awaitable[bytes | None]]
        serve_dial_back(self, self._connect, lambda: self.now)

    async def _connect(self, host: str, port: int) -> bool:
        self.tried.append((host, port))
        return port == 4001

    async def connections(self) -> dict[str, str]:
        if self._address is None:
            raise Unreachable("the daemon is gone")
        return {"alice": self._address, "bob": self._address}

    def answer(self, name: str, answer: Callable[[str, bytes], Awaitable[bytes | None]]) -> None:
        assert name == KNOCK
        self._answer = answer

    async def ask(
        self, peer_id: str, name: str, timeout_s: float, max_bytes: int = 64, request: bytes = b""
    ) -> bytes | None:
        return await self._answer(peer_id, request)


@pytest.mark.parametrize("port", [4001, 4002])
async def test_the_port_is_tried_where_the_asker_comes_from(port: int) -> None:
    node = Node()
    assert await request_dial_back(node, "alice", port) == DialBack(
        host="203.0.113.7", port=port, answered=port == 4001
    )
    assert node.tried == [("203.0.113.7", port)]


@pytest.mark.parametrize(
    "address", [None, "/ip4/203.0.113.9/tcp/1/p2p/relay/p2p-circuit", "/ip4/203.0.113.7/udp/1/quic-v1"]
)
async def test_who_does_not_come_straight_by_tcp_is_told_nothing(address: str | None) -> None:
    node = Node(address)
    assert await request_dial_back(node, "alice", 4001) is None
    assert await request_dial_back(node, "stranger", 4001) is None
    assert node.tried == []


@pytest.mark.parametrize("request_bytes", [b"", b"\0", b"\0\0", b"abc"])
async def test_what_is_no_port_is_told_nothing(request_bytes: bytes) -> None:
    node = Node()
    assert await node.ask("alice", KNOCK, 1.0, request=request_bytes) is None
    assert node.tried == []


async def test_so_many_knocks_and_no_more_until_time_has_passed() -> None:
    """For one asker, and for names that cost nothing all together."""
    node = Node()
    alice = [await request_dial_back(node, "alice", 4001) for _ in range(MOST_EACH + 1)]
    assert [each is None for each in alice] == [False] * MOST_EACH + [True]
    assert await request_dial_back(node, "bob", 4001) is not None
    for number in range(MOST):
        await request_dial_back(node, f"stranger-{number}", 4001)
    assert await request_dial_back(node, "bob", 4001) is None
    node.now = EACH_S
    assert await request_dial_back(node, "alice", 4001) is not None


async def test_who_would_have_to_wait_is_told_nothing_at_once() -> None:
    """Else it would hold one of the node's few questions for as long as others' knocks last."""
    node, goes_on = Node(), asyncio.Event()

    async def hang(host: str, port: int) -> bool:
        await goes_on.wait()
        return True

    serve_dial_back(node, hang, lambda: 0.0)
    waiting = [asyncio.create_task(request_dial_back(node, "alice", 4001)) for _ in range(AT_ONCE)]
    await asyncio.sleep(0)
    assert await request_dial_back(node, "bob", 4001) is None
    goes_on.set()
    assert all(each is not None for each in await asyncio.gather(*waiting))


@pytest.mark.parametrize("told", [None, b"", b"\x02127.0.0.1", b"\x01", b"\x01nowhere", b"\x01\xff\xfe"])
async def test_a_liar_tells_nothing(told: bytes | None) -> None:
    node = Node()

    async def lie(peer: str, request: bytes) -> bytes | None:
        return told

    node.answer(KNOCK, lie)
    assert await request_dial_back(node, "alice", 4001) is None


@pytest.mark.parametrize(
    ("host", "tells"), [("8.8.8.8", True), ("192.168.1.2", False), ("127.0.0.1", False), ("x", False)]
)
def test_only_who_sees_an_address_of_the_internet_says_something_of_it(host: str, tells: bool) -> None:
    assert DialBack(host=host, port=1, answered=True).tells is tells


@asynccontextmanager
async def listening(greeting: bytes) -> AsyncIterator[int]:
    """A server on loopback that says this to whoever connects, and hangs up."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.outside
async def test_only_the_greeting_of_a_libp2p_node_is_an_answer() -> None:
    async with listening(GREETING) as port:
        assert await speaks_libp2p("127.0.0.1", port)
    assert not await speaks_libp2p("127.0.0.1", port), "nobody listens there any more"
    async with listening(b"220 mail.example.org ESMTP ready\r\n") as port:
        assert not await speaks_libp2p("127.0.0.1", port)
    async with listening(b"") as port:
        assert not await speaks_libp2p("127.0.0.1", port)


def test_the_port_is_that_of_tcp() -> None:
    circuit = "/ip4/9.9.9.9/tcp/7/p2p/r/p2p-circuit/p2p/m"
    addresses = ["/ip4/1.2.3.4/udp/9/quic-v1", circuit, "/ip4/10.0.0.1/tcp/8/p2p/m"]
    assert port_of(addresses) == 8
    assert port_of([*addresses, "/ip4/8.8.8.8/tcp/31337"]) == 31337, "a router forwards that one"
    assert port_of(addresses[:2]) is None


@pytest.mark.swarm
async def test_a_real_node_is_found_where_it_listens_and_nowhere_else(real_world: Any) -> None:
    """Alice asks Bob, who sees her on loopback."""
    alice, bob = [real_world.nodes[(await real_world.add_peer())[0].peer_id] for _ in range(2)]
    serve_dial_back(bob)
    port = port_of(await alice.addresses())
    assert port is not None
    await alice.round_trip_s(bob.peer_id, 10.0)
    assert await request_dial_back(alice, bob.peer_id, port) == DialBack(host="127.0.0.1", port=port, answered=True)
    async with listening(b"") as other:
        assert await request_dial_back(alice, bob.peer_id, other) == DialBack(
            host="127.0.0.1", port=other, answered=False
        )
