"""Follows the event lines of a file while its writer rotates it, truncates it, or is in the middle of a line."""

from __future__ import annotations

import os
import re
from collections import deque
from pathlib import Path
from typing import BinaryIO

from peer.schema.events import MAX_LINE_BYTES, EventLine, read_line

READ_BYTES = 1 << 18
OLD_FILES = 16
"""`path.1` to `path.16` are looked for."""
_CUT = b"a line that is too long"
HEAD_BYTES = 256
"""The number of an event stands within so many bytes from the start of its line."""
_SEQ = re.compile(rb'"seq":(\d+)')


class EventTail:
    """Follows `path` and what came before it: `path.3`, `path.2`, `path.1`. None of them need exist yet."""

    def __init__(self, path: Path, first: int = 0) -> None:
        self._path, self._next = path, first
        """The path, and the number of the event that `read` gives next."""
        self._file: BinaryIO | None = None
        self._whole: deque[bytes] = deque()
        """Lines that were not taken yet; an unfinished line has no line break."""
        self._begun = b""
        """A line whose end is not written yet."""
        self._too_long = False
        """The rest of the present line is thrown away."""

    def take(self, limit: int) -> list[EventLine | None]:
        """At most `limit` of the lines since the last call; None for each that cannot be read. Fewer only if there
        are no more now. Raises OSError."""
        taken: list[EventLine | None] = []
        while len(taken) < limit and (self._whole or self._read_on()):
            if self._whole:
                taken.append(read_line(self._whole.popleft()))
        return taken

    def read(self) -> bytes:
        """Complete lines since the last call, from event number `first` on, some hundred kB at most. Raises OSError."""
        if self._file is None:
            self._start()
        while self._whole or self._read_on():
            lines = b"".join(line for line in self._whole if self._is_due(line))
            self._whole.clear()
            if lines:
                return lines
        return b""

    def skip_to_end(self) -> None:
        """Take nothing of what is there now, however much it is. Raises OSError."""
        self.close()
        for age in range(OLD_FILES + 1):
            try:
                self._file = self._of_age(age).open("rb")
            except FileNotFoundError:
                continue
            self._file.seek(0, os.SEEK_END)
            return

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _is_due(self, line: bytes) -> bool:
        number = _number(line)
        if number is None or number < self._next or not line.endswith(b"\n"):
            return False
        self._next = number + 1
        return True

    def _start(self) -> None:
        """In the newest file that begins no later than the wanted event, otherwise in the oldest one."""
        for age in range(OLD_FILES + 1):
            try:
                file = self._of_age(age).open("rb")
            except FileNotFoundError:
                continue
            self.close()
            self._file, begins = file, _number(file.read(HEAD_BYTES))
            file.seek(0)
            if begins is not None and begins <= self._next:
                return

    def _read_on(self) -> bool:
        """Read some more; False if there is nothing more now."""
        if self._file is not None and (raw := self._file.read(READ_BYTES)):
            self._split(raw)
            return True
        if self._file is not None and os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)
            self._end_line()
            return True
        following = self._following()
        if following is None:
            return False
        if self._file is not None and (raw := self._file.read(READ_BYTES)):  # written just before it was renamed
            self._split(raw)
            return True
        return self._open(*following)

    def _split(self, raw: bytes) -> None:
        whole, newline, begun = raw.rpartition(b"\n")
        if newline:
            first, *others = (self._begun + whole).split(b"\n")
            texts = [_CUT if self._too_long else first, *others]
            self._whole.extend(text + b"\n" for text in texts if text.strip())
            self._begun, self._too_long = b"", False
        if not self._too_long:
            self._begun += begun
        if len(self._begun) > MAX_LINE_BYTES:
            self._begun, self._too_long = b"", True

    def _end_line(self) -> None:
        """Its writer was killed within the line."""
        if self._begun.strip():
            self._whole.append(self._begun)
        self._begun, self._too_long = b"", False

    def _following(self) -> tuple[Path, os.stat_result] | None:
        """The file that was begun after this one, or the oldest one."""
        mine = os.fstat(self._file.fileno()) if self._file is not None else None
        newer: tuple[Path, os.stat_result] | None = None
        for age in range(OLD_FILES + 1):
            path = self._of_age(age)
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if mine is not None and os.path.samestat(mine, status):
                break
            newer = path, status
        return newer

    def _of_age(self, age: int) -> Path:
        """The file that was begun so many files ago."""
        return self._path.with_name(f"{self._path.name}.{age}") if age else self._path

    def _open(self, path: Path, status: os.stat_result) -> bool:
        """Go over to a file, unless it was renamed since it was found: then False, and it is looked for the next
        time."""
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return False
        if not os.path.samestat(os.fstat(file.fileno()), status):
            file.close()
            return False
        self.close()
        self._end_line()
        self._file = file
        return True


def _number(line: bytes) -> int | None:
    found = _SEQ.search(line[:HEAD_BYTES])
    return int(found[1]) if found else None
