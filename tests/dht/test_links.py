"""The outgoing streams of a peer over plain sockets: no wait without an end, and nobody waits for another."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from typing import Any

import pytest
import uvloop

from dht.links import HEADER_BYTES, LinkLimits, OversizeError, PeerStreams, read_frame, require_open
from dht.streams import MAX_FRAME_BYTES

LIMITS = LinkLimits(progress_timeout_s=0.2, retry_s=(0.01, 0.01))
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
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[None]] = []

        def spawn(story: Any) -> asyncio.Task[None]:
            running.append(tasks.create_task(story))
            return running[-1]

        streams = PeerStreams(daemon, "/test", spawn, LIMITS)
        for _ in range(5):
            streams.send_when_free("carol", lambda: FRAME)
        with await far_end(daemon, "carol") as deaf:
            streams.send("dave", FRAME)
            streams.send_when_free("dave", lambda: b"then this")
            reader, writer = await asyncio.open_connection(sock=await far_end(daemon, "dave"))
            assert await read_frame(reader, 2**20, 5.0) == FRAME
            assert await read_frame(reader, 2**20, 5.0) == b"then this"
            assert streams.frames_dropped == 0, "Carol's deadline came before Dave's frames"
            async with asyncio.timeout(5.0):
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
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
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
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        streams = PeerStreams(daemon, "/test", tasks.create_task, LIMITS)
        streams.listen(lambda sender, frame: arrived.put_nowait((sender, frame)))
        ends = []
        for sender in ("mallory", "dave"):
            near, far = socket.socketpair()
            reader, writer = await asyncio.open_connection(sock=near)
            accepted = tasks.create_task(streams._accept(sender, reader, writer))
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
