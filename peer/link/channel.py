"""The line between a peer's trainer and its link: length-prefixed msgpack over a socket pair.

Every message is (kind, values…). Times are those of the monotonic clock, which all processes of a machine
share. Large things do not travel here: contributions and means lie in files that both sides read.

    trainer → link   model(layer_sizes, initial state, anchor where it stands or empty)
                     progress(share, training loss, tokens per second) · evaluated(round, held-out loss)
                     frozen(anchor) · paused(anchor) · resumed() · applied(anchor, state) · leave() · finish()
                     settings(values by name), at any time: `receive` passes it on to who takes it
    link → trainer   spec(toml) · waiting(why) · begin(anchor, members) · replay(block, last round) · resume(anchor)
                     in_step() · behind() · freeze() · commit(block, anchor, sent, received, when)
                     speeds(what each other peer of the electorate says of its tokens per second)
                     undo(blocks newest first, anchor, members) · snapshot(round, anchor, members)
                     report(name, fields) · error(name, text)

`paused` instead of `frozen`: no more steps are made; what is on disk for this anchor is offered, or nothing.
`begin` names the anchor where the trainer stands if that is on the chain, else the first one; what was
decided since comes as `replay`. Where the trainer stands on a branch that was left, `begin` names that
anchor all the same, and `undo` comes first; after it the trainer stands at its `anchor`. `snapshot`
lets it stand where a snapshot on disk was taken, wherever it stood before, and keep what it has learned.
"""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import msgpack

from peer.events import Event

Fields = tuple[Any, ...]
LENGTH_BYTES = 4
SEND_TIMEOUT_S = 30.0
SETTINGS = "settings"


class LinkLost(Exception):
    """The other side of the pipe has ended."""


class TrainerEnd:
    """The trainer's end: blocking, with a time-out on every wait."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(SEND_TIMEOUT_S)
        self._socket = end
        self._buffer = bytearray()
        self._sending = threading.Lock()
        self._is_cut = False
        """Whether a message may have gone out in part: nothing that followed could be read."""

    def send(self, kind: str, *fields: Any) -> None:
        """From any thread. Raises LinkLost, also when the link has not read for SEND_TIMEOUT_S."""
        with self._sending:
            if self._is_cut:
                raise LinkLost
            try:
                self._socket.sendall(_framed(kind, fields))
            except OSError as error:
                self._is_cut = True
                raise LinkLost from error

    def receive(self, timeout_s: float) -> Fields | None:
        """The next message, or None if there is none within `timeout_s`. Raises LinkLost."""
        while (message := self._next()) is None:
            readable, _, _ = select.select([self._socket], [], [], timeout_s)
            if not readable and self._is_cut:
                raise LinkLost
            if not readable:
                return None
            received = self._read()
            if not received:
                raise LinkLost
            self._buffer += received
        return message

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> bytes:
        try:
            return self._socket.recv(1 << 16)
        except OSError as error:
            raise LinkLost from error

    def _next(self) -> Fields | None:
        if len(self._buffer) < LENGTH_BYTES:
            return None
        end = LENGTH_BYTES + int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
        if len(self._buffer) < end:
            return None
        message = _unpacked(bytes(self._buffer[LENGTH_BYTES:end]))
        del self._buffer[:end]
        return message


class LinkEnd:
    """The link's end, in its event loop. Sending never blocks: the loop keeps what the trainer has not read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.on_settings: Callable[[dict[str, Any]], object] = lambda values: None
        """Called with what the owner has changed, whatever else is waited for."""

    @classmethod
    async def open(cls, end: socket.socket) -> LinkEnd:
        return cls(*await asyncio.open_connection(sock=end))

    def send(self, kind: str, *fields: Any) -> None:
        """A trainer that has ended hears nothing; `receive` says that it has."""
        if not self._writer.is_closing():  # uvloop's `write` would raise RuntimeError
            self._writer.write(_framed(kind, fields))

    def report(self, event: Event) -> None:
        self.send("report", type(event).__name__, asdict(event))

    async def receive(self) -> Fields:
        """The next message. Raises LinkLost when the trainer has ended."""
        while True:
            try:
                size = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
                message = _unpacked(await self._reader.readexactly(size))
            except (asyncio.IncompleteReadError, OSError) as error:
                raise LinkLost from error
            if message[0] != SETTINGS:
                return message
            self.on_settings(message[1])

    async def close(self, timeout_s: float) -> None:
        """Send what is queued, for at most `timeout_s`, and close. A trainer that has ended is no error any more."""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(timeout_s):
                await self._writer.drain()
                self._writer.close()
                await self._writer.wait_closed()


def _framed(kind: str, fields: Fields) -> bytes:
    packed: bytes = msgpack.packb((kind, *fields))
    return len(packed).to_bytes(LENGTH_BYTES, "big") + packed


def _unpacked(packed: bytes) -> Fields:
    message: Fields = msgpack.unpackb(packed, use_list=False)
    return message
