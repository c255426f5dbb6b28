"""Child processes that do one thing and end: it reads their answer, and turns their failure into one line."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dht.errors import BadInput, HomefiresError
from peer.schema.events import printable
from tui.processes.children import environment, failure_said

GONE_S = 20.0
"""The time in which a child that has closed its output must end."""


def answer(
    what: str, argv: Sequence[str], limit_s: float, *, debug: bool = False, late: HomefiresError | None = None,
    apart: bool = False,
) -> str:  # fmt: skip
    """The output of a child process. Raises the error for its exit code, and `late` if it needs too long.

    With `apart`, the child has a session of its own: Ctrl-C reaches only this process, which then ends the child.
    """
    try:
        told = subprocess.run(
            argv, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s,
            check=False, start_new_session=apart,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        slow = HomefiresError(f"the {what} did not end within {limit_s:.0f} s; run it again with --debug")
        raise late or slow from error
    if debug:
        print(told.stderr, end="", file=sys.stderr)
    if told.returncode != 0:
        raise failure_said(what, told.returncode, told.stderr, limit_s)
    return told.stdout.strip()


def overhear(
    what: str, argv: Sequence[str], limit_s: float, mark: str, *, debug: bool
) -> tuple[str, HomefiresError | None]:
    """The output of a child process, and the error for its exit code. Lines on its stderr that begin with `mark`
    (its progress) are passed on as they come."""
    said: list[str] = []
    with limited(argv, limit_s, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        for line in child.stderr:
            if debug or line.startswith(mark):
                print(printable(line.rstrip("\n")), file=sys.stderr, flush=True)
            said.append(line)
        told = child.stdout.read().strip()  # one line, or few: the pipe holds them
        with suppress(subprocess.TimeoutExpired):  # it is killed then, which is an end of its own
            child.wait(GONE_S)
    failed = child.returncode != 0
    return told, failure_said(what, child.returncode, "".join(said), limit_s) if failed else None


def converse(argv: Sequence[str], limit_s: float, late: str) -> int:
    """Give the terminal to a child process; returns its exit code. The child reports its own errors. Raises BadInput
    with `late` if it needs too long."""
    try:
        return subprocess.run(argv, env=environment(), timeout=limit_s, check=False).returncode
    except subprocess.TimeoutExpired as error:
        raise BadInput(late) from error


@contextmanager
def limited(argv: Sequence[str], limit_s: float, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """A child process whose output is read while it runs; it is killed after `limit_s`, and at the end of the block."""
    with subprocess.Popen(argv, env=environment(), stdin=subprocess.DEVNULL, text=True, **streams) as child:
        watchdog = threading.Timer(limit_s, child.kill)
        watchdog.start()
        try:
            yield child
        finally:
            watchdog.cancel()
            child.kill()
