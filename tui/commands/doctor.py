"""`homefires doctor`: a child process examines the machine, and each result is shown as it comes. Also `homefires
devices`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any, TextIO

from dht.errors import BadInvite
from dht.invite import as_temporary_file, parse, read_text
from peer.schema.byte_text import format_bytes
from peer.schema.events import printable
from tui.command_line import Argument, Command, Option
from tui.commands.options import INVITE, Devices
from tui.folders import default_directory
from tui.processes.children import failure_said, python_module, repeated
from tui.processes.one_shot import answer, limited
from tui.terminal import columns

LIMIT_S = 300.0
"""The time limit. An examination needs seconds; with a slow line, dead addresses and a large model it needs some
minutes."""
WIDTH = 100
"""The maximal length of a line in cells."""
MARKS = 8
"""The columns of a status and a space."""
NAMES = 17


@dataclass(frozen=True, kw_only=True)
class DoctorCommand(Command):
    invite: Annotated[str, Argument(f"{INVITE} (default: that of --dir)", "INVITE")] = ""
    directory: Annotated[
        Path | None, Option("the peer's folder, which need not exist (default: one per run)", "DIR", "--dir")
    ] = None
    devices: Devices = ""
    listen: Annotated[tuple[str, ...], Option("as for join; repeatable", "ADDR")] = ()
    sets: Annotated[
        tuple[str, ...], Option("a setting as for join, such as data_path=FOLDER", "KEY=VALUE", "--set")
    ] = ()
    as_json: Annotated[bool, Option("print one JSON object per check, the verdict last", flag="--json")] = False

    def run(self) -> int:
        asked = replace(self, invite=read_text(self.invite) if self.invite else "")
        return run_doctor(asked, sys.stdout)

    def argv(self, invite_file: str) -> list[str]:
        """The command line of the child process. An invalid invite is left to the child to report."""
        words = [invite_file] if self.invite else []
        place = self.directory
        if self.invite and place is None:
            with contextlib.suppress(BadInvite):
                invite = parse(self.invite, float("-inf"))  # its peer may have taken part before it was over
                place = default_directory("runs", invite.run, invite.spec_hash)
        words += ["--dir", str(place)] if place else []
        words += ["--set", f"settings.devices={self.devices}"] if self.devices else []
        words += [part for word in self.sets for part in ("--set", f"settings.{word}")]
        return python_module("peer", "doctor", *words, *repeated("--listen", self.listen))


def run_doctor(asked: DoctorCommand, stream: TextIO) -> int:
    """Show every check as soon as it is done. Returns 0, or the exit code of Unfit if a check failed. Raises the
    child's error if it could not finish."""
    with tempfile.TemporaryFile("w+", errors="replace") as log, as_temporary_file(asked.invite) as invite_file:
        argv, noise = asked.argv(invite_file), None if asked.debug else log
        with limited(argv, LIMIT_S, stdout=subprocess.PIPE, stderr=noise) as child:
            assert child.stdout is not None
            is_finished = _show(child.stdout, stream, as_json=asked.as_json)
            code = child.wait()
        if is_finished:
            return code
        log.seek(0)
        raise failure_said("examination", code, log.read(), LIMIT_S)


def _show(lines: IO[str], stream: TextIO, *, as_json: bool) -> bool:
    failed, finished = 0, False
    for line in lines:
        if (told := _object(line)) is None:
            continue  # what a library prints
        failed += told.get("status") == "FAIL"
        finished = finished or "verdict" in told
        text = line.strip() if as_json else "\n".join(_words(told, failed))
        print(text, file=stream, flush=True)
    return finished


def _object(line: str) -> dict[str, Any] | None:
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _words(told: dict[str, Any], failed: int) -> list[str]:
    """The lines of a check, with its fix below, or of the verdict."""
    if "verdict" in told:
        conclusion = f"{failed} of these must be mended before this machine can take part"
        if not failed:
            conclusion = "nothing keeps this machine from taking part"
        return ["", *_wrapped(conclusion), *_wrapped(f"verdict: {told['verdict']['sentence']}")]
    head = f"{told['status']:<{MARKS}}{told['check']:<{NAMES}}"
    fix = [f"fix: {told['fix']}"] if told["fix"] else []
    room = max(20, columns(WIDTH) - len(head))
    first, *more = _wrapped(told["found"], room)
    below = [*more, *(line for text in fix for line in _wrapped(text, room))]
    return [head + first, *(" " * len(head) + line for line in below)]


def _wrapped(text: str, room: int = 0) -> list[str]:
    width = room or columns(WIDTH)
    return textwrap.wrap(printable(text), width, break_long_words=False, break_on_hyphens=False) or [""]


class DevicesCommand(Command):
    def run(self) -> int:
        print(list_devices())
        return 0


def list_devices() -> str:
    """One line per device: its name for `--devices`, the hardware, its memory. A child process lists them, since
    that loads torch."""
    told = answer("examination", python_module("peer.tools.doctor.kernel_probe", "list"), LIMIT_S)
    return "\n".join(printable(_device(row)) for row in json.loads(told.splitlines()[-1])["devices"])


def _device(row: dict[str, Any]) -> str:
    total, free = row["total_bytes"], row["free_bytes"]
    memory = f", {format_bytes(total)}, {format_bytes(free)} of it free" if total else ""
    return f"{row['device']:<8}{row['name']}{memory}"
