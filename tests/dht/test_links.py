"""The outgoing streams of a peer over plain sockets: no wait without an end, and nobody waits for another."""

from __future__ import annotations

import asyncio
import socket
import time
import tracemalloc
from typing import Any

import pytest
import uvloop

from dht.bucket import Lane
from dht.line import CHUNK_BYTES, Line
from dht.links import HEADER_BYTES, LinkLimits, OversizeError, PeerStreams, read_frame, require_open
from dht.streams import MAX_FRAME_BYTES
from peer.testing.children import HANG_S

LIMITS = LinkLimits(progress_timeout_s=2.0, retry_s=(0.01, 0.01))
FRAME = bytes(2**20)


class Sockets:
    """In the daemon's place: a pair of sockets for each stream that is opened."""

    peer_id = "me"

    def __init__(self) -> None:
        self.far_ends: asyncio.Queue[tuple[str, socket.socket]] = asyncio.Queue()

    async def open_stream(
        self, to: str, protocol: str, timeout_s: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        near, far = socket.socketpair()
        self.far_ends.put_nowait((to, far))
        return await asyncio.open_connection(sock=near)


async def far_end(daemon: Sockets, of: str) -> socket.socket:
    """Of the next stream, which is to this peer."""
    to, end = await daemon.far_ends.get()
    assert to == of
    return end


async def test_a_blocked_write_ends_by_its_deadline_and_delays_nobody() -> None:
    """Carol reads nothing. Dave gets his frames meanwhile; Carol's stream is given up, and a new one serves her."""
    daemon: Any = Sockets()
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[None]] = []

        def spawn(story: Any) -> asyncio.Task[None]:
            running.append(tasks.create_task(story))
            return running[-1]

        streams = PeerStreams(daemon, "/test", spawn, LIMITS)
        for _ in range(5):
            streams.send_when_free("carol", lambda: FRAME)
        with await far_end(daemon, "carol") as deaf:
            streams.send_when_free("dave", lambda: FRAME)
            streams.send_when_free("dave", lambda: b"then this")
            reader, writer = await asyncio.open_connection(sock=await far_end(daemon, "dave"))
            assert await read_frame(reader, 2**20, 5.0) == FRAME
            assert await read_frame(reader, 2**20, 5.0) == b"then this"
            assert streams.frames_dropped == 0, "Carol's deadline came before Dave's frames"
            async with asyncio.timeout(HANG_S):
                while not streams.frames_dropped:  # noqa: ASYNC110  # nothing reports it
                    await asyncio.sleep(0.01)
            assert deaf.fileno() >= 0
        streams.send("carol", b"hello again")
        heard, second = await asyncio.open_connection(sock=await far_end(daemon, "carol"))
        assert await read_frame(heard, 2**20, 5.0) == b"hello again"
        for end in (writer, second):
            end.close()
        for task in running:
            task.cancel()


async def test_the_stream_to_a_peer_that_ends_it_is_closed_at_once_and_a_new_one_serves_the_next_frame() -> None:
    """Visitors come and go: none may leave an open socket behind. What they say on it is thrown away."""
    daemon: Any = Sockets()
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[None]] = []

        def spawn(story: Any) -> asyncio.Task[None]:
            running.append(tasks.create_task(story))
            return running[-1]

        streams = PeerStreams(daemon, "/test", spawn, LIMITS)
        streams.send("carol", b"hello")
        reader, writer = await asyncio.open_connection(sock=await far_end(daemon, "carol"))
        assert await read_frame(reader, 2**20, 5.0) == b"hello"
        writer.write(FRAME)
        await writer.drain()
        writer.write_eof()
        assert await reader.read() == b"", "our end is closed, too"
        streams.send("carol", b"hello again")
        again, other = await asyncio.open_connection(sock=await far_end(daemon, "carol"))
        assert await read_frame(again, 2**20, 5.0) == b"hello again"
        assert streams.frames_dropped == 0
        for end in (writer, other):
            end.close()
        for task in running:
            task.cancel()


def test_a_stream_that_was_closed_meanwhile_is_an_error_of_the_network() -> None:
    """On uvloop a write to it would be a RuntimeError, which ended the whole link."""

    async def story() -> None:
        near, far = socket.socketpair()
        with far:
            _, writer = await asyncio.open_connection(sock=near)
            require_open(writer)
            writer.transport.abort()
            with pytest.raises(ConnectionResetError):
                require_open(writer)
            await asyncio.sleep(0)  # the transport closes in the next turn of the loop
            with pytest.raises(RuntimeError, match="closed"):
                writer.write(b"too late")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


