"""A socket pair between trainer and link for activations and gradients that the homes of a cluster exchange.

Each frame is 2 bytes of length and a peer id, then 4 bytes of length and the frame. From the trainer the peer id is the
receiver, from the link it is the sender.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import threading
from contextlib import suppress

from dht.streams.flow import MAX_FLOW_BYTES
from peer.network.link.channel import LinkLost

HEADER = struct.Struct("!HI")
MAX_PEER_BYTES = 128
BUFFER_BYTES = 4 << 20
"""What the system is asked to hold of it, as far as it lets us: fewer turns for a large frame."""
SEND_TIMEOUT_S = 120.0
"""A link takes something within this time: it may wait for room on a slow line, for one frame of another home."""
REST_TIMEOUT_S = 60.0
"""The rest of a frame of which something has come."""


class FlowEnd:
    """The trainer's end: blocking, with a time-out on every wait. One thread receives, any thread may send."""

    def __init__(self, end: socket.socket) -> None:
        _widen(end)
        end.settimeout(None)
        seconds = struct.pack("ll", int(SEND_TIMEOUT_S), 0)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(REST_TIMEOUT_S), 0))
        self._socket = end
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._is_cut = False
        """Whether nothing more is sent: a frame may have gone out in part, so that what followed could not be read."""

    def send(self, to: str, frame: bytes) -> None:
        """Send a frame to a home of the cluster. Waits while the link has no room; the frame is dropped there if
        that home is gone. Raises LinkLost, also when the link has taken nothing for SEND_TIMEOUT_S."""
        assert len(frame) <= MAX_FLOW_BYTES, len(frame)
        if not self._sending.acquire(timeout=SEND_TIMEOUT_S):
            raise LinkLost
        try:
            self._send_all(_header(to, len(frame)), frame)
        finally:
            self._sending.release()

    def receive(self, timeout_s: float) -> tuple[str, bytes] | None:
        """The next frame and its sender, or None if none begins within `timeout_s`. Raises LinkLost."""
        try:
            with self._receiving:
                readable, _, _ = select.select([self._socket], [], [], timeout_s)
                if not readable:
                    return None
                peer_bytes, size = HEADER.unpack(self._read(HEADER.size))
                _check(peer_bytes, size)
                peer = self._read(peer_bytes).decode()
                return peer, self._read(size)
        except (OSError, ValueError) as error:
            self.hang_up()
            raise LinkLost from error

    def hang_up(self) -> None:
        """Nothing passes any more, in either direction; from any thread."""
        self._is_cut = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it, from any thread: a thread in the middle of a message gets LinkLost first, and so do later
        callers."""
        self.hang_up()
        with self._sending, self._receiving:
            self._socket.close()

    def _send_all(self, *pieces: bytes) -> None:
        views = [memoryview(piece) for piece in pieces if piece]
        try:
            while views:
                if self._is_cut:
                    raise LinkLost
                sent = self._socket.sendmsg(views)
                while views and sent >= len(views[0]):
                    sent -= len(views.pop(0))
                if sent:
                    views[0] = views[0][sent:]
        except OSError as error:
            self.hang_up()
            raise LinkLost from error

    def _read(self, size: int) -> bytes:
        """Exactly so many bytes; the system fills one buffer if they come in time. Raises OSError."""
        pieces = []
        while size:
            piece = self._socket.recv(size, socket.MSG_WAITALL)
            if not piece:
                raise ConnectionResetError("the link has ended")
            pieces.append(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class FlowLinkEnd:
    """The link's end. It reads and writes the socket itself, since a transport would be five times slower."""

    def __init__(self, end: socket.socket) -> None:
        """Needs a running loop."""
        _widen(end)
        end.setblocking(False)
        self._socket = end
        self._to_trainer: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(maxsize=1)
        self._is_lost = False
        self._writing = asyncio.create_task(self._write(), name="flow to the trainer")

    async def receive(self) -> tuple[str, bytes | bytearray]:
        """The next frame and its receiver; while nobody asks, the trainer is not read. Raises LinkLost."""
        try:
            peer_bytes, size = HEADER.unpack(await self._exactly(HEADER.size))
            _check(peer_bytes, size)
            to = (await self._exactly(peer_bytes)).decode()
            return to, await self._exactly(size)
        except (OSError, ValueError) as error:
            raise LinkLost from error

    async def send(self, sender: str, frame: bytes) -> None:
        """Returns when the trainer has taken all but two frames, so that a sender with too much waits. May be
        cancelled. Raises LinkLost."""
        if self._is_lost:
            raise LinkLost
        await self._to_trainer.put((sender, frame))

    def close(self) -> None:
        self._writing.cancel()
        self._socket.close()

    async def _write(self) -> None:
        """Only one task writes, and only whole frames: a sender may be cancelled in the middle of one."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                sender, frame = await self._to_trainer.get()
                await loop.sock_sendall(self._socket, _header(sender, len(frame)))
                await loop.sock_sendall(self._socket, frame)
                del frame  # else it would be kept until the next one is here
        except OSError:
            self._is_lost = True
        while True:  # nobody waits for room any more
            await self._to_trainer.get()

    async def _exactly(self, size: int) -> bytearray:
        loop, content = asyncio.get_running_loop(), bytearray(size)
        with memoryview(content) as view:
            done = 0
            while done < size:
                read = await loop.sock_recv_into(self._socket, view[done:])
                if not read:
                    raise ConnectionResetError("the trainer has ended")
                done += read
        return content


def _header(peer: str, size: int) -> bytes:
    name = peer.encode()
    assert len(name) <= MAX_PEER_BYTES
    return HEADER.pack(len(name), size) + name


def _check(peer_bytes: int, size: int) -> None:
    """Raises ValueError for a size that no frame has."""
    if peer_bytes > MAX_PEER_BYTES or size > MAX_FLOW_BYTES:
        raise ValueError(f"a peer id of {peer_bytes} and a frame of {size} bytes are none")


def _widen(end: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        end.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
