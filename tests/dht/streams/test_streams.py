"""The contract of Streams, in memory and over libp2p."""

import asyncio
from typing import Any

import pytest

from dht.identity import Identity
from dht.streams.base import MAX_FRAME_BYTES
from peer.testing.child_process import HANG_S

pytestmark = pytest.mark.outside


async def test_frames_arrive_whole_in_order_and_with_their_sender(world: Any) -> None:
    alice, _, alice_streams = await world.add_peer()
    bob, _, bob_streams = await world.add_peer()
    inbox = world.inbox()
    bob_streams.listen(inbox)
    frames = [bytes([number]) * size for number, size in enumerate([0, 1, 100, 300_000, 5, 2_000_000, 7])]
    for frame in frames:
        alice_streams.send(bob.peer_id, frame)
    assert await inbox.wait_for(len(frames)) == [(alice.peer_id, frame) for frame in frames]


async def test_both_directions_at_once(world: Any) -> None:
    (alice, _, alice_streams), (bob, _, bob_streams) = await world.add_peer(), await world.add_peer()
    at_alice, at_bob = world.inbox(), world.inbox()
    alice_streams.listen(at_alice)
    bob_streams.listen(at_bob)
    alice_streams.send(bob.peer_id, b"to bob")
    bob_streams.send(alice.peer_id, b"to alice")
    assert await at_bob.wait_for(1) == [(alice.peer_id, b"to bob")]
    assert await at_alice.wait_for(1) == [(bob.peer_id, b"to alice")]


async def test_the_largest_frame_passes_and_a_larger_one_is_a_bug(world: Any) -> None:
    _, _, alice_streams = await world.add_peer()
    bob, _, bob_streams = await world.add_peer()
    inbox = world.inbox()
    bob_streams.listen(inbox)
    alice_streams.send(bob.peer_id, bytes(MAX_FRAME_BYTES))
    assert len((await inbox.wait_for(1))[0][1]) == MAX_FRAME_BYTES
    with pytest.raises(AssertionError):
        alice_streams.send(bob.peer_id, bytes(MAX_FRAME_BYTES + 1))


async def test_large_frames_are_made_when_the_stream_is_free(world: Any) -> None:
    """More than any queue holds passes, whole and in order; what is no longer wanted is skipped."""
    _, _, alice_streams = await world.add_peer(queue_bytes=2**20)
    bob, _, bob_streams = await world.add_peer()
    inbox = world.inbox()
    bob_streams.listen(inbox)
    for number in range(12):
        alice_streams.send_bulk(bob.peer_id, lambda number=number: bytes([number]) * 2**20 if number % 2 else None)
    frames = await inbox.wait_for(6)
    assert [frame[0] for _, frame in frames] == [1, 3, 5, 7, 9, 11]
    assert all(len(frame) == 2**20 for _, frame in frames)


@pytest.mark.parametrize("capped", ["upload", "download"])
async def test_on_a_capped_line_a_small_frame_overtakes_parts_of_its_own_sender(real_world: Any, capped: str) -> None:
    """The parts take seconds and come whole, in order and after it."""
    caps = {f"{capped}_bps": 4e6}
    _, _, alice_streams = await real_world.add_peer(caps=caps if capped == "upload" else None)
    bob, _, bob_streams = await real_world.add_peer(caps=caps if capped == "download" else None)
    inbox = real_world.inbox()
    bob_streams.listen(inbox)
    for number in range(3):
        alice_streams.send_bulk(bob.peer_id, lambda number=number: bytes([number]) * 500_000)
    alice_streams.send(bob.peer_id, b"small")
    frames = [frame for _, frame in await inbox.wait_for(4)]
    assert frames == [b"small", *(bytes([number]) * 500_000 for number in range(3))]


async def test_unreachable_and_silent_peers_do_not_hold_up_others(world: Any) -> None:
    """Bob never existed, Carol stopped reading; Dave still gets everything, and send never blocks."""
    _, _, streams = await world.add_peer(queue_bytes=8 * 2**20)
    carol, _, carol_streams = await world.add_peer()
    dave, _, dave_streams = await world.add_peer()
    inbox, at_carol = world.inbox(), world.inbox()
    dave_streams.listen(inbox)
    carol_streams.listen(at_carol)
    streams.send(carol.peer_id, b"first")
    await at_carol.wait_for(1)
    await world.stop_reading(carol.peer_id)
    bob = Identity.generate().peer_id
    for _ in range(30):
        for to in (bob, carol.peer_id, dave.peer_id):
            streams.send(to, bytes(2**20))
        await inbox.wait_for(len(inbox.frames) + 1)
    assert len(inbox.frames) == 30
    assert len(at_carol.frames) == 1


async def test_a_peer_that_is_gone_is_no_error(world: Any) -> None:
    _, _, alice_streams = await world.add_peer()
    bob, _, bob_streams = await world.add_peer()
    carol, _, carol_streams = await world.add_peer()
    at_bob, at_carol = world.inbox(), world.inbox()
    bob_streams.listen(at_bob)
    carol_streams.listen(at_carol)
    alice_streams.send(bob.peer_id, b"hello")
    await at_bob.wait_for(1)
    await world.remove_peer(bob.peer_id)
    alice_streams.send(bob.peer_id, b"are you there?")
    alice_streams.send(carol.peer_id, b"hello")
    assert len(await at_carol.wait_for(1)) == 1
    assert len(at_bob.frames) == 1


