"""`homefires attach`, and `join` on a terminal: a peer in the background, and a dashboard that can be closed and
reopened.

The dashboard reads the peer's run directory and writes to its control socket; it never disturbs the peer.
"""

from __future__ import annotations

import subprocess
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dht.errors import BadInput, DirectoryBusy, HomefiresError, Unreachable
from dht.invite import parse_for
from peer.node.telemetry.event_tail import EventTail
from peer.schema.events import PeerStarted, PeerStopped, read_lines
from tui.commands.control import after_leaving
from tui.commands.options import DisplayOptions, PeerCommand
from tui.commands.run_end import end_lines
from tui.folders import folder_meant, is_at_work, quoted
from tui.processes.children import INTERRUPTED, ChildProcess, Output, error_of, start_lasting
from tui.sources.live import LiveSource
from tui.terminal import require_terminal

if TYPE_CHECKING:
    from tui.commands.join import JoinCommand
    from tui.dashboard.app import ExitReason
    from tui.sources.source import EventSource

POLL_S = 0.2
SLICE = 500
STOP_S = 30.0
"""The time in which a peer that was asked to leave must have ended."""


@dataclass(frozen=True, kw_only=True)
class AttachCommand(PeerCommand):
    look: DisplayOptions = field(default_factory=DisplayOptions)

    def run(self) -> int:
        require_terminal()
        print(attach(self.find(), self.look))
        return 0


def attach(directory: Path, look: DisplayOptions) -> str:
    """Show the peer of a run directory until the dashboard is closed. Returns a sentence on whether training goes
    on. Raises Unreachable if no peer runs there."""
    if not is_at_work(directory):
        raise Unreachable(f"no peer runs in {directory}; for what one did there: homefires watch {quoted(directory)}")
    outcome = show_peer(directory, look)
    if is_at_work(directory):
        leaving = f"the peer leaves the run; {after_leaving(directory)}"
        return how_to_come_back(directory) if outcome == "detach" else leaving
    return (
        "\n".join(filter(None, (_last_words(directory), *end_lines(directory))))
        or f"the peer has ended without a word; its log is {directory / 'peer.log'}"
    )


def show_peer(directory: Path, look: DisplayOptions) -> ExitReason:
    return show_source(LiveSource(directory), look)


def show_source(source: EventSource, look: DisplayOptions) -> ExitReason:
    from tui.dashboard.app import run_dashboard

    return run_dashboard(source, read_only=look.read_only, ascii_only=look.ascii_only, mono=look.mono)


def join_and_attach(join: JoinCommand, look: DisplayOptions, output: Output) -> int:
    """Start a peer that continues without us, report its start, then show its dashboard. Returns the exit code.
    Raises DirectoryBusy if a peer runs there already, and the error with which the peer failed."""
    directory = join.place().resolve()
    require_free(directory)
    invite = parse_for(directory, join.invite, time.time())
    output.say(f"joining {invite.run}; data in {directory}")
    log = directory / "peer.log"
    join.settle(directory)
    with closing(EventTail(directory / "events.jsonl")) as tail:
        tail.skip_to_end()  # of lives before
        process = start_lasting(join.lasting_argv(directory, log), log)
        try:
            # While the peer starts, which takes longer: an interrupt from then on finds the dashboard.
            import tui.dashboard.app  # noqa: F401

            _follow_start(process, tail, output)
        except KeyboardInterrupt:
            _stop(process)
            output.say("the peer is stopped: its dashboard was not open yet")
            return INTERRUPTED
    try:
        outcome = show_peer(directory, look) if process.poll() is None else "ended"
    except (HomefiresError, RuntimeError, KeyboardInterrupt):
        _let_go(process, directory, output)
        raise
    if outcome == "detach" and is_at_work(directory):  # it is let go before the process has ended
        _let_go(process, directory, output)
        return 0
    return _tell_end(process, directory, log, output)


def require_free(directory: Path) -> None:
    """Raises DirectoryBusy if one of our peers already runs in this directory."""
    if is_at_work(directory):
        raise DirectoryBusy(f"a peer runs in {directory} already; look at it with: homefires attach{_dir(directory)}")


def how_to_come_back(directory: Path) -> str:
    where = _dir(directory)
    return f"training goes on; come back with: homefires attach{where}; stop with: homefires leave{where}"


def _follow_start(process: subprocess.Popen[bytes], tail: EventTail, output: Output) -> None:
    while process.poll() is None:
        for line in tail.take(SLICE):
            if line is None:
                continue
            output.show(line)
            if isinstance(line.event, PeerStarted):
                return
        output.tick(time.time())
        time.sleep(POLL_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end; if it does not, or the person interrupts again, kill it."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait(STOP_S)


def _let_go(process: subprocess.Popen[bytes], directory: Path, output: Output) -> None:
    """Stop waiting for the peer, and tell the person how to find it."""
    process.returncode = 0
    output.say(how_to_come_back(directory))


def _tell_end(process: subprocess.Popen[bytes], directory: Path, log: Path, output: Output) -> int:
    """The exit code of a peer that is ending. Raises the error with which it failed."""
    try:
        code = process.wait(STOP_S)
    except KeyboardInterrupt:
        process.returncode = 0
        output.say(f"the peer is about to end and is not waited for; look with: homefires status{_dir(directory)}")
        return INTERRUPTED
    except subprocess.TimeoutExpired as error:
        again = f"homefires attach{_dir(directory)}"
        raise HomefiresError(f"the peer was asked to leave and is still there; look with: {again}") from error
    if code != 0:
        raise error_of(ChildProcess(name="peer", log=log, process=process, exit_code=code))
    for line in (_last_words(directory), *end_lines(directory)):
        output.say(line)
    return 0


def _last_words(directory: Path) -> str:
    """Why the peer of a directory stopped; empty if it has not."""
    last = None
    for line in read_lines(directory / "events.jsonl"):
        last = line.event if line is not None else last
    return f"the peer has stopped: {last.why}" if isinstance(last, PeerStopped) else ""


def _dir(directory: Path) -> str:
    """` --dir DIR`, or nothing if commands find this directory by themselves."""
    with suppress(BadInput):
        if folder_meant().resolve() == directory.resolve():
            return ""
    return f" --dir {quoted(directory)}"
