"""`homefires watch`: shows a recording, a run directory while its peer works, or a run without taking part in it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dht.errors import BadInput
from dht.invite import INVITE_FILE, MAX_FILE_BYTES, PREFIX, Invite, as_temporary_file, read_text
from dht.invite import parse as parse_invite
from peer.node.control.client import ControlClient, Reply
from peer.node.telemetry.event_tail import EventTail
from peer.schema.events import EventLine, event_files, read_events, read_lines
from tui.command_line import Argument, Command, Option
from tui.commands.attach import POLL_S, SLICE, show_source
from tui.commands.options import INVITE, DisplayOptions, Ui
from tui.folders import data_root, is_at_work
from tui.output.output import open_output
from tui.output.viewer import VIEWER_CODES
from tui.processes.children import Output, error_of, python_module
from tui.processes.supervisor import LOG_FILE, follow, organiser_words
from tui.sources.live import LiveSource
from tui.sources.replay import RecordingSource
from tui.sources.source import EventSource
from tui.swarm.snapshot import SwarmState
from tui.terminal import choose_ui

if TYPE_CHECKING:
    from tui.dashboard.app import ExitReason


@dataclass(frozen=True, kw_only=True)
class WatchCommand(Command):
    what: Annotated[str, Argument(f"events, the folder of a peer or node, or an invite: {INVITE}", "FILE|DIR|INVITE")]
    live: Annotated[bool, Option("follow a file that is still being written")] = False
    viewer: Annotated[bool, Option("see `tui.output.viewer`", hidden=True)] = False
    """Set when a demo starts this process. The demo may be asked to stop, and the exit code tells how the dashboard
    was closed."""
    ui: Ui = "auto"
    look: DisplayOptions = field(default_factory=DisplayOptions)

    def run(self) -> int:
        ui = choose_ui(self.ui)
        output = open_output("plain" if ui == "tui" else ui, sys.stdout, sys.stderr)
        if ui != "tui":
            return watch_in_lines(self, output)
        outcome = watch_in_dashboard(self, self.look, output)
        return VIEWER_CODES[outcome] if self.viewer else 0

    @property
    def is_run(self) -> bool:
        """Whether `what` means a run, which this machine may not take part in."""
        return self.what.startswith(PREFIX) or self._is_organisers or self._is_invite_file

    @property
    def _is_organisers(self) -> bool:
        return all(os.path.isfile(Path(self.what) / name) for name in (INVITE_FILE, LOG_FILE))

    @property
    def _is_invite_file(self) -> bool:
        if not os.path.isfile(self.what):
            return False
        with open(self.what, "rb") as file:
            return file.read(MAX_FILE_BYTES).lstrip().startswith(PREFIX.encode())

    @contextmanager
    def open(self) -> Iterator[tuple[Invite, list[str]]]:
        """The invite of such a run, and the command line of a process that watches it within the block. Raises
        BadInvite."""
        if self._is_organisers:
            folder = Path(self.what)
            # The organiser's own key lets a watcher in, also where the invite is over.
            invite = parse_invite(read_text(str(folder / INVITE_FILE)), float("-inf"))
            yield invite, python_module("peer", "watch", *organiser_words(folder))
            return
        text = read_text(self.what)
        invite = parse_invite(text, time.time())
        with as_temporary_file(text) as path:
            yield invite, python_module("peer", "watch", path)

    @property
    def path(self) -> Path:
        """The file or folder. Raises BadInput if it does not exist."""
        path = Path(self.what)
        if not path.exists():
            raise BadInput(f"{self.what} is no file, no folder and no invite; name one of them")
        return path


def watch_in_lines(watch: WatchCommand, output: Output) -> int:
    if watch.is_run:
        with watch.open() as (_, argv):
            return follow("watch", argv, _new_log(), output)
    found = False
    try:
        for line in _lines(watch):
            found = found or line is not None
            if line is not None:
                output.show(line)
            output.tick(line.t if line is not None else time.time())
    finally:
        output.close()
    if not found:
        raise _no_events(watch)
    return 0


def watch_in_dashboard(watch: WatchCommand, look: DisplayOptions, output: Output) -> ExitReason:
    """Show the dashboard until it is closed; returns how. `output` shows the search for a run. Raises the error of a
    child process that watches."""
    if not watch.is_run:
        return show_source(_feed_of(watch), look)
    from tui.sources.child import ChildSource

    with watch.open() as (invite, argv):
        output.say(f"looking for {invite.run}")
        with closing(ChildSource(f"run {invite.run}, watching", argv, _new_log())) as feed:
            feed.wait_until_started()
            outcome: ExitReason = "ended" if feed.ended else show_source(feed, look)
    if feed.ended and feed.child.exit_code != 0:
        raise error_of(feed.child)
    return outcome


def _feed_of(watch: WatchCommand) -> EventSource:
    path = watch.path
    if watch.viewer:
        return DemoSource(path)
    if path.is_dir():
        if not is_at_work(path) and not event_files(path) and not any(path.glob("*/events.jsonl")):
            raise _no_events(watch)
        return LiveSource(path)
    return LiveSource(path) if watch.live else RecordingSource(path, plays=True)


def _no_events(watch: WatchCommand) -> BadInput:
    return BadInput(f"{watch.what} holds no events; name a file that a peer or a demo has written, or its folder")


def _lines(watch: WatchCommand) -> Iterator[EventLine | None]:
    """The events that were written there, and for a running peer or a followed file also later ones; None while
    there is none."""
    path = watch.path
    if not path.is_dir():
        return _followed(path) if watch.live else (line for line in read_lines(path) if line is not None)
    if is_at_work(path):
        return ControlClient(path).events()
    return read_events(path)


def _followed(path: Path) -> Iterator[EventLine | None]:
    """The events of a file, and later ones until an interrupt; None while there is none."""
    with closing(EventTail(path)) as tail:
        while True:
            lines = tail.take(SLICE)
            yield from (line for line in lines if line is not None)
            if not lines:
                yield None
                time.sleep(POLL_S)


def _new_log() -> Path:
    """The log of the child process that watches a run. It is kept until the next watch, since an error may name it."""
    log = data_root() / "watch.log"
    log.unlink(missing_ok=True)
    return log


class DemoControl:
    """Commands for a demo: it can be stopped from its dashboard, and its peers are commanded one by one."""

    takes = frozenset({"status", "leave"})

    def request(self, cmd: str, **fields: Any) -> Reply:
        """Whether a demo supports this command; a request to stop is passed on by the exit code."""
        if cmd in self.takes:
            return Reply(ok=True)
        return Reply(ok=False, error=f"a demo has several peers; for one of them: homefires {cmd} --dir DIR/peer-1")


class DemoSource(LiveSource):
    """The events of a demo, until its launcher ends. If the launcher is gone, this process ends, too."""

    title = "the demo"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.control = DemoControl()
        self._launcher = os.getppid()

    def advance(self, now_s: float) -> SwarmState:
        swarm = super().advance(now_s)
        if os.getppid() != self._launcher:  # killed: the terminal is the shell's again
            self.ended = self.ended or "the demo is gone"
            signal.raise_signal(signal.SIGTERM)
        return swarm
