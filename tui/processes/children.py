"""Starts children, reads the events they print, forwards interrupts, and leaves no process behind.

    with ProcessGroup() as children:
        children.start("peer-1", python_module("peer", "join", invite), log)
        while children.running:
            happened = children.next(timeout_s=1.0)

Each child leads a session of its own, so that a Ctrl-C on the terminal reaches only us. The first interrupt asks every
child to stop (SIGTERM), the second ends them at once (SIGKILL), and so does a child that has not ended after `STOP_S`.
What is left of a child's process group after the child itself (its link, its daemon) is killed, too.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

from dht.errors import HomefiresError
from peer.schema.events import EventLine, PeerStopped, parse_line

STOP_S = 20.0
"""The time after which a child that was asked to stop is killed."""

SWEEP_S = 2.0
"""The time in which the descendants of a child that ended may end by themselves."""

INTERRUPTED = 130

CHILD_ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    # A folder called `peer` or `dht` where the person happens to stand must not be imported.
    "PYTHONSAFEPATH": "1",
    # hivemind's default leaves segments in shared memory when a peer is killed.
    "HIVEMIND_MEMORY_SHARING_STRATEGY": "file_descriptor",
}

PARENT = "HOMEFIRES_PARENT"
"""Read by `dht.process`."""

ERROR_MARK = "homefires: "
"""The beginning of the one line of an error, on the stderr of any command of ours."""

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(eq=False)
class ChildProcess:
    """A process of ours that prints event lines. Its stderr goes to `log`."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]
    bad_lines: int = 0
    """The number of lines on its stdout that are not events."""
    stopped: PeerStopped | None = None
    """Its last event, once it has arrived."""
    exit_code: int | None = None
    """The code from `subprocess`: negative for a signal; None while it runs."""
    reader: threading.Thread | None = field(default=None, repr=False)

    def describe_end(self) -> str:
        if self.stopped is not None and self.exit_code is not None and self.exit_code >= 0:
            return self.stopped.why
        if self.exit_code is not None and self.exit_code < 0:
            return f"killed by {signal.Signals(-self.exit_code).name}"
        return f"ended unexpectedly with exit code {self.exit_code}"


@dataclass(frozen=True, kw_only=True)
class EventPrinted:
    child: ChildProcess
    line: EventLine


@dataclass(frozen=True, kw_only=True)
class ChildExited:
    """A child and all its descendants have ended; everything that it printed was handed out before."""

    child: ChildProcess


@dataclass(frozen=True)
class InterruptReceived:
    """A person or the system asks us to stop; the children were asked already."""


class ProcessGroup:
    """A group of child processes with one queue of what happens to them. For use in the main thread."""

    def __init__(self, *, stop_s: float = STOP_S) -> None:
        # SimpleQueue alone may be filled from a signal handler.
        self._inbox: queue.SimpleQueue[EventPrinted | ChildExited | InterruptReceived] = queue.SimpleQueue()
        self._running: list[ChildProcess] = []
        self._stop_s = stop_s
        self._kill_at: float | None = None
        self._handlers: dict[int, signal._HANDLER] = {}
        self.interrupts = 0

    def __enter__(self) -> Self:
        for number in _INTERRUPTS:
            self._handlers[number] = signal.signal(number, lambda *_: self._inbox.put(InterruptReceived()))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.stop(grace_s=self._stop_s if kind is None else SWEEP_S)
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    @property
    def running(self) -> list[ChildProcess]:
        """The children whose end was not handed out yet, in the order of their start."""
        return list(self._running)

    def start(self, name: str, argv: Sequence[str], log: Path) -> ChildProcess:
        """Start `argv`. Its stderr is appended to the file `log`, whose folder is created (0700) if needed."""
        process = _start(argv, log, subprocess.PIPE, environment())
        child = ChildProcess(name=name, log=log, process=process)
        assert process.stdout is not None
        child.reader = threading.Thread(target=self._read, args=(child, process.stdout), daemon=True)
        child.reader.start()
        threading.Thread(target=self._await_end, args=(child,), daemon=True).start()
        self._running.append(child)
        return child

    def next(self, timeout_s: float) -> EventPrinted | ChildExited | InterruptReceived | None:
        """The next happening, or None after `timeout_s`. Kills children that were asked to stop and did not in time."""
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_all()
        try:
            happened = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None
        match happened:
            case InterruptReceived():
                self.interrupts += 1
                if self.interrupts == 1:
                    self.ask_to_stop()
                else:
                    self._kill_all()
            case ChildExited(child=child):
                self._running.remove(child)
            case EventPrinted(child=child, line=EventLine(event=PeerStopped() as event)):
                child.stopped = event
        return happened

    def ask_to_stop(self) -> None:
        """Send SIGTERM to every child; `next` kills those that do not end in time."""
        self._kill_at = self._kill_at or time.monotonic() + self._stop_s
        for child in self._running:
            child.process.terminate()

    def stop(self, grace_s: float) -> None:
        """Ask every child to stop, wait for all, and kill those that still run after `grace_s`."""
        self.ask_to_stop()
        self._kill_at = min(self._kill_at or float("inf"), time.monotonic() + grace_s)
        while self._running:
            self.next(timeout_s=0.1)

    def _kill_all(self) -> None:
        for child in self._running:
            if child.exit_code is None:
                _kill_group(child)

    def _read(self, child: ChildProcess, stdout: BinaryIO) -> None:
        with stdout:
            for raw in stdout:
                try:
                    line = parse_line(raw.decode())
                except ValueError:
                    child.bad_lines += 1
                    continue
                if line is not None:
                    self._inbox.put(EventPrinted(child=child, line=line))

    def _await_end(self, child: ChildProcess) -> None:
        child.exit_code = child.process.wait()
        assert child.reader is not None
        # stdout stays open as long as any descendant holds it.
        child.reader.join(timeout=SWEEP_S)
        _kill_group(child)
        child.reader.join(timeout=SWEEP_S)
        self._inbox.put(ChildExited(child=child))