@pytest.mark.parametrize("announced", [MAX_FRAME_BYTES + 1, 2 ** (8 * HEADER_BYTES) - 1])
async def test_a_header_beyond_the_cap_is_refused_before_anything_is_allocated(announced: int) -> None:
    """One byte too many, or all that a header can say: not a byte of it is waited for."""
    reader = asyncio.StreamReader()
    reader.feed_data(announced.to_bytes(HEADER_BYTES, "big") + b"its first bytes")
    tracemalloc.start()
    try:
        with pytest.raises(OversizeError, match=str(announced)):
            await read_frame(reader, MAX_FRAME_BYTES, LIMITS.progress_timeout_s)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


async def test_who_announces_too_much_is_cut_off_and_nobody_else() -> None:
    """Mallory's stream ends with the header, and the frame before it arrived; Dave's goes on."""
    daemon: Any = Sockets()
    arrived: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        streams = PeerStreams(daemon, "/test", tasks.create_task, LIMITS)
        streams.listen(lambda sender, frame: arrived.put_nowait((sender, frame)))
        ends = []
        for sender in ("mallory", "dave"):
            near, far = socket.socketpair()
            reader, writer = await asyncio.open_connection(sock=near)
            accepted = tasks.create_task(streams._accept(Lane.CONTROL, sender, reader, writer))
            ends.append((*await asyncio.open_connection(sock=far), writer, accepted))
        (_, mallory, _, cut_off), (_, dave, _, _) = ends
        mallory.write(frame_of(b"harmless") + (MAX_FRAME_BYTES + 1).to_bytes(HEADER_BYTES, "big") + frame_of(b"more"))
        assert await arrived.get() == ("mallory", b"harmless")
        await cut_off
        dave.write(frame_of(b"still here"))
        assert await arrived.get() == ("dave", b"still here")
        for _, far_writer, near_writer, _ in ends:
            far_writer.close()
            near_writer.close()
    assert arrived.empty()


def frame_of(content: bytes) -> bytes:
    """As it is on the wire."""
    return len(content).to_bytes(HEADER_BYTES, "big") + content


