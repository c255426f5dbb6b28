"""Peers that nobody can dial, and the node through which they meet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from dht.addresses import CIRCUIT, circuit
from dht.identity import Identity, id_bytes_of
from dht.node import Node, open_node
from dht.reach.relay import (
    CONNECT,
    HOP,
    MALFORMED_MESSAGE,
    NO_RESERVATION,
    OK,
    PERMISSION_DENIED,
    RESERVE,
    RESOURCE_LIMIT_EXCEEDED,
    Hop,
    Relay,
    RelayLimits,
    read_message,
    reserve,
    write_message,
)
from dht.streams.shaper import Lane
from peer.testing.child_process import HANG_S
from tests.dht.test_node import config

pytestmark = pytest.mark.swarm

MORE_THAN_P2PD_PASSES = 4 * 2**20
"""Bytes: p2pd's own relay ends a circuit after 128 KiB."""


@asynccontextmanager
async def behind_routers(folder: Path, count: int, *, relays: bool = True) -> AsyncIterator[tuple[Node, list[Node]]]:
    """A node that can be dialled, and others that only it can reach."""
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(open_node(config(folder / "hub")))
        if relays:
            hub.relay_for(lambda peer: True)
        bootstrap = await hub.addresses()
        nodes = [
            config(folder / str(number), bootstrap=bootstrap, listen=(), client_mode=True, wants_relays=True)
            for number in range(count)
        ]
        yield hub, [await stack.enter_async_context(open_node(each)) for each in nodes]


async def test_two_that_only_dial_out_meet_and_talk(tmp_path: Path) -> None:
    """Questions, answers and frames, more of them than the daemon's own relay would pass."""
    async with behind_routers(tmp_path, 2) as (hub, (alice, bob)):
        assert await alice.addresses() == ()
        assert bob.relays == (hub.peer_id,)
        assert await alice.meet(bob.peer_id, [circuit(hub.peer_id, bob.peer_id)])
        connections = await alice.connections()
        assert CIRCUIT in connections[bob.peer_id]
        assert CIRCUIT not in connections[hub.peer_id]
        large = bytes(MORE_THAN_P2PD_PASSES)
        bob.serve("large", lambda: large)
        assert await alice.ask(bob.peer_id, "large", HANG_S) == large
        arrived: asyncio.Future[tuple[str, bytes]] = asyncio.get_running_loop().create_future()
        alice.streams.listen(lambda sender, frame: arrived.set_result((sender, frame)))
        bob.streams.send(alice.peer_id, b"frame")
        assert await asyncio.wait_for(arrived, HANG_S) == (bob.peer_id, b"frame")
        assert hub._relay.bytes_passed > MORE_THAN_P2PD_PASSES


async def test_nobody_is_a_relay_who_was_not_told_to_be(tmp_path: Path) -> None:
    """A volunteer's line is for the run, not for strangers: the daemon's own relay is out of the way, too."""
    async with behind_routers(tmp_path, 2, relays=False) as (hub, (alice, bob)):
        assert bob.relays == ()
        assert await asked(alice, hub, Hop(type=RESERVE)) == PERMISSION_DENIED
        assert not await alice.meet(bob.peer_id, [circuit(hub.peer_id, bob.peer_id)])


async def test_who_asks_a_relay_for_what_it_does_not_have(tmp_path: Path) -> None:
    """Is told so at once, and the relay goes on."""
    async with behind_routers(tmp_path, 1) as (hub, (alice,)):
        stranger = Hop(type=CONNECT)
        for wanted in (id_bytes_of(Identity.generate().peer_id), id_bytes_of(alice.peer_id), b"nonsense", b""):
            stranger.peer.id = wanted
            assert await asked(alice, hub, stranger) == NO_RESERVATION
        assert await asked(alice, hub, Hop(type=77)) == MALFORMED_MESSAGE
        for garbage in (b"\x03\xff\xff\xff", b"\xff\xff\x03"):
            assert await answered(alice, hub, garbage) == MALFORMED_MESSAGE
        assert await asked(alice, hub, Hop(type=RESERVE)) == OK


async def test_a_circuit_ends_for_one_when_it_ends_for_the_other(tmp_path: Path) -> None:
    """And its room is free again."""
    async with behind_routers(tmp_path, 1) as (hub, (alice,)):
        bootstrap = await hub.addresses()
        there = config(tmp_path / "bob", bootstrap=bootstrap, listen=(), client_mode=True, wants_relays=True)
        async with open_node(there) as bob:
            assert await alice.meet(bob.peer_id, [circuit(hub.peer_id, bob.peer_id)])
            assert hub._relay.circuits == 1
        await asyncio.wait_for(asyncio.gather(*hub._daemon._serving), HANG_S)
        assert hub._relay.circuits == 0


async def test_a_full_relay_says_so(tmp_path: Path) -> None:
    async with behind_routers(tmp_path, 2) as (hub, (alice, bob)):
        hub._relay.limits = RelayLimits(slots=2, circuits_per_peer=0)
        assert not await alice.meet(bob.peer_id, [circuit(hub.peer_id, bob.peer_id)])
        assert await asked(alice, hub, Hop(type=RESERVE)) == OK, "it holds one already"
        hub._relay.limits = RelayLimits(slots=1)
        alone = config(tmp_path / "more", bootstrap=await hub.addresses(), listen=(), client_mode=True)
        async with open_node(alone) as third:
            assert await asked(third, hub, Hop(type=RESERVE)) == RESOURCE_LIMIT_EXCEEDED


