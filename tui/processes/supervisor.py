"""Starts a peer again after a crash, on machines where no systemd does that: `join --keep-running`.

    python -m tui.processes.supervisor LOG -- COMMAND LINE OF THE PEER

It is the peer's parent, so killing it ends the peer, too; the next start goes on from what is on disk.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Annotated

from dht.errors import HomefiresError
from dht.invite import INVITE_FILE
from peer.schema.events import AlertRaised, CheckpointWritten, EventLine, InviteIssued, PeerStopped
from tui.command_line import Option, words_of
from tui.processes.children import (
    INTERRUPTED,
    ChildExited,
    ChildProcess,
    EventPrinted,
    InterruptReceived,
    Output,
    ProcessGroup,
    error_of,
    python_module,
)
from tui.processes.systemd import FINAL, FIRST_DELAY_S, LONGEST_DELAY_S

MOST_PER_HOUR = 12
HOUR_S = 3600.0
STEADY_S = 600.0
"""After a run of at least this time, delays start with the first one again."""
LOOK_S = 1.0


@dataclass
class Backoff:
    """When a process that ended is started again: with growing delays, and at most `most` times an hour."""

    first_s: float = FIRST_DELAY_S
    longest_s: float = LONGEST_DELAY_S
    most: int = MOST_PER_HOUR
    _failures: int = 0
    _restarts: list[float] = field(default_factory=list)

    def delay_s(self, exit_code: int, ran_s: float, now_s: float) -> float | None:
        """The seconds to wait after such an end; None if the process is not started again."""
        self._restarts = [at for at in self._restarts if now_s - at < HOUR_S]
        if exit_code in (0, INTERRUPTED, *FINAL) or len(self._restarts) >= self.most:
            return None
        self._failures = 1 if ran_s >= STEADY_S else self._failures + 1
        self._restarts.append(now_s)
        return min(self.longest_s, self.first_s * 2.0 ** (self._failures - 1))

    def plan(self, child: ChildProcess, began_s: float, output: Output, *, else_: str = "") -> float | None:
        """The (monotonic) time at which an ended child is started again, or None. Prints that, or `else_` if it is
        not."""
        assert child.exit_code is not None
        now_s = time.monotonic()
        delay_s = self.delay_s(child.exit_code, now_s - began_s, now_s)
        again = else_ if delay_s is None else f"it is started again in {delay_s:.0f} s"
        if again:
            output.say(f"{child.name}: {child.describe_end()}; {again}")
        return None if delay_s is None else now_s + delay_s


def supervise(name: str, argv: Sequence[str], log: Path, output: Output, *, backoff: Backoff | None = None) -> int:
    """Run a child until it ends for good; returns its exit code. Raises the error for its last exit code."""
    backoff = backoff or Backoff()
    with ProcessGroup() as children:
        due_s: float | None = time.monotonic()
        while due_s is not None and not children.interrupts:
            if (left_s := due_s - time.monotonic()) > 0:
                children.next(timeout_s=min(LOOK_S, left_s))
                continue
            began_s = time.monotonic()
            child = follow_child(children, children.start(name, argv, log), output)
            if not children.interrupts:
                due_s = backoff.plan(child, began_s, output)
    return _end(children, child, output)


def follow(name: str, argv: Sequence[str], log: Path, output: Output) -> int:
    """Run one child to its end; returns its exit code. Raises the error for that code."""
    return supervise(name, argv, log, output, backoff=Backoff(most=0))


def _end(children: ProcessGroup, child: ChildProcess, output: Output) -> int:
    output.close()
    if children.interrupts:
        return INTERRUPTED
    if child.exit_code != 0:
        raise error_of(child)
    return 0


def follow_child(
    children: ProcessGroup, child: ChildProcess, output: Output, beside: _Beside | None = None
) -> ChildProcess:
    """Show a child's events until it and its descendants have ended, and the events in `TOLD` of the process
    `beside` it."""
    while child in children.running:
        happened = children.next(timeout_s=LOOK_S)
        output.tick(time.time())
        match happened:
            case EventPrinted(child=teller, line=line) if teller is child or isinstance(line.event, TOLD):
                output.show(line)
            case InterruptReceived() if children.interrupts == 1:
                output.say("leaving; once more to stop at once")
            case ChildExited(child=ended) if ended is child and child.bad_lines:
                output.say(f"lines of the {child.name}'s output that are no events: {child.bad_lines}")
        if beside is not None:
            beside.take(happened)
    return child


def main(words: Sequence[str]) -> int:
    """Keep the peer with this command line running; returns its last exit code."""
    log, separator, *argv = words
    assert separator == "--", words
    try:
        return supervise("peer", argv, Path(log), Output())
    except HomefiresError as error:
        print(f"homefires: {error}", file=sys.stderr)
        return error.exit_code


LOG_FILE = "bootstrap.log"
"""The node's log in the organiser's folder; no peer's folder has a file of this name."""
TOLD = (CheckpointWritten, AlertRaised, PeerStopped)
"""The events of a watcher that are shown; rounds are for dashboards."""


