"""`homefires bootstrap --keep`: beside the node that newcomers dial, a watcher that keeps checkpoints of the run.

Two children: the node knows nothing of models, and the watcher, which checks certificates and loads snapshots, is
started once the node has issued its invite, and again if it fails. The node does not notice it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dht.invite import INVITE_FILE
from peer.events import AlertRaised, CheckpointWritten, EventLine, InviteIssued, PeerStopped
from tui.output.output import Output
from tui.processes.children import (
    INTERRUPTED,
    ChildExited,
    ChildProcess,
    EventPrinted,
    InterruptReceived,
    ProcessGroup,
    error_of,
    python_module,
)
from tui.processes.supervisor import Backoff

LOG_FILE = "bootstrap.log"
"""In the organiser's folder what the node says; no folder of a peer has it."""
LOOK_S = 1.0
TOLD = (CheckpointWritten, AlertRaised, PeerStopped)
"""What is shown of a watcher; rounds are for dashboards."""


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """What the command line of `bootstrap` asked of the node; the node says what is wrong with it."""

    listen: Sequence[str] = ()
    announce: Sequence[str] = ()
    also: Sequence[str] = ()
    """What its invites name besides."""
    invites: int = 0
    """So many, for one peer each; 0: one for all."""
    expires: str = ""
    """How long they last, such as 7d."""
    members_for: str = ""
    """How long an admission does."""
    health_port: int = 0

    def words(self) -> list[str]:
        """The same for `homefires bootstrap` and for `python -m bootstrap`."""
        many = (("--listen", self.listen), ("--announce", self.announce), ("--also", self.also))
        each = [(flag, address) for flag, addresses in many for address in addresses]
        rest = (("--members-for", self.members_for), ("--health-port", self.health_port))
        return _words(each) + self.invite_words() + _words(rest)

    def invite_words(self) -> list[str]:
        """Those of them that `homefires invite` takes, too."""
        return _words((("--invites", self.invites), ("--expires", self.expires)))


def _words(chosen: Iterable[tuple[str, object]]) -> list[str]:
    """Flags with their values, without those that nobody has chosen."""
    return [word for flag, value in chosen if value for word in (flag, str(value))]


@dataclass(frozen=True, kw_only=True)
class RetentionOptions:
    """Where checkpoints are kept, and which: the newest `last`, and the first of `every` so many rounds (0: none)."""

    directory: Path
    last: int
    every: int
    organiser: Path | None = None
    """The organiser's folder, whose key lets the watcher into a run that asks for an admission."""

    def words(self) -> list[str]:
        """What `homefires bootstrap` and the watcher are told."""
        return ["--keep", str(self.directory), "--keep-last", str(self.last), "--keep-every", str(self.every)]

    def argv(self, invite: str) -> list[str]:
        """The command line of the watcher."""
        if self.organiser is None:
            return python_module("peer", "watch", invite, *self.words())
        return python_module("peer", "watch", *organiser_words(self.organiser), *self.words())


def organiser_words(directory: Path) -> list[str]:
    """What has a watcher work in an organiser's name.

    Its invite is in a file: the token in it lets in whoever reads it, and everybody on a machine reads command lines.
    """
    return [str(directory / INVITE_FILE), "--organiser", str(directory)]


def serve_and_keep(
    argv: Sequence[str], log: Path, keep: RetentionOptions, output: Output, *, backoff: Backoff | None = None
) -> int:
    """Run the node to its end, and the watcher beside it; the exit code. Raises what the node failed with, and
    OSError, before anything is started, for a folder that cannot be written to."""
    keep.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ProcessGroup() as children:
        node = children.start("bootstrap", argv, log)
        beside = _Beside(children, keep, backoff or Backoff(), output)
        while node in children.running:
            happened = children.next(timeout_s=LOOK_S)
            output.tick(time.time())
            match happened:
                case EventPrinted(child=child, line=line) if child is node:
                    output.show(line)
                    beside.hear(line)
                case EventPrinted(line=EventLine(event=event) as line) if isinstance(event, TOLD):
                    output.show(line)
                case InterruptReceived() if children.interrupts == 1:
                    output.say("leaving; once more to stop at once")
                case ChildExited(child=child) if child is not node:
                    beside.ended(child)
            beside.start_if_due()
    output.close()
    if children.interrupts:
        return INTERRUPTED
    if node.exit_code != 0:
        raise error_of(node)
    return 0


class _Beside:
    """The watcher: whether it runs, and when it is started again."""

    def __init__(self, children: ProcessGroup, keep: RetentionOptions, backoff: Backoff, output: Output) -> None:
        self._children, self._keep, self._backoff, self._output = children, keep, backoff, output
        self._invite = ""
        self._due_s: float | None = None
        self._began_s = 0.0

    def hear(self, line: EventLine) -> None:
        """An event of the node: with its invite, the first if there are several, the run can be watched."""
        if isinstance(line.event, InviteIssued) and not self._invite:
            self._invite, self._due_s = line.event.invite, time.monotonic()

    def ended(self, child: ChildProcess) -> None:
        """The watcher has ended: by itself, or it is started again."""
        now_s = time.monotonic()
        assert child.exit_code is not None
        delay_s = self._backoff.delay_s(child.exit_code, now_s - self._began_s, now_s)
        again = f"it is started again in {delay_s:.0f} s" if delay_s is not None else "no more checkpoints are kept"
        self._output.say(f"{child.name}: {child.describe_end()}; {again}")
        self._due_s = None if delay_s is None else now_s + delay_s

    def start_if_due(self) -> None:
        """Start it if its time has come and nobody has asked us to stop."""
        if self._due_s is None or time.monotonic() < self._due_s or self._children.interrupts:
            return
        self._due_s, self._began_s = None, time.monotonic()
        log = self._keep.directory / "watch.log"
        self._children.start("checkpoints", self._keep.argv(self._invite), log)
