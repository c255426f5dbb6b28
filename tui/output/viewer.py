"""The dashboard of a demo: a process of its own on this terminal, while the launcher goes on behind it.

The launcher writes the events of all peers to one file; the viewer, `python -m tui watch FILE --live --viewer`, draws
them. When the viewer ends, for whatever reason, the launcher goes on.
"""

from __future__ import annotations

import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from peer.schema.events import EventLine
from tui.processes.children import Output, environment, python_module
from tui.terminal import RESTORE, GatedStream

VIEWER_CODES = {"ended": 0, "detach": 20, "leave": 21}
"""The exit code of a viewer by how its dashboard was closed; any other code means that it failed or was killed."""
LINGER_S = 60.0
"""The time that the last screen of a finished demo stays, unless a person closes it."""
STDIN = 0
STOP_S = 5.0
"""The time after which a viewer that was asked to end is killed."""


class DashboardOutput(Output):
    """Shows the dashboard until a person closes it, then lines. `leave` is called if the demo should stop, too.

    `lines` makes the output that continues with what is known by then; it gets the stream to write to.
    """

    def __init__(
        self, stream: TextIO, lines: Callable[[TextIO], Output], leave: Callable[[], None], options: Sequence[str]
    ) -> None:
        self._tap = GatedStream(stream)
        self._lines = lines(self._tap)  # type: ignore[arg-type]
        self._leave, self._options = leave, list(options)
        self._viewer: subprocess.Popen[bytes] | None = None
        self._said: list[str] = []
        self._terminal = _terminal_state()

    def begin(self, events: Path) -> None:
        argv = python_module("tui", "watch", str(events), "--live", "--viewer", *self._options)
        sys.stdout.flush()
        self._viewer = subprocess.Popen(argv, env=environment())
        self._tap.is_open = False

    def show(self, line: EventLine) -> None:
        """Take note of an event; the viewer reads it from the file."""
        self._lines.show(line)

    def say(self, text: str) -> None:
        """Keep the sentence until there are lines again."""
        if self._viewer is not None:
            self._said.append(text)
        self._lines.say(text)

    def tick(self, now_s: float) -> None:
        if self._viewer is not None and self._viewer.poll() is not None:
            self._go_on_with_lines()
        self._lines.tick(now_s)

    def close(self, *, at_once: bool = False) -> None:
        """Keep the last screen for `LINGER_S`, or not at all if `at_once`."""
        if self._viewer is not None:
            try:
                self._viewer.wait(0.0 if at_once else LINGER_S)
            except subprocess.TimeoutExpired:
                self._viewer.terminate()
            finally:
                self._end_viewer()
        self._lines.close()

    def _end_viewer(self) -> None:
        assert self._viewer is not None
        try:
            self._viewer.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._viewer.kill()
            self._viewer.wait(STOP_S)
        self._go_on_with_lines(over=True)

    def _go_on_with_lines(self, *, over: bool = False) -> None:
        assert self._viewer is not None
        code, self._viewer = self._viewer.returncode, None
        if code not in VIEWER_CODES.values():
            _restore_terminal(self._terminal)
        self._tap.is_open = True
        for text in self._said:
            self._lines.say(text)
        if over:
            return
        if code == VIEWER_CODES["leave"]:
            self._leave()
        else:
            gone = "is closed" if code in VIEWER_CODES.values() else f"ended unexpectedly (exit code {code})"
            self._lines.say(f"the dashboard {gone}; the demo goes on, Ctrl-C stops it")


def _terminal_state() -> list[Any] | None:
    try:
        return termios.tcgetattr(STDIN)
    except (termios.error, OSError):
        return None


def _restore_terminal(state: list[Any] | None) -> None:
    """Restore the terminal after a viewer that was killed."""
    if state is not None:
        sys.stderr.write(RESTORE)
        sys.stderr.flush()
        termios.tcsetattr(STDIN, termios.TCSANOW, state)
