"""Commands to a peer of this machine: sent to a running peer, or kept for the next start of one that does not run.

A peer that is down may be started at any moment, by a service that waits before it tries again or by the next login. A
person who has paused it, or changed its limits, must not find it training all the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from dht.errors import BadInput, DirectoryBusy, Unreachable
from dht.invite import INVITE_FILE
from peer.node.control.client import ControlClient, Reply, name_of, note_of
from peer.schema.byte_text import format_bytes
from tui.command_line import Argument, Option
from tui.commands.options import PeerCommand, PeersCommand
from tui.commands.run_end import end_lines
from tui.folders import frozen_process, is_at_work, is_peers, peer_folders, quoted, unnote_folder
from tui.processes.children import python_module
from tui.processes.one_shot import answer
from tui.processes.systemd import UserUnits, unit_name
from tui.text.event_text import clock

LEFT_S = 120.0
"""The time in which a peer that was told to leave must have ended."""
LOOK_S = 0.2
KEEP_S = 60.0
"""The time in which a small file must have been written, on a machine that may be busy."""
SAID = {
    "pause": "pauses: what it has made of round {next} is given, no more steps are made; resume with: homefires resume",
    "resume": "trains again",
    "finish": "completes its part of round {next}, then pauses; resume with: homefires resume",
}
"""What a command means once a running peer has obeyed it, for people."""
KEPT = {
    "pause": "it starts paused, until: homefires resume",
    "resume": "it trains when it starts",
    "finish": "it completes its part of a round when it starts, then pauses, until: homefires resume",
}
"""What a command means for a peer that does not run."""


@dataclass(frozen=True, kw_only=True)
class PauseCommand(PeersCommand):
    order: ClassVar = "pause"

    def run(self) -> int:
        return self.tell(lambda folder: command(folder, self.order))


class ResumeCommand(PauseCommand):
    order = "resume"


@dataclass(frozen=True, kw_only=True)
class FinishCommand(PeerCommand):
    order: ClassVar = "finish"

    def run(self) -> int:
        print(command(self.find(), self.order))
        return 0


@dataclass(frozen=True, kw_only=True)
class LeaveCommand(PeerCommand):
    forget: Annotated[
        bool, Option("also remove what only this peer has outside its folder: tokens, a pretrained model")
    ] = False

    def run(self) -> int:
        folder = require_peers(self.find())
        if not self.forget or is_at_work(folder):
            print(command(folder, "leave"))
        if self.forget:
            print(*forget(folder, [each for each in peer_folders() if each != folder.resolve()]), sep="\n")
        return 0


@dataclass(frozen=True, kw_only=True)
class SnoozeCommand(PeersCommand):
    hours: Annotated[float, Argument("how long", "HOURS")] = 1.0

    def run(self) -> int:
        return self.tell(lambda folder: snooze(folder, self.hours, time.time()))


def command(directory: Path, cmd: str) -> str:
    """Give a command to the peer of a run directory. Returns one line on what happens now. Raises Unreachable."""
    _require_rounds_left(directory)
    if cmd == "leave" and not is_at_work(directory):
        raise Unreachable(f"{not_running(directory)}; {after_leaving(directory)}")
    reply = order(directory, cmd)
    if cmd == "leave":
        return f"{name_of(reply)} leaves the run; {after_leaving(directory)}"
    if is_kept(reply):
        return f"{not_running(directory)}; {KEPT[cmd]}"
    round = int(reply.fields.get("round") or 0)
    return _noted(f"{name_of(reply)} {SAID[cmd].format(next=round + 1)}", reply)


def forget(directory: Path, others: Sequence[Path]) -> list[str]:
    """Once the peer has ended, remove its data outside of this folder. Returns lines about that. Raises Unreachable,
    DirectoryBusy."""
    late = Unreachable(f"the peer in {directory} did not end within {LEFT_S:.0f} s; say it again when it has")
    until = time.monotonic() + LEFT_S
    while is_at_work(directory):
        if time.monotonic() > until:
            raise late
        time.sleep(LOOK_S)
    argv = python_module("peer.node.store.elsewhere", str(directory), *map(str, others))
    gone = json.loads(answer("removal", argv, LEFT_S, late=late))
    unnote_folder(directory)
    lines = [f"removed {path}, {format_bytes(size)}" for path, size in gone.items()] or ["nothing of it was elsewhere"]
    hub = "but for what huggingface.co gave, in its own cache"
    return [*lines, f"delete {quoted(directory)}, and nothing is left of it here, {hub}"]


def snooze(directory: Path, hours: float, now: float) -> str:
    """Pause the peer for `hours`. Returns one line about it. Raises BadInput and Unreachable."""
    if not 0 < hours < float("inf"):
        raise BadInput(f"HOURS is {hours:g}; give how many hours the peer shall pause, as in: homefires snooze 3")
    _require_rounds_left(directory)
    minutes = max(1, round(60 * hours))
    reply = order(directory, "snooze", minutes=minutes)
    until = clock(now + 60 * minutes, now)
    if is_kept(reply):
        return f"{not_running(directory)}; should it start before {until}, it rests until then, or: homefires resume"
    said = f"{name_of(reply)} is snoozed until {until}: what it has made is given; sooner with: homefires resume"
    return _noted(said, reply)


def order(directory: Path, cmd: str, **fields: Any) -> Reply:
    """The answer of the peer, or of the child that keeps the command for its next start. Raises BadInput,
    Unreachable, DiskFull."""
    if not is_at_work(directory):
        return _keep(directory, cmd, fields)
    if (process := frozen_process(directory / "run" / "lock")) is not None:
        still = f"the peer in {directory} takes no commands: its process {process} was told to stand still"
        raise Unreachable(f"{still}; it goes on with: kill -CONT {process}")
    try:
        return ControlClient(directory).require(cmd, **fields)
    except Unreachable as error:
        raise Unreachable(f"{_starts_or_ends(directory)} ({error})") from error


def require_peers(directory: Path) -> Path:
    """The same folder. Raises Unreachable for one in which no peer ever was, such as a misspelt one."""
    if not is_at_work(directory) and not is_peers(directory):
        raise Unreachable(f"{not_running(directory)}, and none ever has; name the folder of one with --dir")
    return directory


def is_kept(reply: Reply) -> bool:
    """Whether no peer runs and the command was kept for its next start."""
    return reply.fields.get("kept") is True


def not_running(directory: Path) -> str:
    """The beginning of a line about a peer that does not run."""
    return f"no peer runs in {directory}"


def after_leaving(directory: Path) -> str:
    """What follows after a peer has left, and how to change that."""
    if again := _service_words(directory):
        return again
    where = quoted(directory.absolute())
    return f"come back with: homefires join {quoted(directory.absolute() / INVITE_FILE)} --dir {where}"


def _service_words(directory: Path) -> str:
    """That a service starts the peer again, and how to keep it from that; empty without one."""
    unit = unit_name(directory)
    if unit not in UserUnits().names():
        return ""
    again = f"its service starts it again at the next login or boot, or now with: systemctl --user start {unit}"
    return f"{again}; keep it from that with: homefires service remove --dir {quoted(directory)}"


def _require_rounds_left(directory: Path) -> None:
    """Raises Unreachable for a peer that has ended with its run: it has nothing to pause, and nothing to come back
    to."""
    if not is_at_work(directory) and (end := end_lines(directory)):
        said = (f"{not_running(directory)}: its run is finished", *end, _service_words(directory))
        raise Unreachable("; ".join(filter(None, said)))


def _keep(directory: Path, cmd: str, fields: Mapping[str, Any]) -> Reply:
    """Keep a command for the next start. A child process does it, with the checks of a running peer, and locks the
    folder meanwhile."""
    require_peers(directory)
    argv = python_module("peer.node.control.offline", str(directory), json.dumps({"cmd": cmd, **fields}))
    late = Unreachable(f"{directory} could not be written to within {KEEP_S:.0f} s; try again")
    try:
        return Reply(ok=True, fields=json.loads(answer("command", argv, KEEP_S, late=late)))
    except DirectoryBusy as error:  # since we looked
        raise Unreachable(_starts_or_ends(directory)) from error


def _starts_or_ends(directory: Path) -> str:
    return f"the peer in {directory} takes no commands just now, as when it starts or ends; try again in some seconds"


def _noted(said: str, reply: Reply) -> str:
    return f"{said}; {note}" if (note := note_of(reply)) else said
