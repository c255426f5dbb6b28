"""The events that a child process prints, as a source: a run that is watched without taking part in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from peer.schema.events import EventLine, PeerStarted
from tui.processes.children import ChildExited, ChildProcess, EventPrinted, ProcessGroup
from tui.sources.source import PeerCommands
from tui.swarm.reducer import apply_all
from tui.swarm.snapshot import SwarmState

SLICE = 500
"""The maximal number of events that one `advance` processes."""
STOP_S = 5.0
"""The time in which a watching child must end; it has nothing to finish."""


class ChildSource:
    """The events of a child process, which is started at once: the kernel ends a child with the *thread* that
    started it. Its stderr goes to `log`."""

    me = ""
    control: PeerCommands | None = None
    playback = None

    def __init__(self, title: str, argv: Sequence[str], log: Path) -> None:
        self.title, self.ended = title, ""
        self._children = ProcessGroup(stop_s=STOP_S)
        self.child: ChildProcess = self._children.start("watch", argv, log)
        self._swarm = SwarmState()
        self._lines: list[EventLine | None] = []
        self._bad_lines = 0
        self._is_started = False

    def wait_until_started(self) -> None:
        """Wait until the child has found the run or has ended. It gives up by itself."""
        while not self._is_started and not self.ended:
            self._take(timeout_s=1.0)

    def open(self) -> None:
        """Does nothing: events are shown as they arrive."""

    def advance(self, now_s: float) -> SwarmState:
        """The swarm with everything that the child has printed so far; lines that are not events count as skipped."""
        for _ in range(SLICE):
            if not self._take(timeout_s=0.0):
                break
        bad, self._bad_lines = self.child.bad_lines - self._bad_lines, self.child.bad_lines
        lines, self._lines = [*self._lines, *[None] * bad], []
        if lines:
            self._swarm = apply_all(self._swarm, lines)
        return self._swarm

    def _take(self, timeout_s: float) -> bool:
        happened = self._children.next(timeout_s)
        match happened:
            case EventPrinted(line=line):
                self._lines.append(line)
                self._is_started = self._is_started or isinstance(line.event, PeerStarted)
            case ChildExited(child=child):
                self.ended = f"the watch has ended: {child.describe_end()}"
        return happened is not None

    def time(self, now_s: float) -> float:
        return now_s

    def close(self) -> None:
        """End the child. It is killed after `STOP_S`."""
        self._children.stop(grace_s=STOP_S)
