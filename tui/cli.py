"""The command line. Of the commands only the one that was typed is imported.

Only this module prints errors: one line that says what, which value and what to do. `--debug` adds the traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import NoReturn

from dht.errors import BadInput, DiskFull, HomefiresError
from tui.commands.options import Parser, add_command, add_debug

COMMANDS = {
    "demo": ("demo", "train a small model with several peers on this machine"),
    "join": ("join", "take part in the run of an invite"),
    "watch": ("watch", "look at a recording, a peer's folder, or a run from outside"),
    "attach": ("attach", "show the dashboard of a peer of this machine"),
    "new": ("new", "write the spec of a run, by four questions"),
    "bootstrap": ("organiser", "start a run: the node that newcomers dial first"),
    "status": (
        "status",
        "say what a peer of this machine does, what it gave, and whether its part of the round will be in time",
    ),
    "pause": ("control", "have the peer of this machine give what it has made and train no more, until it is resumed"),
    "resume": ("control", "have the paused peer of this machine train again"),
    "finish": ("control", "have the peer of this machine complete its round, then pause"),
    "leave": ("control", "have the peer of this machine leave its run"),
    "export": ("artifacts", "write the model of a peer's folder for plain transformers or peft"),
    "chat": ("artifacts", "talk to the model of a peer's folder, of a checkpoint or of an export"),
    "audit": ("artifacts", "check every vote, digest and weight of a peer's folder"),
    "report": ("artifacts", "write one page of HTML about a run"),
    "set": ("settings", "show or change what you allow your peer: hours, heat, traffic, disk and memory"),
    "snooze": ("control", "have the peer of this machine pause for some hours"),
    "devices": ("doctor", "list what can train on this machine, as --devices calls it"),
    "doctor": ("doctor", "say what keeps this machine from taking part, and what to do"),
    "explain": ("status", "say what a code means: of a penalty, an alert, a pause, a state or an exit"),
    "credit": ("artifacts", "say what each peer has put into a run, from the certificates of its chain"),
    "bundle": (
        "artifacts",
        "collect events, logs and versions for a bug report, without keys, addresses or names of this machine",
    ),
    "service": ("service", "have systemd run a peer from login or boot on"),
    "identity": ("artifacts", "show, save or bring back the key of a peer of this machine"),
    "invite": ("organiser", "print more invites to a run of yours"),
    "cluster": ("organiser", "have friends train a part of your peer's copy of the model"),
    "members": ("organiser", "say who is admitted to a run of yours, or end an admission"),
    "quarantine": ("organiser", "have nobody in a run of yours work with a peer any more"),
    "plan": ("plan", "say what a run will cost on some peers, and how to set it up"),
    "simulate": ("plan", "simulate a run on peers that one does not have"),
    "place": ("plan", "say which peer would hold which stage of a model that is cut over several of them"),
}
"""By name: the module of `tui.commands` that has it, as `add_NAME`, and what it does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code (see `dht.errors`)."""
    from tui.terminal import hold_standard_streams, is_gone

    hold_standard_streams()
    with contextlib.suppress(AttributeError):
        # A terminal that lacks a character gets a question mark, not a traceback.
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        exit_code = _run(arguments)
        sys.stdout.flush()
        return exit_code
    except HomefiresError as error:
        return _fail(str(error), error.exit_code, debug="--debug" in arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _end_in_silence()
    except OSError as error:
        if error.errno == errno.EIO and is_gone(sys.stdout):
            return _end_in_silence()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f"{error.filename}: " if error.filename else ""
            full = f"{where}the disk is full; make room, or write to another disk"
            return _fail(full, DiskFull.exit_code, debug="--debug" in arguments)
        if error.filename is None:
            return _fail(_describe_bug(error), 1, debug="--debug" in arguments)
        said = f"{error.filename}: {error.strerror}; see who may use it, or name another file or folder (--dir)"
        return _fail(said, BadInput.exit_code, debug="--debug" in arguments)
    except Exception as error:  # the outermost frame: whatever arrives here is a bug, and is written down
        return _fail(_describe_bug(error), 1, debug="--debug" in arguments)


def _run(arguments: list[str]) -> int:
    try:
        options = build_parser().parse_args(arguments)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    command: Callable[[argparse.Namespace], int] = options.run
    return command(options)


def build_parser() -> Parser:
    """The whole command line. `options.run` is the function of the command."""
    parser = Parser(prog="homefires", description="Train one language model on many home GPUs over the internet.")
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    add_debug(parser, default=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        add_command(commands, name, summary).fill = partial(_fill, module, name)
    return parser


def _fill(module: str, name: str, parser: Parser) -> None:
    """What the command takes is known to its module, which is imported when it is typed."""
    getattr(import_module(f"tui.commands.{module}"), f"add_{name}")(parser)


class _Version(argparse.Action):
    """`--version`, looked up only when asked for: reading package metadata costs as much as all of `--help`."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> NoReturn:
        from importlib.metadata import version

        print(f"homefires {version('homefires')}")
        parser.exit()


def _end_in_silence() -> int:
    """The exit code when whoever read our output is gone: nothing is left to say, not even at interpreter exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _fail(message: str, exit_code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"homefires: {message}", file=sys.stderr)
    return exit_code


def _describe_bug(error: Exception) -> str:
    """One line for an error that is ours, after its traceback went to a log."""
    from tui.folders import ERROR_LOG, data_root

    what = f"{type(error).__name__}: {error}".splitlines()[0]
    log = data_root() / ERROR_LOG
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.write_text(traceback.format_exc())
    except OSError:
        return f"this is a bug: {what}; run it again with --debug"
    return f"this is a bug: {what}; the details are in {log}"
