"""Sends commands to a running peer through its control socket (`DIR/run/control`)."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dht.errors import BadInput, HomefiresError, Unreachable
from peer.schema.events import EventLine, printable, read_line

VERSION = 1
REPLY_S = 5.0
EVENTS_S = 1.0
"""Who follows the events hears at least so often that there are none."""
MAX_PATH_BYTES = 107
"""What the address of a socket can hold."""
MAX_REPLY_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A peer's answer to a command; `error` is one line for people when it is not `ok`."""

    ok: bool
    error: str = ""
    fields: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


class ControlClient:
    """Sends one command per connection: the client of a dashboard."""

    takes = frozenset({"status", "set", "snooze", "pause", "resume", "finish", "leave"})

    def __init__(self, directory: Path, *, timeout_s: float = REPLY_S) -> None:
        self._directory, self._timeout_s = directory, timeout_s

    def request(self, cmd: str, **fields: Any) -> Reply:
        """The peer's answer; a peer that is not there, or does not answer in time, is a reply that is not ok."""
        try:
            row = self._ask(cmd, fields)
        except HomefiresError as error:
            return Reply(ok=False, error=str(error))
        return _reply(row)

    def require(self, cmd: str, **fields: Any) -> Reply:
        """As `request`. Raises Unreachable if no peer answers there, BadInput if it refuses."""
        return _required(_reply(self._ask(cmd, fields)))

    def events(self, first: int = 0) -> Iterator[EventLine | None]:
        """The peer's events from number `first` on, until it ends; None whenever there was none for a second.

        Raises Unreachable if no peer answers there, BadInput if it refuses.
        """
        with self._connected() as connection:
            connection.sendall(_packed("events", {"from": first}))
            rest, told = b"", False
            while True:
                piece = _receive(connection, EVENTS_S)
                if piece == b"":
                    return
                if piece is None:
                    yield None
                    continue
                *whole, rest = (rest + piece).split(b"\n")
                if whole and not told:
                    told = _required(_reply(_row(whole.pop(0)))).ok
                yield from (line for text in whole if (line := read_line(text)) is not None)

    def _ask(self, cmd: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        with self._connected() as connection:
            connection.sendall(_packed(cmd, fields))
            return _read_row(connection)

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        path = self._directory / "run" / "control"
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise Unreachable(f"{path} is longer than a socket's path may be; no command reaches a peer there")
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(self._timeout_s)
                connection.connect(str(path))
                yield connection
        except (FileNotFoundError, NotADirectoryError, ConnectionError) as error:
            raise Unreachable(f"no peer runs in {self._directory}") from error
        except (TimeoutError, BlockingIOError) as error:  # the latter: as many wait for it as the system lets wait
            raise Unreachable(f"the peer in {self._directory} did not answer in {self._timeout_s:.0f} s") from error
        except PermissionError as error:
            raise BadInput(f"the peer in {self._directory} belongs to somebody else") from error
        except OSError as error:  # such as too many open files
            raise Unreachable(f"the peer in {self._directory} cannot be asked: {error.strerror}") from error
        except BadInput:  # what it refuses in words; a ValueError, too
            raise
        except ValueError as error:
            raise Unreachable(f"what listens at {path} is no peer of ours") from error


def name_of(reply: Reply) -> str:
    return printable(str(reply.fields.get("name") or "the peer"))


def note_of(reply: Reply) -> str:
    """What a peer adds to an answer, for example that a setting takes effect at its next start."""
    note = reply.fields.get("note")
    return printable(note) if isinstance(note, str) else ""


def _packed(cmd: str, fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"v": VERSION, "id": 1, "cmd": cmd, **fields}).encode() + b"\n"


def _receive(connection: socket.socket, timeout_s: float) -> bytes | None:
    """The bytes that have arrived, b"" at the end, None if nothing came in time."""
    connection.settimeout(timeout_s)
    try:
        return connection.recv(1 << 16)
    except TimeoutError:
        return None


def _read_row(connection: socket.socket) -> dict[str, Any]:
    """The first line. Raises ValueError if it is no JSON object, ConnectionError if none comes."""
    received = b""
    while b"\n" not in received and len(received) <= MAX_REPLY_BYTES:
        piece = connection.recv(1 << 16)
        if not piece:
            raise ConnectionResetError("closed without an answer")
        received += piece
    return _row(received.partition(b"\n")[0])


def _row(text: bytes) -> dict[str, Any]:
    row = json.loads(text)
    if not isinstance(row, dict):
        raise ValueError("not an object")
    return row


def _required(reply: Reply) -> Reply:
    if not reply.ok:
        raise BadInput(reply.error)
    return reply


def _reply(row: dict[str, Any]) -> Reply:
    known = {"id", "ok", "error"}
    fields = {key: value for key, value in row.items() if key not in known}
    return Reply(ok=row.get("ok") is True, error=str(row.get("error", "")), fields=MappingProxyType(fields))
