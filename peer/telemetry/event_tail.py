"""The events of a run directory from a number on, while its peer goes on writing them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

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
