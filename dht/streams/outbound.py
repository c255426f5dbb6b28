"""`Streams` over libp2p: two outgoing streams per peer, each with a bounded queue, so that no peer waits for another.

A frame on the wire is 4 bytes of length (big endian, checked before memory is allocated) and its bytes. The transport
authenticates the sender of an incoming stream. A frame that cannot be delivered in time is dropped and counted; the
protocol above repeats what matters. Large frames have a stream of their own, so that a small frame never waits behind
a part that is half written.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from dht.daemon import Daemon
from dht.errors import Unreachable
from dht.streams.base import MAX_FRAME_BYTES, MakeFrame, OnFrame
from dht.streams.connection_watch import ConnectionWatch
from dht.streams.flow import FlowStreams
from dht.streams.frames import (
    HEADER_BYTES,
    SLOWEST_BYTES_PER_S,
    OversizeError,
    Take,
    in_chunks,
    read_frame,
    read_to_end,
    require_open,
)
from dht.streams.inbound import InboundStreams
from dht.streams.shaper import Lane, Shaper
from dht.streams.traffic import TrafficCounter, UplinkEstimator

Spawn = Callable[..., asyncio.Task[None]]
AllowPeer = Callable[[str], Awaitable[bool]]
"""Whether this peer may open a stream; it may be asked who it is."""

log = logging.getLogger(__name__)

LATELY_S = 60.0
"""Those to whom something was sent within this time must be in reach."""


@dataclass(frozen=True, kw_only=True)
class StreamLimits:
    """Bounds of every wait and every queue."""

    queue_bytes: int = 64 * 2**20
    """Frames that wait for one peer; what does not fit is dropped."""
    queue_later: int = 4096
    """Frames still to be made for one peer; what does not fit is dropped."""
    dial_timeout_s: float = 15.0
    progress_timeout_s: float = 20.0
    """A peer that takes less than CHUNK_BYTES, or sends less than PROGRESS_BYTES in the middle of a frame, in this
    time is cut off. Waiting for this peer's own limit does not count."""
    retry_s: tuple[float, float] = (0.25, 8.0)
    """First and longest pause after a peer could not be reached."""
    incoming_streams: int = 512
    slowest_bytes_per_s: float = SLOWEST_BYTES_PER_S
    """A frame must arrive within the time that it takes at this rate: a line of 0.5 Mbit/s shared by fifteen."""
    unfinished_bytes: int = 512 * 2**20
    """Bytes of incomplete frames from all senders together; the one that began first is dropped."""

    def __post_init__(self) -> None:
        assert self.unfinished_bytes >= MAX_FRAME_BYTES, "no large frame would ever come whole"


