"""A terminal for the tests: a command runs in a pseudo-terminal, and one can look for words on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from peer.testing.child_process import HANG_S

ESCAPE = 0x1B
_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[P_^].*?\x1b\\|\x1b[@-Z\\-_=>78]", re.S
)
_CURSOR = re.compile(r"\x1b\[\d+;\d+H")


class Terminal:
    """`argv` with a terminal of `columns` × `lines` for its stdin, stdout and stderr, as the leader of a session.

    `taken` are all bytes so far; Textual draws only what changed, so look for short words.
    """

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], *, columns: int = 120, lines: int = 40
    ) -> None:
        self.taken = b""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], list(argv), dict(environment))
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._code: int | None = None

    @property
    def text(self) -> str:
        """What was drawn, in order, with a line break wherever the cursor jumped."""
        drawn = _CURSOR.sub("\n", self.taken.decode(errors="replace"))
        return _SEQUENCES.sub("", drawn)

    def read(self, seconds: float = 0.1) -> None:
        """Take in what is drawn within that time."""
        with suppress(OSError):  # nobody has the terminal open any more
            if select.select([self._fd], [], [], seconds)[0]:
                self.taken += os.read(self._fd, 1 << 16)

    def wait_for(self, words: str, timeout_s: float = HANG_S, *, since: int = 0) -> float:
        """Until `words` are drawn after the first `since` bytes; seconds that it took. AssertionError with what was."""
        began_at = time.monotonic()
        while words not in self._since(since):
            assert time.monotonic() - began_at < timeout_s, (
                f"no {words!r} in {timeout_s:.0f} s: {self._since(since)[-2000:]}"
            )
            assert self.code is None or self._drained(), (
                f"ended with {self.code} without {words!r}: {self.text[-2000:]}"
            )
            self.read()
        return time.monotonic() - began_at

    def _since(self, since: int) -> str:
        drawn = _CURSOR.sub("\n", self.taken[since:].decode(errors="replace"))
        return _SEQUENCES.sub("", drawn)

    def _drained(self) -> bool:
        before = len(self.taken)
        self.read(0.5)
        return len(self.taken) > before

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._fd, keys.encode())

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the command itself."""
        os.kill(self.pid, number)

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def finish(self, timeout_s: float = HANG_S) -> int:
        """Wait for its end, reading what it draws; the exit code."""
        deadline = time.monotonic() + timeout_s
        while (code := self.code) is None:
            assert time.monotonic() < deadline, f"still running: {self.text[-2000:]}"
            self.read()
        while self._drained():
            continue
        return code

    def close(self) -> None:
        """End it, whatever it does."""
        if self.code is None:
            self.kill()
            os.waitpid(self.pid, 0)
        os.close(self._fd)
