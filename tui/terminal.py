"""Whether a dashboard can be shown here. Textual does not check that: it draws into pipes and on dumb
terminals, too.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
import termios
import textwrap
from collections.abc import Mapping
from typing import TextIO

from dht.errors import BadInput

_MODES = (1049, 1000, 1002, 1003, 1004, 1006, 1015, 2004)
RESTORE = "".join(f"\x1b[?{mode}l" for mode in _MODES) + "\x1b[?25h\x1b[<u\x1b[0m"
"""Leaves the alternate screen, shows the cursor, and ends reports of mouse, focus, paste and keys."""


def choose_ui(ui: str) -> str:
    """The value of `--ui` for this process's own streams: tui, plain, json or none. Raises BadInput."""
    return decide(ui, os.environ, sys.stdin, sys.stdout, sys.stderr)


def require_terminal() -> None:
    """Raises BadInput if no dashboard can be shown here."""
    if fault := _fault_of(os.environ, sys.stdin, sys.stderr):
        raise BadInput(f"a dashboard needs a terminal: {fault}; for lines: homefires status, or watch DIR --ui plain")


def columns(most: int) -> int:
    """The cells of a line on this terminal, at most `most`; `most` without a terminal."""
    return min(most, shutil.get_terminal_size((most, 24)).columns)


def wrapped(text: str, most: int) -> str:
    """As wide as the terminal, with no line that ends in mid-word."""
    return textwrap.fill(text, columns(most), break_long_words=False, break_on_hyphens=False)


def is_gone(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that was closed; writing to it fails with EIO."""
    try:
        termios.tcgetattr(stream.fileno())
    except (termios.error, OSError) as error:
        return bool(error.args[0] == errno.EIO)
    return False


def decide(
    ui: str, environ: Mapping[str, str], stdin: TextIO | None, stdout: TextIO | None, stderr: TextIO | None
) -> str:
    """`auto` is the dashboard for a person at a terminal, otherwise plain lines. Raises BadInput if `tui` is not
    possible."""
    if ui not in ("auto", "tui"):
        return ui
    fault = _fault_of(environ, stdin, stderr)
    if ui == "tui":
        if fault:
            raise BadInput(f"--ui tui: {fault}; use --ui plain")
        return "tui"
    return "plain" if fault or environ.get("CI") or not _is_terminal(stdout) else "tui"


def _fault_of(environ: Mapping[str, str], stdin: TextIO | None, stderr: TextIO | None) -> str:
    """Why a dashboard cannot be drawn here; empty if it can."""
    if not _is_terminal(stdin):
        return "stdin is not a terminal"
    if not _is_terminal(stderr):
        return "stderr is not a terminal"
    term = environ.get("TERM", "")
    return f"TERM is {term!r}, which can show no dashboard" if term in ("", "dumb") else ""


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def hold_standard_streams() -> None:
    """Open the null device in place of a closed stdin, stdout or stderr, so that no file or pipe gets its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 (it lasts as long as the process)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


class GatedStream(io.TextIOBase):
    """A stream that can be shut; what is written meanwhile is dropped."""

    def __init__(self, inner: TextIO) -> None:
        self._inner = inner
        self.is_open = True

    def write(self, text: str) -> int:
        if self.is_open:
            self._inner.write(text)
        return len(text)

    def flush(self) -> None:
        if self.is_open:
            self._inner.flush()

    def isatty(self) -> bool:
        return self._inner.isatty()
