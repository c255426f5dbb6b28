"""The channel between a peer's trainer and its link: length-prefixed messages of `peer.schema.ipc` over a socket pair.

A frame that is no valid message ends the channel on the side that receives it, as if the other side had ended.
"""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict

from peer.schema import ipc
from peer.schema.events import Event

LENGTH_BYTES = 4
SEND_TIMEOUT_S = 30.0


class LinkLost(Exception):
    """The other end has gone, or sent something that is no message."""


class TrainerEnd:
    """The trainer's end: blocking, with a time-out on every wait. One thread receives, any thread may send."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(SEND_TIMEOUT_S)
        self._socket = end
        self._buffer = bytearray()
        self._sending = threading.Lock()
        self._is_cut = False
        """Whether nothing more is sent: a message may have gone out in part, so that what followed could not be
        read."""

    def send(self, message: ipc.ToLink) -> None:
        """From any thread. Raises LinkLost, also when the link has not read for SEND_TIMEOUT_S."""
        with self._sending:
            if self._is_cut:
                raise LinkLost
            try:
                self._socket.sendall(framed(message))
            except OSError as error:
                self._is_cut = True
                if isinstance(error, TimeoutError):  # a link that goes on talking and does not listen is lost, too
                    self._socket.shutdown(socket.SHUT_RDWR)
                raise LinkLost from error

    def receive(self, timeout_s: float) -> ipc.AnyToTrainer | None:
        """The next message, or None if there is none within `timeout_s`. Raises LinkLost."""
        try:
            while (message := self._next()) is None:
                readable, _, _ = select.select([self._socket], [], [], timeout_s)
                if not readable and self._is_cut:
                    raise LinkLost
                if not readable:
                    return None
                received = self._socket.recv(1 << 16)
                if not received:
                    raise LinkLost
                self._buffer += received
        except (OSError, ipc.BadMessage) as error:
            self.hang_up()
            raise LinkLost from error
        return message

    def hang_up(self) -> None:
        """Send nothing more, which ends the link; what it still says is received."""
        self._is_cut = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()

    def _next(self) -> ipc.AnyToTrainer | None:
        if len(self._buffer) < LENGTH_BYTES:
            return None
        end = LENGTH_BYTES + _size(self._buffer[:LENGTH_BYTES])
        if len(self._buffer) < end:
            return None
        message = ipc.decode_to_trainer(bytes(self._buffer[LENGTH_BYTES:end]))
        del self._buffer[:end]
        return message


class LinkEnd:
    """The link's end, in its event loop. Sending never blocks: the loop keeps what the trainer has not read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.on_limits: Callable[[ipc.LinkLimits], object] = lambda limits: None
        """Called when the owner has changed something, whatever else is awaited."""
        self.on_stages: Callable[[ipc.Assignment], object] = lambda assignment: None
        """Called when a lead has assigned its homes, likewise."""
        self.on_expelled: Callable[[Sequence[str]], object] = lambda homes: None
        """Called with the homes that get no layers again of a lead, likewise."""
        self.on_work: Callable[[ipc.SeekWork], object] = lambda seek: None
        """Called with what a worker may offer, likewise."""
        self._is_lost = False

    @classmethod
    async def open(cls, end: socket.socket) -> LinkEnd:
        return cls(*await asyncio.open_connection(sock=end))

    def send(self, message: ipc.ToTrainer) -> None:
        """A trainer that has ended receives nothing; `receive` reports that."""
        if not self._writer.is_closing():  # uvloop's `write` would raise RuntimeError
            self._writer.write(framed(message))

    def report(self, event: Event) -> None:
        self.send(ipc.ReportEvent(type(event).__name__, asdict(event)))

    async def receive(self) -> ipc.AnyToLink:
        """The next message except those for which there is `on_limits` and its like.
        Raises LinkLost when the trainer has ended."""
        while not self._is_lost:
            try:
                size = _size(await self._reader.readexactly(LENGTH_BYTES))
                message = ipc.decode_to_link(await self._reader.readexactly(size))
            except (asyncio.IncompleteReadError, OSError, ipc.BadMessage) as error:
                self._is_lost = True
                raise LinkLost from error
            match message:
                case ipc.ChangeLimits(limits):
                    self.on_limits(limits)
                case ipc.AssignStages(assignment):
                    self.on_stages(assignment)
                case ipc.HomesExpelled(homes):
                    self.on_expelled(homes)
                case ipc.SeekWork() as seek:
                    self.on_work(seek)
                case _:
                    return message
        raise LinkLost

    async def close(self, timeout_s: float) -> None:
        """Send what is queued, for at most `timeout_s`, and close. A trainer that has ended is no error here."""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(timeout_s):
                await self._writer.drain()
                self._writer.close()
                await self._writer.wait_closed()


def framed(message: ipc.ToLink | ipc.ToTrainer) -> bytes:
    packed = ipc.encode(message)
    return len(packed).to_bytes(LENGTH_BYTES, "big") + packed


def _size(prefix: bytes | bytearray) -> int:
    """Raises BadMessage for more than any message has."""
    size = int.from_bytes(prefix, "big")
    if size > ipc.MAX_BYTES:
        raise ipc.BadMessage(f"{size} bytes are no message")
    return size
