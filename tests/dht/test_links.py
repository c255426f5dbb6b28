"""The outgoing streams of a peer over plain sockets: no wait without an end, and nobody waits for another."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from dht.links import LinkLimits, PeerStreams, read_frame

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
