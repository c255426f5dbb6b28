"""Frames between the homes of a cluster: all of them in order, or both ends hear that the way is cut."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from dht.streams.flow import FlowLimits, FlowStreams
from peer.testing.child_process import HANG_S

pytestmark = pytest.mark.swarm

ONE, TWO = b"1" * 16, b"2" * 16
"""Tags."""
PATIENCE = FlowLimits(open_timeout_s=HANG_S)


class Ear:
    """What a home hears; `deaf` keeps the next frame from being taken."""

    def __init__(self, flow: FlowStreams) -> None:
        self.frames: list[tuple[str, bytes]] = []
        self.cuts: list[str] = []
        self.may_take = asyncio.Event()
        self.may_take.set()
        self._news = asyncio.Event()
        flow.limits = PATIENCE
        flow.listen(self._on_frame, self._on_cut)

    async def _on_frame(self, sender: str, frame: bytes) -> None:
        await self.may_take.wait()
        self.frames.append((sender, frame))
        self._news.set()

    def _on_cut(self, peer: str, why: str) -> None:
        assert why
        self.cuts.append(peer)
        self._news.set()

    async def until(self, frames: int = 0, cuts: int = 0) -> None:
        async with asyncio.timeout(HANG_S):
            while len(self.frames) < frames or len(self.cuts) < cuts:
                self._news.clear()
                await self._news.wait()


class Home:
    def __init__(self, world: Any, peer: str) -> None:
        self.peer, self.node = peer, world.nodes[peer]
        self.flow: FlowStreams = self.node.flow
        self.ear = Ear(self.flow)


async def homes(world: Any, count: int, caps: dict[str, float] | None = None) -> list[Home]:
    found = []
    for _ in range(count):
        identity, _, _ = await world.add_peer(caps=caps)
        found.append(Home(world, identity.peer_id))
    return found


async def pair(world: Any, caps: dict[str, float] | None = None) -> tuple[Home, Home]:
    """Two that have admitted each other."""
    alice, bob = await homes(world, 2, caps)
    alice.flow.admit(bob.peer, ONE)
    bob.flow.admit(alice.peer, ONE)
    return alice, bob


async def send_all(flow: FlowStreams, to: str, frames: list[bytes]) -> None:
    for frame in frames:
        await flow.send(to, frame)


async def test_frames_of_any_size_come_whole_and_in_order_both_ways_at_once(real_world: Any) -> None:
    """60 each way, of 1 B to 8 MB, from senders that never wait for an answer."""
    alice, bob = await pair(real_world)
    draw = Random(1)
    sizes = [1, 8 << 20, *(round(2 ** draw.uniform(0, 23)) for _ in range(58))]
    frames = [draw.randbytes(size) for size in sizes]
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(send_all(alice.flow, bob.peer, frames))
        tasks.create_task(send_all(bob.flow, alice.peer, frames[::-1]))
        await alice.ear.until(frames=60)
        await bob.ear.until(frames=60)
    assert bob.ear.frames == [(alice.peer, frame) for frame in frames]
    assert alice.ear.frames == [(bob.peer, frame) for frame in frames[::-1]]
    assert not alice.ear.cuts + bob.ear.cuts
    assert bob.node.tally.peers[alice.peer].received >= sum(map(len, frames)) + 4 * len(frames)
    assert bob.node.bytes_received < 1000, "a round does not cost them"


async def test_a_stranger_is_refused_before_anything_of_it_is_read(real_world: Any) -> None:
    """Carol is of the same run, and Bob has not admitted her; Alice, whom he has, shows another tag."""
    alice, bob, carol = await homes(real_world, 3)
    bob.flow.admit(alice.peer, ONE)
    for stranger in (alice, carol):
        reader, writer = await stranger.node._daemon.open_stream(bob.peer, stranger.flow._protocol, 5.0)
        with closing(writer):
            writer.write(TWO + (3).to_bytes(4, "big") + b"bad")
            async with asyncio.timeout(HANG_S):
                assert await reader.read() == b""
    carol.flow.limits = FlowLimits(open_timeout_s=1.0)
    carol.flow.admit(bob.peer, ONE)
    await carol.flow.send(bob.peer, b"bad")
    await carol.ear.until(cuts=1)
    alice.flow.admit(bob.peer, ONE)
    await alice.flow.send(bob.peer, b"good")
    await bob.ear.until(frames=1)
    assert bob.ear.frames == [(alice.peer, b"good")]


async def test_a_control_frame_overtakes_flights_that_wait(real_world: Any) -> None:
    """At 8 Mbit/s the flights take two seconds."""
    alice, bob = await pair(real_world, {"upload_bps": 8e6})
    heard: list[int] = []
    bob.node.streams.listen(lambda sender, frame: heard.append(len(bob.ear.frames)))
    await alice.flow.send(bob.peer, b"first")
    await bob.ear.until(frames=1)
    for _ in range(4):
        await alice.flow.send(bob.peer, bytes(500_000))
    alice.node.streams.send(bob.peer, b"vote")
    await bob.ear.until(frames=5)
    assert heard == [1]


async def test_flights_and_a_round_share_a_line(real_world: Any) -> None:
    """Half each of 20 Mbit/s, while both want all of it."""
    alice, bob = await pair(real_world, {"upload_bps": 20e6})
    flights_before: list[int] = []
    bob.node.streams.listen(lambda sender, frame: flights_before.append(len(bob.ear.frames)))
    sending = asyncio.create_task(send_all(alice.flow, bob.peer, [bytes(100_000)] * 60))
    await bob.ear.until(frames=4)
    for _ in range(25):
        alice.node.streams.send_bulk(bob.peer, lambda: bytes(100_000))
    await bob.ear.until(frames=60)
    await sending
    flights = flights_before[-1] - flights_before[0]
    parts = len(flights_before) - 1
    assert len(flights_before) == 25
    assert flights / parts == pytest.approx(1.0, abs=0.35)


async def test_both_ends_hear_of_a_cut_and_nothing_of_before_comes_later(real_world: Any) -> None:
    """Frames wait on a slow line when it happens; another tag makes another way."""
    alice, bob = await pair(real_world, {"upload_bps": 2e6})
    await bob.flow.send(alice.peer, b"here")
    await alice.ear.until(frames=1)
    for _ in range(8):
        await alice.flow.send(bob.peer, b"old" * 100_000)
    await bob.ear.until(frames=1)
    way = bob.flow._ways[alice.peer]
    assert way.reading is not None
    way.reading.cancel()  # as when the process that reads has ended
    await alice.ear.until(cuts=1)
    await bob.ear.until(cuts=1)
    await alice.flow.send(bob.peer, b"to nobody")
    before = len(bob.ear.frames)
    alice.flow.admit(bob.peer, ONE)
    assert bob.peer not in alice.flow.admitted, "that way is over"
    alice.flow.admit(bob.peer, TWO)
    bob.flow.admit(alice.peer, TWO)
    await alice.flow.send(bob.peer, b"new")
    await bob.ear.until(frames=before + 1)
    assert bob.ear.frames[before:] == [(alice.peer, b"new")]
    assert alice.ear.cuts == [bob.peer]
    assert bob.ear.cuts == [alice.peer]


async def test_a_home_that_is_gone_is_cut_at_once(real_world: Any) -> None:
    """Though nothing is on its way."""
    alice, bob = await pair(real_world)
    await alice.flow.send(bob.peer, b"x")
    await bob.flow.send(alice.peer, b"x")
    await alice.ear.until(frames=1)
    await bob.ear.until(frames=1)
    await real_world.remove_peer(bob.peer)
    await alice.ear.until(cuts=1)


async def test_a_better_stream_loses_nothing(real_world: Any) -> None:
    """It is opened between two frames, again and again."""
    alice, bob = await pair(real_world)
    for number in range(30):
        await alice.flow.send(bob.peer, bytes([number]) * 100_000)
        await bob.ear.until(frames=number)
        alice.flow.redial(bob.peer)
    await bob.ear.until(frames=30)
    assert [frame[0] for _, frame in bob.ear.frames] == list(range(30))
    assert not alice.ear.cuts + bob.ear.cuts


async def test_who_sends_more_than_is_taken_waits(real_world: Any) -> None:
    """Bob's trainer takes nothing: Alice's queue fills, and what streams and sockets hold between them."""
    alice, bob = await pair(real_world)
    alice.flow.limits = FlowLimits(queue_bytes=1 << 20)
    bob.ear.may_take.clear()
    frames = [bytes([number]) * (1 << 20) for number in range(100)]
    sending = asyncio.create_task(send_all(alice.flow, bob.peer, frames))
    await real_world.until(lambda: alice.flow._ways[bob.peer]._queued_bytes >= 1 << 20)
    assert not sending.done()
    assert alice.flow._ways[bob.peer]._queued_bytes <= 2 << 20
    bob.ear.may_take.set()
    await bob.ear.until(frames=100)
    await sending
    assert [frame for _, frame in bob.ear.frames] == frames


async def test_what_waits_for_room_is_dropped_with_its_way(real_world: Any) -> None:
    alice, bob = await pair(real_world)
    alice.flow.limits = replace(PATIENCE, queue_bytes=1)
    bob.ear.may_take.clear()
    sending = asyncio.create_task(send_all(alice.flow, bob.peer, [bytes(4 << 20)] * 50))
    await real_world.until(lambda: alice.flow._ways[bob.peer]._queued_bytes >= 1)
    # Bob hears of a cut by the end of a stream that he has; without one he would only find that none comes about.
    await real_world.until(lambda: bob.flow._ways[alice.peer].reading is not None)
    assert not sending.done()
    alice.flow.cut(bob.peer, "its owner says so")
    async with asyncio.timeout(HANG_S):
        await sending
    await bob.ear.until(cuts=1)