class CountingLine(Line):
    """A line that remembers what was written at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[int] = []

    async def take(self, lane: Lane, peer: str, size_bytes: int) -> None:
        self.taken.append(size_bytes)


async def test_small_frames_that_wait_for_one_peer_are_written_together() -> None:
    """A hundred at once, and the one that does not fit with the rest in pieces; all come whole and in order."""
    daemon: Any = Sockets()
    frames = [*(bytes([number]) * 50 for number in range(100)), FRAME, b"last"]
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        line = CountingLine()
        running: list[asyncio.Task[None]] = []

        def spawn(story: Any) -> asyncio.Task[None]:
            running.append(tasks.create_task(story))
            return running[-1]

        streams = PeerStreams(daemon, "/test", spawn, LIMITS, upload=line)
        for frame in frames:
            streams.send("carol", frame)
        reader, writer = await asyncio.open_connection(sock=await far_end(daemon, "carol"))
        assert [await read_frame(reader, 2**20, 5.0) for _ in frames] == frames
        writer.close()
        for task in running:
            task.cancel()
    assert line.taken[0] == 100 * (HEADER_BYTES + 50)
    assert max(line.taken) <= CHUNK_BYTES
    assert sum(line.taken) == sum(HEADER_BYTES + len(frame) for frame in frames) == streams.bytes_sent
    assert len(line.taken) == 1 + (HEADER_BYTES + len(FRAME)) // CHUNK_BYTES + 2


async def test_what_waits_for_its_own_cap_is_not_late() -> None:
    """Time is counted while the other side could write and does not, not while we do not read."""
    reader = asyncio.StreamReader()
    reader.feed_data(frame_of(FRAME))

    async def take(size_bytes: int) -> None:
        await asyncio.sleep(LIMITS.progress_timeout_s / 10)

    async with asyncio.timeout(10.0):
        assert await read_frame(reader, 2**20, LIMITS.progress_timeout_s, take) == FRAME


# ---- caps, over real daemons ----

SECONDS = 3.0


async def rate_of(inbox: Any, seconds: float) -> float:
    """Bits per second of the frames that arrive, after those that a full bucket let pass at once."""
    await inbox.wait_for(5)
    arrived = [(0.0, 0)]
    began, before = time.monotonic(), len(inbox.frames)
    while arrived[-1][0] < seconds:
        await inbox.wait_for(len(inbox.frames) + 1)
        size = sum(HEADER_BYTES + len(frame) for _, frame in inbox.frames[before:])
        arrived.append((time.monotonic() - began, size))
    return 8 * arrived[-1][1] / arrived[-1][0]


@pytest.mark.swarm
@pytest.mark.parametrize("capped", ["upload", "download"])
async def test_the_rate_is_the_cap(real_world: Any, capped: str) -> None:
    """Within a tenth over some seconds, whoever of the two has the cap."""
    bps = 16e6
    _, _, streams = await real_world.add_peer(caps={"upload_bps": bps} if capped == "upload" else {})
    bob, _, bob_streams = await real_world.add_peer(caps={"download_bps": bps} if capped == "download" else {})
    inbox = real_world.inbox()
    bob_streams.listen(inbox)
    for _ in range(200):
        streams.send_when_free(bob.peer_id, lambda: bytes(60_000))
    assert await rate_of(inbox, SECONDS) == pytest.approx(bps, rel=0.1)


@pytest.mark.swarm
async def test_all_receivers_share_one_cap_and_get_alike(real_world: Any) -> None:
    """Bob has ten times as much coming as Carol and Dave, who get theirs as if he had not."""
    _, _, streams = await real_world.add_peer(caps={"upload_bps": 8e6})
    bob, carol, dave = [await real_world.add_peer() for _ in range(3)]
    inboxes = [real_world.inbox() for _ in range(3)]
    for (peer, _, theirs), inbox, frames in zip((bob, carol, dave), inboxes, (400, 40, 40), strict=True):
        theirs.listen(inbox)
        for _ in range(frames):
            streams.send_when_free(peer.peer_id, lambda: bytes(20_000))
    began = time.monotonic()
    for inbox in inboxes[1:]:
        await inbox.wait_for(40)
    passed = 20_000 * sum(len(inbox.frames) for inbox in inboxes)
    assert 8 * (passed - 200_000) / (time.monotonic() - began) < 1.1 * 8e6, "one burst is on top"
    assert len(inboxes[0].frames) <= 50


@pytest.mark.swarm
async def test_a_control_frame_overtakes_parts_also_to_the_same_peer(real_world: Any) -> None:
    """Parts for many seconds wait for both; a small frame is there while the first of them are on their way."""
    alice, _, streams = await real_world.add_peer(caps={"upload_bps": 4e6})
    ends = []
    for _ in range(2):
        peer, _, theirs = await real_world.add_peer()
        ends.append((peer.peer_id, real_world.inbox()))
        theirs.listen(ends[-1][1])
        streams.send(peer.peer_id, b"hello")
        await ends[-1][1].wait_for(1)
    for to, _ in ends:
        for _ in range(4):
            streams.send_when_free(to, lambda: bytes(2_000_000))
    await asyncio.sleep(0.5)  # the bucket is empty, and the first parts are half written
    began = time.monotonic()
    for to, inbox in ends:
        streams.send(to, b"vote")
        assert (await inbox.wait_for(2))[1] == (alice.peer_id, b"vote")
    assert time.monotonic() - began < 1.0, "one part alone takes 4 s"


@pytest.mark.swarm
@pytest.mark.parametrize("capped", ["upload", "download"])
async def test_a_slow_line_is_not_cut_off(real_world: Any, capped: str) -> None:
    """A part at 0.5 Mbit/s from or to two peers at once: much longer than the time in which there must be progress."""
    slow, patient = {f"{capped}_bps": 0.5e6}, {"progress_timeout_s": 5.0}
    one, _, one_streams = await real_world.add_peer(caps=slow, **patient)
    others = [await real_world.add_peer(**patient) for _ in range(2)]
    inbox, size = real_world.inbox(), 400_000
    if capped == "upload":
        for other, _, theirs in others:
            theirs.listen(inbox)
            one_streams.send_when_free(other.peer_id, lambda: bytes(size))
    else:
        one_streams.listen(inbox)
        for _, _, theirs in others:
            theirs.send_when_free(one.peer_id, lambda: bytes(size))
    await inbox.wait_for(2)
    assert [len(frame) for _, frame in inbox.frames] == [size, size]
    assert all(streams.frames_dropped == 0 for _, _, streams in [*others, (one, None, one_streams)])


@pytest.mark.swarm
async def test_answers_pass_through_the_same_bucket_and_behind_the_frames(real_world: Any) -> None:
    """A chunk of a snapshot is as slow as the cap, slower while parts pass, and holds no part up."""
    donor, _, streams = await real_world.add_peer(caps={"upload_bps": 8e6})
    taker, _, taker_streams = await real_world.add_peer()
    node, asker = real_world.nodes[donor.peer_id], real_world.nodes[taker.peer_id]
    node.serve("chunk", lambda: bytes(2_000_000))
    began = time.monotonic()
    await asker.ask(donor.peer_id, "chunk", 1.5)
    assert 8 * 1_800_000 / (time.monotonic() - began) < 1.1 * 8e6, "as the cap says, and longer than the time-out"
    inbox = real_world.inbox()
    taker_streams.listen(inbox)
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        loading = tasks.create_task(asker.ask(donor.peer_id, "chunk", 5.0))
        for _ in range(20):
            streams.send_when_free(taker.peer_id, lambda: bytes(100_000))
        await inbox.wait_for(20)
        assert time.monotonic() - began < 3.0, "together they take 4 s"
        assert not loading.done()
