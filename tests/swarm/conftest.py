"""Real processes on loopback: `homefires` as a person starts it, watched through the events it prints."""

from __future__ import annotations

import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from peer.schema.events import EventLine, parse_line
from peer.testing.child_process import HANG_S, ORPHAN_S, Child, Printed, processes_of

LIGHT = ("inner.sequences=1", "data.eval_sequences=8", "round.steps=10")
"""For runs in which it does not matter what is learned: few steps, small evaluations, a fraction of the processor."""
RESTING = ("min_step_s=0.2",)
"""And peers that leave the processor to others for most of a step: a round of `LIGHT` lasts two seconds."""


def set_words(settings: Sequence[str]) -> list[str]:
    """Of a command line that says them."""
    return [word for setting in settings for word in ("--set", setting)]


class Homefires:
    """One `homefires` command and all it starts. Everything it keeps lies below `directory`.

    `before` are words of a command that starts it somewhere else, such as in another network.
    """

    def __init__(self, directory: Path, *words: str, before: Sequence[str] = ()) -> None:
        self.directory = directory
        self.out: list[str] = []
        self.lines: list[EventLine] = []
        self._queue: queue.SimpleQueue[Printed] = queue.SimpleQueue()
        argv = [*before, sys.executable, "-m", "tui", *words]
        environment = {"TMPDIR": str(directory), "OMP_NUM_THREADS": "1"}
        self._child = Child(argv, directory / "stderr.txt", environment, self._queue.put)
        self.process = self._child.process

    @property
    def err(self) -> str:
        """What it wrote on stderr so far."""
        return self._child.err

    def text(self, timeout_s: float = HANG_S) -> str | None:
        """The next line on stdout; None at its end. Fails after `timeout_s`."""
        try:
            text = self._queue.get(timeout=timeout_s).text
        except queue.Empty:
            pytest.fail(f"silent for {timeout_s:.0f} s; last: {self.out[-3:]}; stderr: {self.err[-800:]}")
        if text is not None:
            self.out.append(text)
        return text

    def wait_for_text(self, part: str, timeout_s: float = HANG_S) -> str:
        """Read on until a line contains `part`."""
        deadline = time.monotonic() + timeout_s
        while (text := self.text(max(0.1, deadline - time.monotonic()))) is not None:
            if part in text:
                return text
        pytest.fail(f"ended without {part!r}; stderr: {self.err[-800:]}")

    def wait_for(self, wanted: Callable[[EventLine], bool], timeout_s: float = HANG_S) -> EventLine:
        """Read on until an event that is `wanted`; for commands with `--ui json`."""
        deadline = time.monotonic() + timeout_s
        while (text := self.text(max(0.1, deadline - time.monotonic()))) is not None:
            line = parse_line(text)
            assert line is not None, text
            self.lines.append(line)
            if wanted(line):
                return line
        pytest.fail(f"ended without the awaited event; stderr: {self.err[-800:]}")

    def finish(self, timeout_s: float = HANG_S) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + timeout_s
        while (text := self.text(max(0.1, deadline - time.monotonic()))) is not None:
            if text.startswith("{") and (line := parse_line(text)) is not None:
                self.lines.append(line)
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def events(self, kind: type, peer: str | None = None) -> list[EventLine]:
        """Events of a type read so far, of one peer or of all."""
        return [line for line in self.lines if isinstance(line.event, kind) and peer in (None, line.peer)]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        """Kill it if it has not ended, and whatever it has left, by pid."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait(ORPHAN_S)
        for process in self.processes():
            process.kill()

    def processes(self, below: Path | None = None) -> list[psutil.Process]:
        """Processes that have a path below this directory on their command line."""
        return processes_of(below or self.directory)


def pid_of(peer_directory: Path) -> int:
    """The process that owns a run directory."""
    return int((peer_directory / "run" / "lock").read_text())


@pytest.fixture
def homefires(tmp_path: Path) -> Iterator[Callable[..., Homefires]]:
    """Start commands; whatever is left of them is killed by pid afterwards."""
    started: list[Homefires] = []

    def start(*words: str, directory: Path | None = None, before: Sequence[str] = ()) -> Homefires:
        started.append(Homefires(directory or tmp_path, *words, before=before))
        return started[-1]

    yield start
    for command in started:
        command.end()
    for process in processes_of(tmp_path):
        process.kill()
