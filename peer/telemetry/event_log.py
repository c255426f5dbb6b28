"""Events of one process, numbered, on stdout and in the run directory."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from dht.atomic_files import raising_disk_full
from dht.errors import DiskFull
from peer.events import Event, EventLine, format_line

FILE_BYTES = 16 << 20
OLD_FILES = 3


class EventLog:
    """Writes each event as one line to stdout and to `events.jsonl`, which rotates (`.1` is the newest old file).

    The numbers go on where an earlier process in the same directory stopped. On a full disk the
    file lacks lines, which is no reason to stop training.
    """

    def __init__(self, run: str, peer: str, directory: Path) -> None:
        self._run, self._peer = run, peer
        path = directory / "events.jsonl"
        self._seq = _next_number(path)
        self._file = logging.Logger("events")
        self._file.addHandler(_File(path, maxBytes=FILE_BYTES, backupCount=OLD_FILES, encoding="utf-8"))

    def emit(self, event: Event) -> int:
        """Write one event, flushed; returns its number."""
        number = self._seq
        text = format_line(EventLine(seq=number, t=time.time(), run=self._run, peer=self._peer, event=event))
        self._seq += 1
        self._file.info(text)
        print(text, flush=True)
        return number

    def close(self) -> None:
        """Close the file."""
        with _without_full_disk():
            for handler in self._file.handlers:
                handler.close()


class _File(logging.handlers.RotatingFileHandler):
    """Raises what goes wrong, but for a full disk."""

    def handleError(self, record: logging.LogRecord) -> None:
        with _without_full_disk():
            raise


@contextmanager
def _without_full_disk() -> Iterator[None]:
    with suppress(DiskFull), raising_disk_full(Path("events.jsonl")):
        yield


class EventPrinter:
    """Prints the events of a process that keeps no file of them, numbered; what is not known of it is empty."""

    def __init__(self, run: str = "", out: TextIO | None = None) -> None:
        self.run, self.peer = run, ""
        self.listener: Callable[[Event], None] = lambda event: None
        """Told of every event, too."""
        self._out, self._seq = out or sys.stdout, 0

    def __call__(self, event: Event) -> None:
        line = EventLine(seq=self._seq, t=time.time(), run=self.run, peer=self.peer, event=event)
        self._seq += 1
        print(format_line(line), file=self._out, flush=True)
        self.listener(event)


def _next_number(path: Path) -> int:
    """One more than the number of the last whole line."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - (1 << 16)))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            return int(json.loads(line)["seq"]) + 1
        except (ValueError, KeyError, TypeError):
            continue
    return 0


CHUNK_BYTES = 256 << 10
HEAD_BYTES = 256
"""The number of an event stands within so many bytes from the start of its line."""
_SEQ = re.compile(rb'"seq":(\d+)')


class EventTail:
    """Reads `events.jsonl` and its older files in `directory` in pieces, from event number `first` on.

    A file that is renamed meanwhile is read to its end; then it goes on in the one that has what follows.
    """

    def __init__(self, directory: Path, first: int) -> None:
        self._path = directory / "events.jsonl"
        self._next = first
        self._file: BinaryIO | None = None

    def read(self) -> bytes:
        """Whole lines that have come since, at most about `CHUNK_BYTES`; empty if there are none yet."""
        if self._file is None:
            self._open()
        if self._file is None:
            return b""
        lines = _whole_lines(self._file)
        if not lines and self._is_old(self._file):
            self.close()
        return b"".join(line for line in lines if self._is_due(line))

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _is_due(self, line: bytes) -> bool:
        number = _number(line)
        if number is None or number < self._next:
            return False
        self._next = number + 1
        return True

    def _open(self) -> None:
        """The newest file that begins no later than with the event that is wanted, else the oldest one."""
        oldest: BinaryIO | None = None
        for path in (self._path, *(self._path.with_name(f"{self._path.name}.{age}") for age in range(1, 10))):
            try:
                file = path.open("rb")
            except FileNotFoundError:
                break
            if oldest is not None:
                oldest.close()
            oldest = file
            begins = _number(file.read(HEAD_BYTES))
            file.seek(0)
            if begins is not None and begins <= self._next:
                break
        self._file = oldest

    def _is_old(self, file: BinaryIO) -> bool:
        """Whether the peer writes another file by now."""
        try:
            newest = self._path.stat()
        except FileNotFoundError:
            return False
        return not os.path.samestat(newest, os.fstat(file.fileno())) and newest.st_size > 0


def _whole_lines(file: BinaryIO) -> list[bytes]:
    """The next lines that have an end; what has none is read again."""
    start = file.tell()
    piece = file.read(CHUNK_BYTES)
    end = piece.rfind(b"\n") + 1
    if end == 0 and len(piece) == CHUNK_BYTES:
        return [b"\n"]  # no event is as long as that: skipped
    file.seek(start + end)
    return piece[:end].splitlines(keepends=True)


def _number(line: bytes) -> int | None:
    found = _SEQ.search(line[:HEAD_BYTES])
    return int(found[1]) if found else None
