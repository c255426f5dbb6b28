"""Where a dashboard is shown, and where lines are."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.testing.child_process import HANG_S
from tests.tui.terminals import ESCAPE
from tui.terminal import GatedStream, decide, is_gone

ROOT = Path(__file__).parents[2]
GOOD = {"TERM": "xterm-256color"}


class Stream(io.StringIO):
    """A terminal, or not."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


YES, NO = Stream(True), Stream(False)
CLOSED = Stream(True)
CLOSED.close()


@pytest.mark.parametrize(
    ("environ", "stdin", "stdout", "stderr", "auto", "fault"),
    [
        (GOOD, YES, YES, YES, "tui", ""),
        (GOOD, YES, NO, YES, "plain", ""),
        (GOOD, NO, YES, YES, "plain", "stdin is not a terminal"),
        (GOOD, None, YES, YES, "plain", "stdin is not a terminal"),
        (GOOD, CLOSED, YES, YES, "plain", "stdin is not a terminal"),
        (GOOD, YES, YES, NO, "plain", "stderr is not a terminal"),
        (GOOD, YES, YES, None, "plain", "stderr is not a terminal"),
        ({"TERM": "dumb"}, YES, YES, YES, "plain", "TERM is 'dumb'"),
        ({}, YES, YES, YES, "plain", "TERM is ''"),
        ({**GOOD, "CI": "true"}, YES, YES, YES, "plain", ""),
        ({**GOOD, "CI": ""}, YES, YES, YES, "tui", ""),
    ],
)
def test_a_dashboard_is_for_a_person_at_a_terminal(
    environ: dict[str, str], stdin: Stream | None, stdout: Stream, stderr: Stream | None, auto: str, fault: str
) -> None:
    """Who asks for it gets it wherever it can be drawn, and else one line that says why not."""
    assert decide("auto", environ, stdin, stdout, stderr) == auto
    if not fault:
        assert decide("tui", environ, stdin, stdout, stderr) == "tui"
        return
    with pytest.raises(BadInput, match=fault):
        decide("tui", environ, stdin, stdout, stderr)


@pytest.mark.parametrize("ui", ["plain", "json", "none"])
def test_lines_are_written_wherever_they_are_asked_for(ui: str) -> None:
    assert decide(ui, {}, None, YES, None) == ui


def test_a_tap_that_is_shut_lets_nothing_through() -> None:
    inner = io.StringIO()
    tap = GatedStream(inner)
    print("one", file=tap)
    tap.is_open = False
    print("two", file=tap, flush=True)
    tap.is_open = True
    print("three", file=tap)
    assert inner.getvalue() == "one\nthree\n"


@pytest.mark.outside
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["status --dir /nowhere", "watch tests/tui/recordings/demo.jsonl", "--help"])
def test_streams_that_are_closed_are_no_bug(closed: str, command: str) -> None:
    """Whatever goes to them is gone; exit codes are as ever, and what is left of the output is what it was."""
    line = f"{sys.executable} -m tui {command} {closed}"
    environment = os.environ | {"TERM": "dumb"}
    done = subprocess.run(line, shell=True, cwd=ROOT, env=environment, capture_output=True, timeout=HANG_S, check=False)
    assert done.returncode == (2 if "nowhere" in command else 0), done.stderr
    assert ESCAPE not in done.stdout + done.stderr
    assert b"Traceback" not in done.stderr
    assert b"bug" not in done.stderr


def test_a_terminal_that_was_closed_is_gone() -> None:
    """And a file is none."""
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as stream:
        assert not is_gone(stream)
        os.close(ours)
        assert is_gone(stream)
    with open(os.devnull, "w") as file:
        assert not is_gone(file)
    assert not is_gone(io.StringIO())
