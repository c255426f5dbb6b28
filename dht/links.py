"""`Streams` over libp2p: one outgoing stream per peer, a bounded queue each, nobody waits for another.

A frame on the wire is 4 bytes of length (big endian, capped before anything is allocated) and the
frame. The sender of an incoming stream is the peer id that the transport authenticated. Whatever
cannot be delivered in time is dropped and counted; the protocol above repeats what matters.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dht.daemon import Daemon
from dht.errors import Unreachable
from dht.streams import MAX_FRAME_BYTES, MakeFrame, OnFrame
from dht.traffic import Tally

HEADER_BYTES = 4

Spawn = Callable[..., asyncio.Task[None]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LinkLimits:
    """Bounds of every wait and every queue."""

    queue_bytes: int = 64 * 2**20
    """Frames that wait for one peer; what comes on top is dropped."""
    queue_later: int = 4096
    """Frames still to be made for one peer; what comes on top is dropped."""
    dial_timeout_s: float = 15.0
    progress_timeout_s: float = 20.0
    """A peer that takes, or in the middle of a frame gives, no CHUNK_BYTES in this time is cut off."""
    retry_s: tuple[float, float] = (0.25, 8.0)
    """First and largest pause after a peer could not be reached."""
    incoming_streams: int = 256


CHUNK_BYTES = 256 * 2**10


class PeerStreams:
    """The contract of `dht.streams.Streams` for one peer. `spawn` starts a task in the node's task group."""

    def __init__(self, daemon: Daemon, protocol: str, spawn: Spawn, limits: LinkLimits) -> None:
        self.bytes_sent = 0
        """Handed to the daemon, headers included."""
        self.bytes_received = 0
        self.frames_dropped = 0
        self.tally = Tally()
        """Of all streams with each peer; whoever opens other streams adds theirs."""
        self._daemon = daemon
        self._protocol = protocol
        self._spawn = spawn
        self.limits = limits
        self._on_frame: OnFrame | None = None
        self._outgoing: dict[str, tuple[_Outgoing, asyncio.Task[None]]] = {}
        self._incoming: dict[str, asyncio.Task[None]] = {}
        self._is_finished = False

    async def start(self) -> None:
        """Accept streams from now on."""
        await self._daemon.handle(self._protocol, self._accept)

    def listen(self, on_frame: OnFrame) -> None:
        """Set the listener. Frames that arrive before are dropped. An error it raises ends the node."""
        self._on_frame = on_frame

    def send(self, to: str, frame: bytes) -> None:
        """Queue a frame of at most MAX_FRAME_BYTES."""
        assert len(frame) <= MAX_FRAME_BYTES, len(frame)
        if not self._is_finished:
            self._link_to(to).put(frame)

    def send_when_free(self, to: str, make_frame: MakeFrame) -> None:
        """Queue a frame that is made when everything before it has been written."""
        if not self._is_finished:
            self._link_to(to).put_later(make_frame)

    def _link_to(self, to: str) -> _Outgoing:
        assert to != self._daemon.peer_id, "a peer does not send to itself"
        if to not in self._outgoing:
            link = _Outgoing(self, to)
            self._outgoing[to] = (link, self._spawn(link.run()))
        return self._outgoing[to][0]

    async def dial(self, to: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new stream to a peer; raises Unreachable."""
        return await self._daemon.open_stream(to, self._protocol, self.limits.dial_timeout_s)

    async def finish(self, timeout_s: float) -> None:
        """Send what waits for the peers that are connected, then nothing more; gives up after the time-out."""
        self._is_finished = True
        tasks = [task for link, task in self._outgoing.values() if link.is_connected]
        for link, _ in self._outgoing.values():
            link.finish()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def _accept(self, sender: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One stream per sender: a new one replaces the last, which the sender has given up."""
        last = self._incoming.pop(sender, None)
        if last is not None:
            last.cancel()
        if self._is_finished or len(self._incoming) >= self.limits.incoming_streams:
            log.warning("refused a stream of %s: %d are open", sender, len(self._incoming))
            return
        task = self._incoming[sender] = self._spawn(self._read_frames(sender, reader))
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            if self._incoming.get(sender) is task:
                del self._incoming[sender]

    async def _read_frames(self, sender: str, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                frame = await read_frame(reader, MAX_FRAME_BYTES, self.limits.progress_timeout_s)
            except (EOFError, TimeoutError, OSError):
                return
            except OversizeError as error:
                log.warning("cut off %s: %s", sender, error)
                return
            self.bytes_received += HEADER_BYTES + len(frame)
            self.tally.add(sender, received=HEADER_BYTES + len(frame))
            if self._on_frame is not None:
                self._on_frame(sender, frame)


class _Outgoing:
    """The queue to one peer and the task that empties it."""

    def __init__(self, streams: PeerStreams, to: str) -> None:
        self.is_connected = False
        self._streams = streams
        self._limits = streams.limits
        self._to = to
        self._frames: deque[bytes] = deque()
        self._later: deque[MakeFrame] = deque()
        self._queued_bytes = 0
        self._frames_sent = 0
        self._is_finishing = False
        self._wake = asyncio.Event()

    def put(self, frame: bytes) -> None:
        if self._queued_bytes + len(frame) > self._limits.queue_bytes:
            self._streams.frames_dropped += 1
            return
        self._frames.append(frame)
        self._queued_bytes += len(frame)
        self._wake.set()

    def put_later(self, make_frame: MakeFrame) -> None:
        if len(self._later) >= self._limits.queue_later:
            self._streams.frames_dropped += 1
            return
        self._later.append(make_frame)
        self._wake.set()

    def finish(self) -> None:
        """Send what waits, then end."""
        self._is_finishing = True
        self._wake.set()

    async def run(self) -> None:
        """Dial when there is something to send; after a failure drop what waits, pause, and go on."""
        first_s, largest_s = self._limits.retry_s
        pause_s = first_s
        while not self._is_finishing:
            await self._wait_for_frame()
            sent_before = self._frames_sent
            try:
                await self._send_while_connected()
            except (Unreachable, TimeoutError, OSError) as error:
                log.info("link to %s: %s", self._to, error or type(error).__name__)
                self._drop_queue()
            if self._frames_sent > sent_before:
                pause_s = first_s
                continue
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, largest_s)

    async def _wait_for_frame(self, ended: asyncio.Task[None] | None = None) -> None:
        """Or until the stream has ended, if there is one."""
        while not (self._frames or self._later or self._is_finishing or (ended is not None and ended.done())):
            self._wake.clear()
            await self._wake.wait()

    async def _send_while_connected(self) -> None:
        """Dial and send until the other side ends the stream, or we do."""
        reader, writer = await self._streams.dial(self._to)
        self.is_connected = True
        # Else the stream to a peer that is gone would stay open until something is sent to it again.
        ended = asyncio.create_task(_read_to_end(reader))
        ended.add_done_callback(lambda _: self._wake.set())
        try:
            while not ended.done():
                if self._frames:
                    frame = self._frames.popleft()
                    self._queued_bytes -= len(frame)
                    await self._write(writer, frame)
                elif self._later:
                    made = self._later.popleft()()
                    if made is not None:
                        await self._write(writer, made)
                elif self._is_finishing:
                    require_open(writer)
                    writer.write_eof()
                    await asyncio.wait([ended])  # when the daemon has passed everything on
                else:
                    await self._wait_for_frame(ended)
        finally:
            self.is_connected = False
            # No flush: a peer that stopped reading would keep the buffer alive.
            writer.transport.abort()
            ended.cancel()

    async def _write(self, writer: asyncio.StreamWriter, frame: bytes) -> None:
        view = memoryview(frame)
        require_open(writer)
        writer.write(len(frame).to_bytes(HEADER_BYTES, "big"))
        for offset in range(0, len(frame), CHUNK_BYTES):
            require_open(writer)
            writer.write(view[offset : offset + CHUNK_BYTES])
            async with asyncio.timeout(self._limits.progress_timeout_s):
                await writer.drain()
        self._frames_sent += 1
        self._streams.bytes_sent += HEADER_BYTES + len(frame)
        self._streams.tally.add(self._to, sent=HEADER_BYTES + len(frame))

    def _drop_queue(self) -> None:
        self._streams.frames_dropped += len(self._frames) + len(self._later)
        self._frames.clear()
        self._later.clear()
        self._queued_bytes = 0


async def _read_to_end(reader: asyncio.StreamReader) -> None:
    """Nothing that counts comes back on an outgoing stream, however much it is; an error is its end, too."""
    with suppress(OSError):
        while await reader.read(CHUNK_BYTES):
            continue


def require_open(writer: asyncio.StreamWriter) -> None:
    """Raises ConnectionResetError if the stream was closed meanwhile: uvloop's `write` would raise RuntimeError."""
    if writer.is_closing():
        raise ConnectionResetError("the stream was closed")


class OversizeError(ValueError):
    """A header announced more bytes than the cap."""


async def read_frame(reader: asyncio.StreamReader, cap_bytes: int, progress_timeout_s: float) -> bytes:
    """The next frame; waits for its header without limit, for its bytes as long as they keep coming.

    Raises EOFError, TimeoutError, OSError, or OversizeError before anything is allocated.
    """
    size = int.from_bytes(await reader.readexactly(HEADER_BYTES), "big")
    if size > cap_bytes:
        raise OversizeError(f"a frame of {size} bytes; at most {cap_bytes} are allowed")
    frame = bytearray()
    while len(frame) < size:
        async with asyncio.timeout(progress_timeout_s):
            frame += await reader.readexactly(min(CHUNK_BYTES, size - len(frame)))
    return bytes(frame)
