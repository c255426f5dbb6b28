"""The numbered events of one process, written to stdout and to the run directory."""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from dht.atomic_files import raising_disk_full
from dht.errors import DiskFull
from peer.schema.events import Event, EventLine, format_line

FILE_BYTES = 16 << 20
OLD_FILES = 3


class EventLog:
    """Writes each event as one line to stdout and to `events.jsonl`, which rotates (`.1` is the newest old file).
    The numbers continue those of an earlier process in the same directory. On a full disk the file lacks lines,
    which is no reason to stop training. While it is open stdout is its own: what libraries print goes to stderr."""

    def __init__(self, run: str, peer: str, directory: Path) -> None:
        self._run, self._peer = run, peer
        path = directory / "events.jsonl"
        self._seq = _next_number(path)
        self._file = logging.Logger("events")
        self._file.addHandler(_File(path, maxBytes=FILE_BYTES, backupCount=OLD_FILES, encoding="utf-8"))
        self._out, sys.stdout = sys.stdout, sys.stderr

    def emit(self, event: Event) -> int:
        """Write one event, flushed; returns its number."""
        number = self._seq
        text = format_line(EventLine(seq=number, t=time.time(), run=self._run, peer=self._peer, event=event))
        self._seq += 1
        self._file.info(text)
        print(text, file=self._out, flush=True)
        return number

    def close(self) -> None:
        sys.stdout = self._out
        with _without_full_disk():
            for handler in self._file.handlers:
                handler.close()


class _File(logging.handlers.RotatingFileHandler):
    """A file whose errors are raised, except for a full disk."""

    def handleError(self, record: logging.LogRecord) -> None:
        with _without_full_disk():
            raise


@contextmanager
def _without_full_disk() -> Iterator[None]:
    with suppress(DiskFull), raising_disk_full(Path("events.jsonl")):
        yield


class EventPrinter:
    """Prints the numbered events of a process that keeps no file of them; unknown fields are empty."""

    def __init__(self, run: str = "", out: TextIO | None = None) -> None:
        self.run, self.peer = run, ""
        self.listener: Callable[[Event], None] = lambda event: None
        """Is called with every event, too."""
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
