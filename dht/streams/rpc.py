"""Requests and answers between peers, by name, each on a stream of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Container
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from dht.addresses import NetworkOf, displaced_by, nowhere
from dht.daemon import Daemon
from dht.errors import Unreachable
from dht.streams.base import MAX_FRAME_BYTES, Answer
from dht.streams.frames import HEADER_BYTES, OversizeError, read_content, read_size, require_open
from dht.streams.outbound import Libp2pStreams, StreamLimits
from dht.streams.shaper import Lane

Handler = Callable[[], bytes | None]
"""Gives the bytes that a name stands for, or None while there are none."""

log = logging.getLogger(__name__)

MAX_ANSWERS = 64
"""At a time to those who are known, and as many to strangers: names cost nothing, and who asks slowly, or takes its
answer slowly, holds one of them for `progress_timeout_s`. Of strangers those from one network make room for others."""
MAX_ANSWERS_EACH = 16
_MAX_NAME_BYTES = 64
MAX_REQUEST_BYTES = 1 << 15
"""Room for the votes of 64 peers."""
_HAS_IT = b"\x01"
_HAS_NOTHING = b"\x00"
_NO_NAME = ""


class Rpc:
    """Sends and answers requests over this daemon, with the limits and the tally of these streams."""

    def __init__(self, daemon: Daemon, links: Libp2pStreams, protocol: str, limits: StreamLimits) -> None:
        self.protocol = protocol
        self.open_names: Container[str] | None = None
        """The names for which peers that are not let in may ask; None: all peers are let in."""
        self.is_known: Callable[[str], bool] = lambda peer: False
        """Whether a peer is no stranger."""
        self.answering: Counter[str] = Counter()
        """Open requests, by asker."""
        self.network_of: NetworkOf = nowhere
        self._open: dict[bool, dict[asyncio.Task[Any], str]] = {True: {}, False: {}}
        """The askers of open requests, by whether they were known when they came; the first of them first."""
        self._daemon, self._links, self._limits = daemon, links, limits
        self._providers: dict[str, Answer] = {}

    def serve(self, name: str, provider: Handler) -> None:
        """Give every peer that asks for `name` the same; at most MAX_FRAME_BYTES each time."""

        async def answer(peer_id: str, request: bytes) -> bytes | None:
            return provider()

        self.answer(name, answer)

    def answer(self, name: str, answer: Answer) -> None:
        """Answer requests for `name` by `handler`. The transport has authenticated the asker."""
        assert 0 < len(name.encode()) <= _MAX_NAME_BYTES
        self._providers[name] = answer

    async def ask(
        self, peer_id: str, name: str, timeout_s: float, max_bytes: int = MAX_FRAME_BYTES, request: bytes = b""
    ) -> bytes | None:
        """The answer of `peer_id` to this request for `name`; None if it has nothing (yet). Raises Unreachable. The
        answer must begin within `timeout_s`, and then come as fast as a frame must."""
        assert len(request) <= MAX_REQUEST_BYTES
        try:
            return await self._ask(peer_id, name, timeout_s, max_bytes, request)
        except TimeoutError as error:
            raise Unreachable(f"peer {peer_id} did not send {name} within {timeout_s:g} s") from error
        except (EOFError, OSError, OversizeError) as error:
            raise Unreachable(f"peer {peer_id} did not send {name}: {error or type(error).__name__}") from error

    async def round_trip_s(self, peer_id: str, timeout_s: float) -> float:
        """Seconds between a small request to the peer and its answer, both event loops included. Raises Unreachable.
        It asks for a name that nobody serves, which is answered at once."""
        try:
            async with asyncio.timeout(timeout_s), self._asking(peer_id, timeout_s) as (reader, writer):
                asked_at = time.perf_counter()
                await self._put_question(peer_id, writer, _NO_NAME, b"")
                await reader.readexactly(1)
                return time.perf_counter() - asked_at
        except (TimeoutError, EOFError, OSError) as error:
            raise Unreachable(f"peer {peer_id} did not answer within {timeout_s:g} s") from error

    async def _ask(self, peer_id: str, name: str, timeout_s: float, max_bytes: int, request: bytes) -> bytes | None:
        async with asyncio.timeout(timeout_s) as limit, self._asking(peer_id, timeout_s) as (reader, writer):
            self._links.tally.add(peer_id, sent=await self._put_question(peer_id, writer, name, request))
            if await reader.readexactly(1) != _HAS_IT:
                return None
            size = await read_size(reader, max_bytes)
            limit.reschedule(None)
            take = partial(self._links.download.take, Lane.TRANSFER, peer_id)
            answer = await read_content(reader, size, timeout_s, take, self._limits.slowest_bytes_per_s)
            self._links.tally.add(peer_id, received=len(answer))
            return answer

    async def _put_question(self, peer_id: str, writer: asyncio.StreamWriter, name: str, request: bytes) -> int:
        question = len(name.encode()).to_bytes(1, "big") + name.encode() + len(request).to_bytes(2, "big") + request
        await self._links.upload.take(Lane.CONTROL, peer_id, len(question))
        require_open(writer)
        writer.write(question)
        await writer.drain()
        return len(question)

    @asynccontextmanager
    async def _asking(
        self, peer_id: str, timeout_s: float
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A stream for one request. Raises Unreachable."""
        reader, writer = await self._daemon.open_stream(peer_id, self.protocol, timeout_s)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def start(self) -> None:
        await self._daemon.handle(self.protocol, self.answer_stream)

    async def answer_stream(self, peer_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_known, task = self.is_known(peer_id), asyncio.current_task()
        assert task is not None
        if self.answering[peer_id] >= MAX_ANSWERS_EACH or not self._has_room_for(peer_id, is_known):
            log.info("refused a question of %s: too many at once", peer_id)
            return
        self.answering[peer_id] += 1
        self._open[is_known][task] = peer_id
        try:
            with suppress(EOFError, TimeoutError, OSError):
                await self._answer_one(peer_id, reader, writer)
        finally:
            self.answering -= Counter([peer_id])  # which forgets who has none any more
            self._open[is_known].pop(task, None)

    def _has_room_for(self, peer_id: str, is_known: bool) -> bool:
        """A stranger's request may end for one from another network."""
        places = self._open[is_known]
        if is_known or len(places) < MAX_ANSWERS:
            return len(places) < MAX_ANSWERS
        displaced = displaced_by(peer_id, places.values(), self.network_of)
        if displaced is None:
            return False
        task = next(task for task, holder in places.items() if holder == displaced)
        del places[task]
        task.cancel()
        return True

    async def _answer_one(self, peer_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        limit_s = self._limits.progress_timeout_s
        async with asyncio.timeout(limit_s):
            size = (await reader.readexactly(1))[0]
            name = (await reader.readexactly(size)).decode(errors="replace")
            request_bytes = int.from_bytes(await reader.readexactly(2), "big")
            if request_bytes > MAX_REQUEST_BYTES:
                return
            request = await reader.readexactly(request_bytes)
        answer = self._providers.get(name)
        await self._links.download.take(Lane.CONTROL, peer_id, 3 + size + request_bytes)
        may_ask = self.open_names is None or name in self.open_names or await self._links.lets_in(peer_id)
        data = await answer(peer_id, request) if answer is not None and may_ask else None
        require_open(writer)
        writer.write(_HAS_NOTHING if data is None else _HAS_IT + len(data).to_bytes(HEADER_BYTES, "big"))
        upload = self._links.upload
        view = memoryview(data or b"")
        for offset in range(0, len(view), upload.chunk_bytes):
            piece = view[offset : offset + upload.chunk_bytes]
            await upload.take(Lane.TRANSFER, peer_id, len(piece))
            require_open(writer)
            writer.write(piece)
            async with asyncio.timeout(limit_s):
                await writer.drain()
        self._links.tally.add(peer_id, sent=len(data or b""), received=len(request))
        async with asyncio.timeout(limit_s):
            await reader.read(1)  # the other side closes when it has everything


Clock = Callable[[], float]


class RateLimit:
    """At most `at_once` at a time, and in any `window_s` at most `each` for one peer and `everybody` for all."""

    def __init__(self, *, at_once: int, each: int, everybody: int, window_s: float, clock: Clock) -> None:
        self._at_once, self._each, self._everybody = at_once, each, everybody
        self._window_s, self._clock = window_s, clock
        self._given: deque[tuple[float, str, int]] = deque()

    def grant(self, peer: str, amount: int) -> bool:
        """Whether this peer may have so much now; if so it is counted."""
        now = self._clock()
        while self._given and now - self._given[0][0] >= self._window_s:
            self._given.popleft()
        mine = sum(given for _, who, given in self._given if who == peer)
        everyone = sum(given for _, _, given in self._given)
        if not 0 < amount <= self._at_once or mine + amount > self._each or everyone + amount > self._everybody:
            return False
        self._given.append((now, peer, amount))
        return True