async def test_who_died_is_known_to_be_unreachable_and_nobody_else_is(world: Any) -> None:
    """Without a frame to it since; not one that stopped reading: its connection stands."""
    _, _, alice_streams = await world.add_peer()
    others = [await world.add_peer() for _ in range(3)]
    bob, carol, dave = (identity.peer_id for identity, _, _ in others)
    inboxes = [world.inbox() for _ in others]
    for (_, _, streams), inbox in zip(others, inboxes, strict=True):
        streams.listen(inbox)
    for to in (bob, carol, dave):
        alice_streams.send(to, b"hello")
    for inbox in inboxes:
        await inbox.wait_for(1)
    assert alice_streams.unreachable == frozenset()
    await world.stop_reading(carol)
    await world.remove_peer(bob)
    await world.until(lambda: bool(alice_streams.unreachable))
    assert alice_streams.unreachable == {bob}


async def test_garbage_is_no_peer_id_and_no_error(world: Any) -> None:
    _, _, alice_streams = await world.add_peer()
    bob, _, bob_streams = await world.add_peer()
    inbox = world.inbox()
    bob_streams.listen(inbox)
    alice_streams.send("not a peer id", b"x")
    alice_streams.send(bob.peer_id, b"y")
    assert len(await inbox.wait_for(1)) == 1


@pytest.mark.swarm
async def test_a_header_beyond_the_cap_is_cut_off_before_its_bytes(real_world: Any) -> None:
    mallory, _, _ = await real_world.add_peer()
    bob, _, bob_streams = await real_world.add_peer()
    inbox = real_world.inbox()
    bob_streams.listen(inbox)
    reader, writer = await real_world.nodes[mallory.peer_id]._links.dial(bob.peer_id)
    writer.write((MAX_FRAME_BYTES + 1).to_bytes(4, "big") + bytes(100))
    async with asyncio.timeout(HANG_S):
        assert await reader.read() == b""
    writer.close()
    assert inbox.frames == []


@pytest.mark.swarm
async def test_frames_pass_again_after_a_restart(real_world: Any) -> None:
    """The stream to a peer that restarted is dead; the next frames find the new one."""
    from dht.node import open_node

    _, _, alice_streams = await real_world.add_peer()
    bob, _, bob_streams = await real_world.add_peer()
    inbox = real_world.inbox()
    bob_streams.listen(inbox)
    alice_streams.send(bob.peer_id, b"before")
    await inbox.wait_for(1)
    config = real_world.nodes[bob.peer_id]._config
    await real_world.remove_peer(bob.peer_id)
    await real_world.until(lambda: bob.peer_id in alice_streams.unreachable)
    async with open_node(config) as again:
        assert again.peer_id == bob.peer_id
        again.streams.listen(inbox)
        await real_world.until(lambda: bob.peer_id not in alice_streams.unreachable)
        await inbox.wait_for(2, meanwhile=lambda: alice_streams.send(bob.peer_id, b"after"))


@pytest.mark.swarm
async def test_what_waits_for_a_silent_peer_is_bounded_in_bytes_and_time(real_world: Any) -> None:
    """Memory does not grow with what is sent; the stream is given up, and a new one serves when the peer wakes."""
    queue_bytes = 4 * 2**20
    _, _, alice_streams = await real_world.add_peer(
        queue_bytes=queue_bytes, progress_timeout_s=2.0, retry_s=(0.05, 0.1)
    )
    bob, _, bob_streams = await real_world.add_peer()
    inbox = real_world.inbox()
    bob_streams.listen(inbox)
    alice_streams.send(bob.peer_id, b"first")
    await inbox.wait_for(1)
    await real_world.stop_reading(bob.peer_id)
    sent_before = alice_streams.bytes_sent
    for _ in range(100):
        alice_streams.send(bob.peer_id, bytes(2**20))
    assert alice_streams.frames_dropped == 96
    await real_world.until(lambda: alice_streams.frames_dropped > 96)
    assert alice_streams.bytes_sent - sent_before < queue_bytes
    real_world.wake_all()
    await inbox.wait_for(2, meanwhile=lambda: alice_streams.send(bob.peer_id, b"awake"))


@pytest.mark.swarm
async def test_a_frame_sent_right_before_the_end_arrives(real_world: Any) -> None:
    """A peer's last word (it leaves) must not die in a buffer."""
    alice, _, alice_streams = await real_world.add_peer()
    bob, _, bob_streams = await real_world.add_peer()
    inbox = real_world.inbox()
    bob_streams.listen(inbox)
    alice_streams.send(bob.peer_id, b"hello")
    await inbox.wait_for(1)
    alice_streams.send(bob.peer_id, bytes(3_000_000))
    alice_streams.send(bob.peer_id, b"bye")
    await real_world.remove_peer(alice.peer_id)
    assert (await inbox.wait_for(3))[-1] == (alice.peer_id, b"bye")