def relay(*members: str, **limits: int) -> Relay:
    """Of which nobody asks anything."""
    made = Relay(None, lambda peer: True, RelayLimits(**limits))  # type: ignore[arg-type]
    made.is_member = lambda peer: peer in members
    return made


def test_a_stranger_has_two_circuits_and_a_member_as_many_as_a_group_has_peers() -> None:
    made = relay("a", "b", "c")
    made._ends.update({"s": 2, "a": 31, "b": 31, "t": 1})
    assert made._is_full("s", "a")
    assert not made._is_full("t", "a")
    assert not made._is_full("b", "a")
    made._ends.update({"a": 1})
    assert made._is_full("t", "a"), "strangers take no more than half of a member's"
    assert not made._is_full("b", "a")
    made._ends.update({"a": 32})
    assert made._is_full("b", "a")


def test_strangers_leave_members_half_of_all_circuits() -> None:
    made = relay("a", "b", circuits=8)
    made._ends.update({f"s{index}": 1 for index in range(8)})
    assert made.circuits == 4
    assert made._is_full("s9", "t9")
    assert not made._is_full("a", "b")


def test_strangers_leave_members_half_of_all_slots_and_yield_theirs() -> None:
    made = relay("a", "b", "c", slots=4)
    for peer in ("s1", "s2", "s3", "a", "b", "c"):
        if made._has_slot_for(peer):
            made._slots[peer] = float("inf")
    assert list(made._slots) == ["s2", "a", "b", "c"]


def test_one_address_makes_room_for_strangers_from_others() -> None:
    """However many names it has; and it does not get its slots back."""
    made = relay(slots=16)
    made.network_of = lambda peer: peer[0]
    for peer in [*(f"a{index}" for index in range(9)), "b0", *(f"a{index}" for index in range(10, 20)), "c0", "d0"]:
        if made._has_slot_for(peer):
            made._slots[peer] = float("inf")
    assert list(made._slots) == ["a3", "a4", "a5", "a6", "a7", "b0", "c0", "d0"]


async def test_who_says_nothing_keeps_no_member_from_asking() -> None:
    """Whether one peer opens many streams, or many do."""
    made = relay("a", "b", askers=8, circuits_per_peer=3)
    silent = []
    for asker in ("s1",) * 9 + ("s2", "s3", "s4", "b", "b", "b", "b", "b"):
        if not made._is_busy(asker):
            silent.append(asyncio.create_task(made._hear(asker, asyncio.StreamReader())))
            await asyncio.sleep(0)
    assert made._asking == {"s1": 2, "s2": 1, "s3": 1, "b": 3}
    assert not made._is_busy("a")
    for task in silent:
        task.cancel()
    await asyncio.gather(*silent, return_exceptions=True)
    assert not made._asking
    assert not made._is_busy("s4")


async def test_circuits_have_a_quarter_of_the_cap_and_members_go_first() -> None:
    """By bytes that may leave, as a shaper counts them."""
    made = relay("a", "b")
    made.allow(8e6)
    assert made._shaper.bps == 2e6
    done = list[str]()

    async def take(lane: Lane, peer: str) -> None:
        for _ in range(10):
            await made._shaper.take(lane, peer, 20_000)
        done.append(peer)

    async with asyncio.timeout(HANG_S):
        await asyncio.gather(take(Lane.TRANSFER, "s"), take(Lane.CONTROL, "a"))
    assert done == ["a", "s"]


async def test_what_a_circuit_passes_waits_for_its_turn(tmp_path: Path) -> None:
    """Of 1 MB at 2 Mbit/s nothing like all is there within a second; the relay says so by what it has passed."""
    async with behind_routers(tmp_path, 2) as (hub, (alice, bob)):
        hub.allow(8e6, 0.0)
        assert await alice.meet(bob.peer_id, [circuit(hub.peer_id, bob.peer_id)])
        bob.serve("large", lambda: bytes(1_000_000))
        began_s = time.monotonic()
        assert await alice.ask(bob.peer_id, "large", HANG_S) == bytes(1_000_000)
        assert time.monotonic() - began_s > 0.7 * 8 * 1_000_000 / 2e6


async def test_a_relay_that_too_many_ask_hangs_up(tmp_path: Path) -> None:
    """It keeps nothing for who is one too many, who takes it for no relay; and it answers again when it can."""
    async with behind_routers(tmp_path, 1) as (hub, (alice,)):
        hub._relay.limits = RelayLimits(askers=0)
        assert not await reserve(alice._daemon, hub.peer_id, HANG_S)
        hub._relay.limits = RelayLimits(askers=1)
        for _ in range(2):
            assert await reserve(alice._daemon, hub.peer_id, HANG_S), "whoever asked before has made room"
            await asyncio.wait_for(asyncio.gather(*hub._daemon._serving), HANG_S)


async def asked(node: Node, relay: Node, message: object) -> int:
    """The status of a relay's answer to this message."""
    reader, writer = await node._daemon.open_stream(relay.peer_id, HOP, HANG_S)
    await write_message(writer, message)
    return await status(reader, writer)


async def answered(node: Node, relay: Node, content: bytes) -> int:
    """The same to these bytes."""
    reader, writer = await node._daemon.open_stream(relay.peer_id, HOP, HANG_S)
    writer.write(content)
    return await status(reader, writer)


async def status(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    try:
        async with asyncio.timeout(HANG_S):
            return int((await read_message(reader, Hop)).status)
    finally:
        writer.close()
