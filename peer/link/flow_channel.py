"""The line between a trainer and its link for frames to and from the other homes of a cluster: a socket pair.

A frame is one byte of length and a peer id, four bytes of length (big endian), and the frame itself.
"""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from contextlib import suppress

from peer.link.channel import LinkLost

SEND_TIMEOUT_S = 120.0
MAX_FRAME_BYTES = 256 << 20
READ_BYTES = 1 << 20


class FlowEnd:
    """The trainer's end: blocking, with a time-out on every wait. One thread hears, any may speak."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(SEND_TIMEOUT_S)
        self._socket = end
        self._sending = threading.Lock()

    def send(self, to: str, frame: bytes) -> None:
        """Returns when the link, or the kernel, has all of it. Raises LinkLost."""
        name = to.encode()
        head = bytes((len(name),)) + name + len(frame).to_bytes(4, "big")
        with self._sending:
            try:
                self._socket.sendall(head)
                self._socket.sendall(frame)
            except OSError as error:
                self.close()
                raise LinkLost from error

    def receive(self, timeout_s: float) -> tuple[str, bytes] | None:
        """The next frame and who sent it; None if none begins in time. Raises LinkLost."""
        try:
            readable, _, _ = select.select([self._socket], [], [], timeout_s)
            if not readable:
                return None
            name = self._read(self._read(1)[0])
            size = int.from_bytes(self._read(4), "big")
            if size > MAX_FRAME_BYTES:
                raise LinkLost
            return name.decode(), bytes(self._read(size))
        except (OSError, ValueError) as error:
            raise LinkLost from error

    def _read(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            count = self._socket.recv_into(view, min(len(view), READ_BYTES))
            if not count:
                raise LinkLost
            view = view[count:]
        return buffer

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class FlowLinkEnd:
    """The link's end, in its event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, end: socket.socket) -> FlowLinkEnd:
        return cls(*await asyncio.open_connection(sock=end, limit=4 * READ_BYTES))

    async def receive(self) -> tuple[str, bytes]:
        """The next frame, and to whom it goes. Raises LinkLost."""
        try:
            name = await self._reader.readexactly((await self._reader.readexactly(1))[0])
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return name.decode(), await self._reader.readexactly(size)
        except (EOFError, OSError, ValueError) as error:
            raise LinkLost from error

    async def send(self, sender: str, frame: bytes) -> None:
        """Returns when the trainer has taken most of it: whoever sends too much waits."""
        if self._writer.is_closing():
            raise LinkLost
        name = sender.encode()
        self._writer.write(bytes((len(name),)) + name + len(frame).to_bytes(4, "big"))
        self._writer.write(frame)
        try:
            await self._writer.drain()
        except OSError as error:
            raise LinkLost from error

    def close(self) -> None:
        self._writer.close()