class Libp2pStreams:
    """The contract of `dht.streams.base.Streams` for one peer. `spawn` starts a task in the node's task group."""

    def __init__(
        self, daemon: Daemon, protocol: str, spawn: Spawn, limits: StreamLimits, *,
        upload: Shaper | None = None, download: Shaper | None = None,
    ) -> None:  # fmt: skip
        self.bytes_sent = 0
        """Handed to the daemon, headers included."""
        self.bytes_received = 0
        self.frames_dropped = 0
        self.tally = TrafficCounter()
        """Of all streams with each peer; code that opens other streams adds theirs."""
        self.upload, self.download = upload or Shaper(), download or Shaper()
        """Code that opens other streams passes its bytes through these, too."""
        self.uplink = UplinkEstimator()
        self._daemon = daemon
        self._protocols = {Lane.CONTROL: protocol, Lane.BULK: f"{protocol}/bulk"}
        self._spawn = spawn
        self.limits = limits
        self.lets_in: AllowPeer = _everybody
        self._sent_at: dict[str, float] = {}
        """When something was last sent to each peer."""
        self._watch: ConnectionWatch | None = None
        self._at_door = 0
        """Streams whose senders are being checked."""
        self._on_frame: OnFrame | None = None
        self._outgoing: dict[tuple[Lane, str], tuple[_Outgoing, asyncio.Task[None]]] = {}
        self._incoming = InboundStreams(limits.incoming_streams)
        self._unfinished = PartialFrames(limits.unfinished_bytes)
        self._is_finished = False
        self.flow = FlowStreams(
            daemon, f"{protocol}/flow", spawn, upload=self.upload, download=self.download, tally=self.tally,
            lets_in=lambda sender: self.lets_in(sender),
        )  # fmt: skip
        """To and from the homes of a cluster. Its bytes are counted only in `tally`, since a round does not pay for
        them."""

    async def start(self) -> None:
        for lane, protocol in self._protocols.items():
            await self._daemon.handle(protocol, partial(self._accept, lane))
        await self.flow.start()

    def watch(self, dial: Callable[[str, float], Awaitable[object]]) -> None:
        """From now on watch which peers cannot be reached; `dial` tries a peer for so many seconds, and raises
        Unreachable."""
        self._watch = ConnectionWatch(self._sent_to_lately, self._daemon.connections, dial)
        self._spawn(self._watch.follow())

    def _sent_to_lately(self) -> tuple[str, ...]:
        since = time.monotonic() - LATELY_S
        self._sent_at = {peer: at for peer, at in self._sent_at.items() if at >= since}
        return tuple(self._sent_at)

    @property
    def unreachable(self) -> frozenset[str]:
        """Those peers to which something was sent lately that are gone: `dht.streams.connection_watch`."""
        return frozenset() if self._watch is None else self._watch.unreachable

    def listen(self, on_frame: OnFrame) -> None:
        """Set the listener. Frames that arrive before are dropped. An error that it raises ends the node."""
        self._on_frame = on_frame

    def send(self, to: str, frame: bytes) -> None:
        assert len(frame) <= MAX_FRAME_BYTES, len(frame)
        if not self._is_finished:
            self._sent_at[to] = time.monotonic()
            self._link_to(Lane.CONTROL, to).put(frame)

    def send_bulk(self, to: str, make_frame: MakeFrame) -> None:
        """Queue a frame that is made when everything before it has been written."""
        if not self._is_finished:
            self._link_to(Lane.BULK, to).put_deferred(make_frame)

    def _link_to(self, lane: Lane, to: str) -> _Outgoing:
        assert to != self._daemon.peer_id, "a peer does not send to itself"
        if (lane, to) not in self._outgoing:
            link = _Outgoing(self, lane, to)
            self._outgoing[lane, to] = (link, self._spawn(self._serve(link, lane, to)))
        return self._outgoing[lane, to][0]

    async def _serve(self, link: _Outgoing, lane: Lane, to: str) -> None:
        """Run a link, and forget it when it has ended, since peer ids cost nothing."""
        try:
            await link.run()
        finally:
            del self._outgoing[lane, to]

    async def dial(self, to: str, lane: Lane = Lane.CONTROL) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new stream to a peer; raises Unreachable."""
        return await self._daemon.open_stream(to, self._protocols[lane], self.limits.dial_timeout_s)

    def retry(self, to: str) -> None:
        """Dial this peer again now if something waits for it: it can be reached again."""
        for link in self._links_to(to):
            link.retry()

    def redial(self, to: str) -> None:
        """Open the streams to this peer anew, since there is a better connection now; nothing is lost."""
        for link in self._links_to(to):
            link.redial()
        self.flow.redial(to)

    def _links_to(self, to: str) -> list[_Outgoing]:
        return [self._outgoing[lane, to][0] for lane in self._protocols if (lane, to) in self._outgoing]

    async def finish(self, timeout_s: float) -> None:
        """Send what waits for connected peers, then nothing more; give up after the time-out."""
        self._is_finished = True
        tasks = [task for link, task in self._outgoing.values() if link.is_connected]
        for link, _ in self._outgoing.values():
            link.finish()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def _accept(
        self, lane: Lane, sender: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One stream per lane and sender: a new one replaces the last, which the sender has given up."""
        if self._incoming.is_closed or not await self._is_let_in(sender) or self._is_finished:
            return
        task = self._spawn(self._read_frames(lane, sender, reader))
        self._incoming.add((lane, sender), task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            self._incoming.end((lane, sender), task)

    async def _is_let_in(self, sender: str) -> bool:
        """Peers that are being checked take no more room than others do."""
        if self._at_door >= self.limits.incoming_streams:
            return False
        self._at_door += 1
        try:
            return await self.lets_in(sender)
        finally:
            self._at_door -= 1

    def prefer(self, is_known: Callable[[str], bool]) -> None:
        """From now on strangers make room for those who are known."""
        self._incoming.is_known = is_known

    def cut(self, sender: str) -> None:
        """End the streams of a peer that may not come in any more."""
        self._incoming.cut(sender)
        self.flow.cut(sender, "it may not take part in this run")

    def close_all(self) -> None:
        self._incoming.close_all()

    async def _read_frames(self, lane: Lane, sender: str, reader: asyncio.StreamReader) -> None:
        me = asyncio.current_task()
        assert me is not None

        async def take(size_bytes: int) -> None:
            self._unfinished.grow(me, size_bytes)
            self._incoming.heard((lane, sender))
            await self.download.take(lane, sender, size_bytes)

        try:
            while True:
                frame = await self._next_frame(sender, reader, take)
                if frame is None:
                    return
                self._unfinished.end(me)
                self.bytes_received += HEADER_BYTES + len(frame)
                self.tally.add(sender, received=HEADER_BYTES + len(frame))
                if self._watch is not None:
                    self._watch.heard(sender)
                if self._on_frame is not None:
                    self._on_frame(sender, frame)
                del frame  # else it would be kept until the next one is here
        finally:
            self._unfinished.end(me)

    async def _next_frame(self, sender: str, reader: asyncio.StreamReader, take: Take) -> bytes | None:
        """None when the stream has ended, or must."""
        limits = self.limits
        try:
            return await read_frame(
                reader, MAX_FRAME_BYTES, limits.progress_timeout_s, take, limits.slowest_bytes_per_s
            )  # fmt: skip
        except (EOFError, TimeoutError, OSError):
            return None
        except OversizeError as error:
            log.warning("cut off %s: %s", sender, error)
            return None


async def _everybody(sender: str) -> bool:
    return True


class PartialFrames:
    """The bytes of frames that are still arriving, of all senders together: bounded, whatever strangers do. The
    frame that began first is dropped, not the largest: an attacker that fills the memory slowly could keep its
    frames smaller than others', but it cannot avoid taking longer."""

    def __init__(self, most_bytes: int) -> None:
        self.total_bytes = 0
        self._most_bytes = most_bytes
        self._frames: dict[asyncio.Task[None], int] = {}
        """Bytes by the task that reads them, the frame that began first at first."""

    def grow(self, reader: asyncio.Task[None], size_bytes: int) -> None:
        """The frame that this task reads has grown by so many bytes. Cancels readers whose frames are dropped."""
        self._frames[reader] = self._frames.get(reader, 0) + size_bytes
        self.total_bytes += size_bytes
        while self.total_bytes > self._most_bytes:
            oldest = next(iter(self._frames))
            log.warning("cut off a frame of which %d bytes were here: too many are on their way", self._frames[oldest])
            self.end(oldest)
            oldest.cancel()

    def end(self, reader: asyncio.Task[None]) -> None:
        self.total_bytes -= self._frames.pop(reader, 0)


Wrote = Callable[[str, int], None]
"""Called with who is written to, and with how many bytes."""


def _to_nobody(peer: str, size_bytes: int) -> None:
    """Small frames say nothing about the line."""


class _Outgoing:
    """The queue of one lane to one peer, and the task that empties it."""

    def __init__(self, streams: Libp2pStreams, lane: Lane, to: str) -> None:
        self.is_connected = False
        self._streams = streams
        self._limits = streams.limits
        self._lane, self._to = lane, to
        self._frames: deque[bytes] = deque()
        self._later: deque[MakeFrame] = deque()
        self._queued_bytes = 0
        self._frames_sent = 0
        self._is_finishing = False
        self._is_redialling = False
        self._wake = asyncio.Event()
        self._can_retry = asyncio.Event()

    def put(self, frame: bytes) -> None:
        if self._queued_bytes + len(frame) > self._limits.queue_bytes:
            self._streams.frames_dropped += 1
            return
        self._frames.append(frame)
        self._queued_bytes += len(frame)
        self._wake.set()

    def put_deferred(self, make_frame: MakeFrame) -> None:
        if len(self._later) >= self._limits.queue_later:
            self._streams.frames_dropped += 1
            return
        self._later.append(make_frame)
        self._wake.set()

    def retry(self) -> None:
        self._can_retry.set()

    def redial(self) -> None:
        """End the stream after the frame that is being written, if there is one."""
        self._is_redialling = self.is_connected
        self._wake.set()

    def finish(self) -> None:
        self._is_finishing = True
        self._wake.set()

    async def run(self) -> None:
        """Dial while there is something to send; after a failure drop what waits, pause, and go on. Ends when the
        stream has ended and nothing waits: the next frame to this peer makes another link."""
        first_s, largest_s = self._limits.retry_s
        pause_s = first_s
        while (self._frames or self._later) and not self._is_finishing:
            sent_before = self._frames_sent
            try:
                await self._send_while_connected()
            except (Unreachable, TimeoutError, OSError) as error:
                log.info("link to %s: %s", self._to, error or type(error).__name__)
                self._drop_queue()
            if self._frames_sent > sent_before:
                pause_s = first_s
                continue
            pause_s = first_s if await self._is_called_within(pause_s) else min(2 * pause_s, largest_s)

    async def _is_called_within(self, pause_s: float) -> bool:
        self._can_retry.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._can_retry.wait()
        return self._can_retry.is_set()

    async def _wait_for_frame(self, ended: asyncio.Task[None]) -> None:
        while not (
            self._frames or self._later or self._is_finishing or self._is_redialling or ended.done()
        ):  # fmt: skip
            self._wake.clear()
            await self._wake.wait()

    async def _send_while_connected(self) -> None:
        reader, writer = await self._streams.dial(self._to, self._lane)
        self.is_connected = True
        # Else the stream to a peer that is gone would stay open until something is sent to it again.
        ended = asyncio.create_task(read_to_end(reader))
        ended.add_done_callback(lambda _: self._wake.set())
        try:
            while not ended.done():
                if self._is_redialling:
                    require_open(writer)
                    writer.write_eof()
                    await asyncio.wait([ended], timeout=self._limits.progress_timeout_s)
                    return
                if self._frames:
                    await self._write(writer, self._pop_frames())
                elif self._later:
                    await self._write_made(writer, self._later.popleft())
                elif self._is_finishing:
                    require_open(writer)
                    writer.write_eof()
                    await asyncio.wait([ended])  # when the daemon has passed everything on
                else:
                    await self._wait_for_frame(ended)
        finally:
            self.is_connected = self._is_redialling = False
            # No flush: a peer that stopped reading would keep the buffer alive.
            writer.transport.abort()
            ended.cancel()

    async def _write_made(self, writer: asyncio.StreamWriter, make_frame: MakeFrame) -> None:
        made = make_frame()
        del make_frame  # what only the queue held is free while the frame is written
        if made is None:
            return
        uplink = self._streams.uplink
        with uplink.writing():
            await self._write(writer, [made], uplink.wrote)

    def _pop_frames(self) -> list[bytes]:
        """The next frame, and those behind it that fit into one write."""
        frames = [self._frames.popleft()]
        size = HEADER_BYTES + len(frames[0])
        while self._frames and (size := size + HEADER_BYTES + len(self._frames[0])) <= self._streams.upload.chunk_bytes:
            frames.append(self._frames.popleft())
        self._queued_bytes -= sum(map(len, frames))
        return frames

    async def _write(self, writer: asyncio.StreamWriter, frames: list[bytes], wrote: Wrote = _to_nobody) -> None:
        """Several small frames, or one of any size in chunks; `written` is called for each chunk."""
        size = sum(HEADER_BYTES + len(frame) for frame in frames)
        for pieces in in_chunks(frames, size, self._streams.upload.chunk_bytes):
            piece_bytes = sum(map(len, pieces))
            await self._streams.upload.take(self._lane, self._to, piece_bytes)
            require_open(writer)
            for piece in pieces:  # CPython 3.12's writelines never pauses: `drain` would not wait (CVE-2024-12254)
                writer.write(piece)
            # Before the wait: who has got all may have answered, and its round be told of, before this goes on.
            self._streams.bytes_sent += piece_bytes
            self._streams.tally.add(self._to, sent=piece_bytes)
            async with asyncio.timeout(self._limits.progress_timeout_s):
                await writer.drain()
            wrote(self._to, piece_bytes)
        self._frames_sent += len(frames)

    def _drop_queue(self) -> None:
        self._streams.frames_dropped += len(self._frames) + len(self._later)
        self._frames.clear()
        self._later.clear()
        self._queued_bytes = 0