@dataclass(frozen=True, kw_only=True)
class RetentionOptions:
    """Whether checkpoints are kept, and which ones."""

    directory: Annotated[Path | None, Option("keep checkpoints, for homefires export", "DIR", "--keep")] = None
    last: Annotated[int, Option("the newest N of them", "N", "--keep-last", within=(1, inf))] = 3
    every: Annotated[int, Option("and the first of every M rounds (0: none)", "M", "--keep-every", within=(0, inf))] = 0
    organiser: Path | None = None
    """The organiser's folder. Its key admits the watcher to a run that asks for an admission."""

    def argv(self, invite: str) -> list[str]:
        whose = [invite] if self.organiser is None else organiser_words(self.organiser)
        return python_module("peer", "watch", *whose, *words_of(self))


def organiser_words(directory: Path) -> list[str]:
    # The invite is in a file: its token lets in whoever reads it, and everybody on a machine reads command lines.
    return [str(directory / INVITE_FILE), "--organiser", str(directory)]


def serve_and_keep(
    argv: Sequence[str], log: Path, keep: RetentionOptions, output: Output, *, backoff: Backoff | None = None
) -> int:
    """Run the node to its end, and the watcher at the same time; returns the exit code. Raises the node's error,
    and, before anything is started, OSError for a folder that cannot be written to."""
    assert keep.directory is not None
    keep.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ProcessGroup() as children:
        node = children.start("bootstrap", argv, log)
        follow_child(children, node, output, _Beside(children, keep, backoff or Backoff(), output))
    return _end(children, node, output)


class _Beside:
    """The watcher: whether it runs, and when it is started again."""

    def __init__(self, children: ProcessGroup, keep: RetentionOptions, backoff: Backoff, output: Output) -> None:
        self._children, self._keep, self._backoff, self._output = children, keep, backoff, output
        self._invite = ""
        self._watcher: ChildProcess | None = None
        self._due_s: float | None = None
        self._began_s = 0.0

    def take(self, happened: EventPrinted | ChildExited | InterruptReceived | None) -> None:
        """Start the watcher as soon as the node has issued its first invite, and again after it has ended."""
        match happened:
            case EventPrinted(line=EventLine(event=InviteIssued(invite=invite))) if not self._invite:
                self._invite, self._due_s = invite, time.monotonic()
            case ChildExited(child=child) if child is self._watcher:
                gone = "no more checkpoints are kept"
                self._due_s = self._backoff.plan(child, self._began_s, self._output, else_=gone)
        if self._due_s is not None and time.monotonic() >= self._due_s and not self._children.interrupts:
            self._due_s, self._began_s = None, time.monotonic()
            assert self._keep.directory is not None
            log = self._keep.directory / "watch.log"
            self._watcher = self._children.start("checkpoints", self._keep.argv(self._invite), log)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