def error_of(child: ChildProcess) -> HomefiresError:
    """The error for a child's failure: the class in the error tree that has its exit code."""
    why = child.stopped.why if child.stopped is not None else _last_said(child.log)
    if why and (kind := _kind_of(child.exit_code)) is not HomefiresError:
        return kind(why)
    return HomefiresError(f"{child.name}: {child.describe_end()}; its log is {child.log}")


def _last_said(log: Path) -> str:
    """The error line at the end of a log; empty if there is none."""
    said = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return said[-1].removeprefix(ERROR_MARK) if said and said[-1].startswith(ERROR_MARK) else ""


def failure_said(what: str, exit_code: int, stderr: str, limit_s: float | None) -> HomefiresError:
    """The error for a process whose last line on stderr was read, and which was killed after `limit_s`."""
    if exit_code == -signal.SIGKILL and limit_s is not None:
        why = f"it did not end within {limit_s:.0f} s, or the system was short of memory"
        return HomefiresError(f"the {what} was killed: {why}; run it again with --debug")
    kind = _kind_of(exit_code)
    why = (stderr.strip().splitlines() or [f"exit code {exit_code}"])[-1].removeprefix(ERROR_MARK)
    return kind(why if kind is not HomefiresError else f"the {what} failed: {why}; run it again with --debug")


def _kind_of(exit_code: int | None) -> type[HomefiresError]:
    """The class in the error tree that has this exit code; the root for other codes."""
    return next((kind for kind in HomefiresError.__subclasses__() if kind.exit_code == exit_code), HomefiresError)


def start_lasting(argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start `argv` as a process that outlives us. Its only output is its stderr, appended to `log`."""
    own = {name: value for name, value in environment().items() if name != PARENT}
    return _start(argv, log, subprocess.DEVNULL, own)


def _start(argv: Sequence[str], log: Path, stdout: int, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("ab") as stderr:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=env, start_new_session=True
        )


def environment() -> dict[str, str]:
    """The environment of a child that ends with us, even if we end before it can arrange for that with the system."""
    return os.environ | CHILD_ENVIRONMENT | {PARENT: str(os.getpid())}


def python_module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


def repeated(flag: str, values: Iterable[str]) -> list[str]:
    """The flag before each value."""
    return [word for value in values for word in (flag, value)]


def _kill_group(child: ChildProcess) -> None:
    # A group's id is not given to another process while a member lives.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.process.pid, signal.SIGKILL)


class Output:
    """Shows what happens in a swarm while it happens. This class shows nothing: the exit code is the answer."""

    def begin(self, events: Path) -> None:
        """Called at the start: from now on every line is also written to this file."""

    def show(self, line: EventLine) -> None:
        """Show an event."""

    def say(self, text: str) -> None:
        """Show a sentence of the launcher: what was started, how it ended."""

    def tick(self, now_s: float) -> None:
        """Called about once a second with the Unix time."""

    def close(self, *, at_once: bool = False) -> None:
        """Called at the end. With `at_once`, nothing stays on the screen for people to look at."""
