"""A program in a pseudo-terminal: what it draws and when, what it takes of the machine."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

STOP_S = 10.0
_ESCAPES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")


class Terminal:
    """Runs `argv` in a terminal of `columns` × `rows` until the end of the `with` block."""

    def __init__(self, argv: Sequence[str], *, columns: int, rows: int) -> None:
        self._argv, self._size = list(argv), (columns, rows)
        self._drawn = bytearray()
        self._has_ended = False
        """Whether all that was ever drawn has been read."""
        self._news = threading.Condition()

    def __enter__(self) -> Self:
        self._mine, theirs = pty.openpty()
        columns, rows = self._size
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LINES": "", "COLUMNS": ""}
        for name in ("NO_COLOR", "CI", "LINES", "COLUMNS"):
            environment.pop(name, None)
        self.began_s = time.perf_counter()
        self._child = subprocess.Popen(
            self._argv, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)
        self._process = psutil.Process(self._child.pid)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.terminate()
        try:
            self._child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(STOP_S)
        self._reader.join(STOP_S)
        os.close(self._mine)

    def press(self, keys: str) -> None:
        """As if typed."""
        with self._news:
            self._drawn.clear()
        os.write(self._mine, keys.encode())

    def wait_for(self, text: str, timeout_s: float) -> float:
        """When `text` was drawn (`time.perf_counter`), since the last key. Raises TimeoutError."""
        wanted, deadline_s = text.encode(), time.perf_counter() + timeout_s
        with self._news:
            while wanted not in _ESCAPES.sub(b"", bytes(self._drawn)):
                left_s = deadline_s - time.perf_counter()
                if left_s <= 0 or self._has_ended:
                    shown = _ESCAPES.sub(b"", bytes(self._drawn))[-2000:].decode(errors="replace")
                    raise TimeoutError(f"{text!r} was not drawn; the last of what was: {shown}")
                self._news.wait(min(left_s, 1.0))
        return time.perf_counter()

    def cpu_s(self) -> float:
        """Processor time that it has taken so far."""
        times = self._process.cpu_times()
        return times.user + times.system

    def peak_bytes(self) -> int:
        """The most memory that was resident so far."""
        status = Path(f"/proc/{self._child.pid}/status").read_text()
        kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
        return int(kib) * 1024

    def _read(self) -> None:
        while True:
            try:
                raw = os.read(self._mine, 1 << 16)
            except OSError:  # the other side is closed
                raw = b""
            with self._news:
                self._has_ended = not raw
                self._drawn += raw
                del self._drawn[: -(1 << 20)]
                self._news.notify_all()
            if not raw:
                return
