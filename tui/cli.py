"""The command line. Of all commands it imports only the one that was typed.

Only this module prints errors: one line that says what happened, which value and what to do. `--debug` adds the
traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from dht.errors import BadInput, DiskFull, HomefiresError
from tui.command_line import Command, Parser, add_options, read_options

DOES = "Train one language model on many home GPUs over the internet."
GREETING = f"""{DOES}

  homefires demo         trains a small model with several peers on this machine, in two minutes
  homefires join INVITE  takes part in the run of somebody who gave you an invite

All commands: homefires --help"""
COMMANDS = {
    "demo": ("demo", "train a small model with several peers on this machine"),
    "join": ("join", "take part in the run of an invite"),
    "watch": ("watch", "show a recording, a peer's folder, or a run in which you take no part"),
    "attach": ("attach", "open the dashboard of a peer on this machine"),
    "new": ("new", "write the spec of a run: answer five questions"),
    "bootstrap": ("organiser", "start a run: the node that newcomers dial first"),
    "status": ("status", "show what this machine's peer does, what it contributed, and whether it will be in time"),
    "pause": ("control", "pause this machine's peer: it contributes what it has and stops training until resumed"),
    "resume": ("control", "let this machine's paused peer train again"),
    "finish": ("control", "let this machine's peer complete its round, then pause it"),
    "leave": ("control", "let this machine's peer leave its run and end"),
    "export": ("artifacts", "write the model of a peer's folder for plain transformers or peft"),
    "chat": ("artifacts", "talk to the model of a peer's folder, a checkpoint or an export"),
    "audit": ("artifacts", "check every vote, digest and weight of a peer's folder"),
    "report": ("artifacts", "write one page of HTML about a run"),
    "set": ("settings", "show or change what you allow your peer: hours, heat, traffic, disk and memory"),
    "snooze": ("control", "pause this machine's peer for some hours"),
    "devices": ("doctor", "list the devices of this machine that can train, by their names for --devices"),
    "doctor": ("doctor", "check whether this machine can take part, and say what to do if it cannot"),
    "explain": ("status", "explain a code: of a penalty, an alert, a pause, a state or an exit"),
    "events": ("artifacts", "write the figures of a run for another program, such as TensorBoard"),
    "credit": ("artifacts", "show what each peer has contributed to a run, from the certificates of its chain"),
    "bundle": ("artifacts", "collect events, logs and versions for a bug report, without keys, addresses and names"),
    "service": ("", "let systemd run a peer from login or boot on"),
    "service install": ("service", "write a unit for a peer, or for an organiser's node, and start it"),
    "service status": ("service", "show the state of the installed services"),
    "service remove": ("service", "stop a service and remove its unit"),
    "identity": ("artifacts", "show, export or import the key of a peer on this machine"),
    "identity export": ("artifacts", "write the key to a new file, encrypted with a passphrase"),
    "identity import": ("artifacts", "read the key of such a file into a folder that has none"),
    "invite": ("organiser", "print more invites to your run"),
    "cluster": ("", "let friends train a part of your peer's copy of the model"),
    "cluster invite": ("organiser", "print the line with which friends join your cluster"),
    "members": ("organiser", "list who is admitted to your run, or end an admission"),
    "quarantine": ("organiser", "exclude a peer from your run at once"),
    "restart-run": ("organiser", "let the remaining voters go on after your run has lost its quorum"),
    "plan": ("plan", "forecast what a run costs on some peers, and how to set it up"),
    "simulate": ("plan", "simulate a run before it starts; homes that cannot hold the model form clusters"),
    "place": ("plan", "show which peer would hold which stage of a model that is cut over several peers"),
}  # fmt: skip
"""Each command's module in `tui.commands`, and what the command does. Without a module, the command only has
subcommands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (see `dht.errors`)."""
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
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # a question, and the terminal's ^C behind it, stand on the line of the next prompt
        return 130
    except BrokenPipeError:
        return _end_in_silence()
    except Exception as error:  # the outermost frame
        if isinstance(error, OSError) and error.errno == errno.EIO and is_gone(sys.stdout):
            return _end_in_silence()
        message, exit_code = _explain(error)
        if "--debug" in arguments:
            traceback.print_exc()
        print(f"homefires: {message}", file=sys.stderr)
        return exit_code


def _run(arguments: list[str]) -> int:
    if not arguments:
        print(GREETING)
        return 0
    if arguments == ["help"]:
        arguments = ["--help"]
    if arguments == ["--version"]:
        from importlib.metadata import version  # reading it costs as much as all of --help

        print(f"homefires {version('homefires')}")
        return 0
    try:
        command = parse(arguments)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    return command.run()


def parse(arguments: Sequence[str]) -> Command:
    """The command of a command line. Raises BadInput, and SystemExit after help was printed."""
    said = vars(build_parser().parse_args(arguments))
    return read_options(_imported(said["command"]), said)


def build_parser() -> Parser:
    """The parser of the whole command line. Its result `command` is the name of the command."""
    parser = Parser(prog="homefires", description=DOES)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    _add_debug(parser, default=False)
    groups = {"": parser.add_subparsers(metavar="COMMAND", required=True)}
    for name, (module, summary) in COMMANDS.items():
        group, _, last = name.rpartition(" ")
        added = groups[group].add_parser(last, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        _add_debug(added, default=argparse.SUPPRESS)
        actions = [other.removeprefix(f"{name} ") for other in COMMANDS if other.startswith(f"{name} ")]
        if actions:
            groups[name] = added.add_subparsers(metavar="|".join(actions), required=not module)
        if module:
            added.set_defaults(command=name)
            added.fill = partial(_fill, name)
    return parser


def _add_debug(parser: Parser, default: bool | str) -> None:
    parser.add_argument("--debug", action="store_true", default=default, help="show tracebacks")


def _fill(name: str, parser: Parser) -> None:
    """Add a command's options. Only its module knows them, which is imported when the command is used."""
    add_options(parser, _imported(name))


def _imported(name: str) -> type[Command]:
    """The class of a command: that of `service install` is `ServiceInstallCommand`."""
    module = import_module(f"tui.commands.{COMMANDS[name][0]}")
    found: type[Command] = getattr(module, f"{''.join(filter(str.isalpha, name.title()))}Command")
    return found


def _end_in_silence() -> int:
    """The exit code after the reader of our output has gone. Nothing more is printed, not even at interpreter exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _explain(error: Exception) -> tuple[str, int]:
    """Returns (one line, exit code). An error that no person can act on is reported as a bug."""
    match error:
        case HomefiresError():
            return str(error), error.exit_code
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            where = f"{error.filename}: " if error.filename else ""
            return f"{where}the disk is full; make room, or write to another disk", DiskFull.exit_code
        case OSError() if error.filename is not None:
            what_to_do = "see who may use it, or name another file or folder (--dir)"
            return f"{error.filename}: {error.strerror}; {what_to_do}", BadInput.exit_code
    return _describe_bug(error), 1


def _describe_bug(error: Exception) -> str:
    """One line about an error of ours; its traceback is written to a log."""
    from tui.folders import ERROR_LOG, data_root

    what = f"{type(error).__name__}: {error}".splitlines()[0]
    log = data_root() / ERROR_LOG
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.write_text(traceback.format_exc())
    except OSError:
        return f"this is a bug: {what}; run it again with --debug"
    return f"this is a bug: {what}; the details are in {log}"
