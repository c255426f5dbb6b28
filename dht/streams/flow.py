"""Ordered frames between the homes of a cluster: all of them arrive, or both ends learn that the connection is cut.

In a round the protocol repeats frames that were lost. Here no frame is lost while a *way* lives. A way is a pair of
streams, one in each direction, under a tag that both ends know. When one of the streams breaks, the way is cut for
good: waiting frames are dropped, nothing more is delivered, and `on_cut` is called at both ends, since each end closes
the stream that the other one reads. A new tag makes a new way.

On the wire: 16 bytes of tag, which the receiver answers with one byte, then frames as in `dht.streams.frames`, written
in pieces of at most 64 KiB. The length OVER says that this stream ends in order and another one follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from dht.daemon import Daemon
from dht.errors import Unreachable
from dht.streams.frames import HEADER_BYTES, in_chunks, read_content, read_to_end, require_open
from dht.streams.shaper import Lane, Shaper
from dht.streams.traffic import TrafficCounter

Spawn = Callable[..., asyncio.Task[None]]
OnFlow = Callable[[str, bytes], Awaitable[None]]
"""Called with (sender's peer id, frame). Nothing more of this sender is read until it returns."""
OnCut = Callable[[str, str], None]
"""Called once with a peer id whose way was cut, and why."""

TAG_BYTES = 16
MAX_FLOW_BYTES = 256 << 20
"""Of one frame."""
MAX_WAYS = 64
OVER = 0xFFFF_FFFF
_TAKEN = b"\x01"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FlowLimits:
    """Bounds of every wait and every queue."""

    queue_bytes: int = 32 << 20
    """Frames that wait for one home; a sender with more waits until there is less."""
    dial_timeout_s: float = 15.0
    open_timeout_s: float = 30.0
    """The other end accepts a new way within this time: it may learn of the way later than this end."""
    retry_s: tuple[float, float] = (0.1, 2.0)
    """First and longest pause before the next attempt."""
    progress_timeout_s: float = 120.0
    """A peer that takes nothing, or gives nothing in the middle of a frame, for this time is cut off. It is long,
    since a trainer may be busy, and other checks show whether a home is there at all."""


class FlowStreams:
    """The ways of one node. Frames are accepted only from admitted peers; all others get no answer."""

    def __init__(
        self, daemon: Daemon, protocol: str, spawn: Spawn, *,
        upload: Shaper, download: Shaper, tally: TrafficCounter, lets_in: Callable[[str], Awaitable[bool]],
    ) -> None:  # fmt: skip
        self.limits = FlowLimits()
        self.upload, self.download, self.tally = upload, download, tally
        self._daemon, self._protocol, self._spawn, self._lets_in = daemon, protocol, spawn, lets_in
        self._ways: dict[str, _Way] = {}
        self._on_frame: OnFlow | None = None
        self._on_cut: OnCut | None = None

    async def start(self) -> None:
        await self._daemon.handle(self._protocol, self._accept)

    def listen(self, on_frame: OnFlow, on_cut: OnCut) -> None:
        """Set the listener, before the first peer is admitted. An error that `on_frame` raises ends the node."""
        self._on_frame, self._on_cut = on_frame, on_cut

    @property
    def admitted(self) -> frozenset[str]:
        """Peers whose way lives, or is about to."""
        return frozenset(peer for peer, way in self._ways.items() if not way.is_cut)

    def admit(self, peer: str, tag: bytes) -> None:
        """From now on exchange frames with this peer, which was told the same tag; the streams are opened at once.
        Nothing happens if it was admitted with this tag already, even if that way was cut since. A way with another
        tag ends without notice here; the other end learns that it is cut."""
        assert len(tag) == TAG_BYTES
        assert self._on_frame is not None, "nobody listens"
        way = self._ways.get(peer)
        if way is not None and way.tag == tag:
            return
        self.dismiss(peer)
        assert len(self._ways) < MAX_WAYS
        self._ways[peer] = way = _Way(self, peer, tag)
        way.sending = self._spawn(self._run(way))

    def dismiss(self, peer: str) -> None:
        """End its way without notice, and accept nothing more from it."""
        way = self._ways.pop(peer, None)
        if way is not None:
            way.end()

    async def send(self, to: str, frame: bytes | bytearray) -> None:
        """Queue a frame as soon as there is room; it is dropped if there is no way to this peer, or the way is cut
        meanwhile."""
        assert len(frame) <= MAX_FLOW_BYTES, len(frame)
        way = self._ways.get(to)
        if way is not None:
            await way.put(frame)

    def redial(self, to: str) -> None:
        """Open the stream to this peer anew, since there is a better connection now; nothing is lost."""
        way = self._ways.get(to)
        if way is not None:
            way.redial()

    def cut(self, peer: str, why: str) -> None:
        """Nothing passes between the two any more, until the peer is admitted with another tag."""
        way = self._ways.get(peer)
        if way is None or way.is_cut:
            return
        log.warning("the way to %s is cut: %s", peer, why)
        way.end()
        if self._on_cut is not None:
            self._on_cut(peer, why)

    # ---- what others open ----

    async def _accept(self, sender: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        way = self._ways.get(sender)
        if way is None or way.is_cut or not await self._lets_in(sender):
            log.info("refused the flow of %s", sender)
            return
        try:
            async with asyncio.timeout(self.limits.open_timeout_s):
                tag = await reader.readexactly(TAG_BYTES)
        except (EOFError, TimeoutError, OSError):
            return
        way = self._ways.get(sender)
        if way is None or way.is_cut or tag != way.tag or way.reading is not None or writer.is_closing():
            return  # it tries again: perhaps this end has not been told of that way yet
        writer.write(_TAKEN)
        task = way.reading = self._spawn(self._read(way, reader))
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()

    async def _read(self, way: _Way, reader: asyncio.StreamReader) -> None:
        """Deliver frame after frame, to the end of the stream."""
        assert self._on_frame is not None
        take = partial(self.download.take, Lane.FLOW, way.peer)
        try:
            while (size := int.from_bytes(await reader.readexactly(HEADER_BYTES), "big")) != OVER:
                if size > MAX_FLOW_BYTES:
                    raise ConnectionAbortedError(f"it announced a frame of {size} bytes")
                frame = await read_content(reader, size, self.limits.progress_timeout_s, take)
                self.tally.add(way.peer, received=HEADER_BYTES + size)
                await self._on_frame(way.peer, frame)
                del frame  # else it would be kept until the next one is here
        except EOFError:
            self._lost(way, "its stream has ended")
        except (TimeoutError, OSError) as error:
            self._lost(way, f"its stream broke: {error or type(error).__name__}")
        way.reading = None

    def _lost(self, way: _Way, why: str) -> None:
        if self._ways.get(way.peer) is way:
            self.cut(way.peer, why)

    # ---- what this end opens ----

    async def _open(self, way: _Way) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A stream that the other end has accepted. Raises Unreachable if it does not in time."""
        pause_s, most_s = self.limits.retry_s
        why = "it did not take the stream"
        try:
            async with asyncio.timeout(self.limits.open_timeout_s):
                while True:
                    try:
                        return await self._try_open(way)
                    except (Unreachable, EOFError, OSError) as error:
                        why = str(error) or type(error).__name__
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, most_s)
        except TimeoutError as error:
            raise Unreachable(f"no stream to it came about in {self.limits.open_timeout_s:g} s: {why}") from error

    async def _try_open(self, way: _Way) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self._daemon.open_stream(way.peer, self._protocol, self.limits.dial_timeout_s)
        try:
            require_open(writer)
            writer.write(way.tag)
            await reader.readexactly(len(_TAKEN))
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer

    async def _run(self, way: _Way) -> None:
        """Send what waits for a peer, until its way ends."""
        try:
            while True:
                await way.send_over(*await self._open(way))
        except Unreachable as error:
            self._lost(way, str(error))
        except (TimeoutError, OSError) as error:
            self._lost(way, f"the stream to it broke: {error or type(error).__name__}")


class _Way:
    """The queue to one peer, and the two tasks of its streams."""

    def __init__(self, flow: FlowStreams, peer: str, tag: bytes) -> None:
        self.peer, self.tag = peer, tag
        self.is_cut = False
        self.sending: asyncio.Task[None] | None = None
        self.reading: asyncio.Task[None] | None = None
        self._flow = flow
        self._frames: deque[bytes | bytearray] = deque()
        self._queued_bytes = 0
        self._is_redialling = self._is_open = False
        self._wake, self._has_room = asyncio.Event(), asyncio.Event()

    async def put(self, frame: bytes | bytearray) -> None:
        """A frame of any size fits if less than the limit waits."""
        while self._queued_bytes >= self._flow.limits.queue_bytes and not self.is_cut:
            self._has_room.clear()
            await self._has_room.wait()
        if not self.is_cut:
            self._frames.append(frame)
            self._queued_bytes += len(frame)
            self._wake.set()

    def redial(self) -> None:
        self._is_redialling = self._is_open
        self._wake.set()

    def end(self) -> None:
        """Drop what waits and close both streams, which tells the other end."""
        self.is_cut = True
        self._frames.clear()
        self._has_room.set()
        me = asyncio.current_task()
        for task in (self.sending, self.reading):
            if task is not None and task is not me:
                task.cancel()

    async def send_over(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send until a better stream is wanted. Raises OSError or TimeoutError when this one breaks."""
        ended = asyncio.create_task(read_to_end(reader))
        ended.add_done_callback(lambda _: self._wake.set())
        self._is_open = True
        try:
            while True:
                if ended.done():
                    raise ConnectionResetError("the other end closed it")
                if self._is_redialling:
                    await self._end_well(writer, ended)
                    return
                if self._frames:
                    await self._write(writer, self._frames.popleft(), ended)
                    continue
                self._wake.clear()
                await self._wake.wait()
        finally:
            self._is_open = self._is_redialling = False
            writer.transport.abort()  # no flush: what the other end has not taken is not for later
            ended.cancel()

    async def _write(self, writer: asyncio.StreamWriter, frame: bytes | bytearray, ended: asyncio.Task[None]) -> None:
        flow, size = self._flow, HEADER_BYTES + len(frame)
        for pieces in in_chunks([frame], size, flow.upload.chunk_bytes):
            piece_bytes = sum(map(len, pieces))
            await flow.upload.take(Lane.FLOW, self.peer, piece_bytes)
            if ended.done():
                raise ConnectionResetError("the other end closed it")
            require_open(writer)
            for piece in pieces:
                writer.write(piece)
            flow.tally.add(self.peer, sent=piece_bytes)
            async with asyncio.timeout(flow.limits.progress_timeout_s):
                await writer.drain()
        self._queued_bytes -= len(frame)
        self._has_room.set()

    async def _end_well(self, writer: asyncio.StreamWriter, ended: asyncio.Task[None]) -> None:
        """The other end closes the stream when it has read everything."""
        require_open(writer)
        writer.write(OVER.to_bytes(HEADER_BYTES, "big"))
        async with asyncio.timeout(self._flow.limits.progress_timeout_s):
            await writer.drain()
            await asyncio.wait([ended])
