"""The commands about a peer of this machine, and about what lies in its folder."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from tui.commands.options import Commands, add_command, add_directory, directory, tell_each

COMMANDS_TO_A_PEER = {
    "pause": "have the peer of this machine give what it has made and train no more, until it is resumed",
    "resume": "have the paused peer of this machine train again",
    "finish": "have the peer of this machine complete its round, then pause",
    "leave": "have the peer of this machine leave its run",
}
OF_ALL = frozenset({"pause", "resume"})
"""Commands that know `--all`."""


def add_to(commands: Commands) -> None:
    """Add them."""
    _add_status(commands)
    for name, summary in COMMANDS_TO_A_PEER.items():
        run = _tell_peers if name in OF_ALL else _tell_peer
        add_directory(add_command(commands, name, partial(run, name), summary), every=name in OF_ALL)
    _add_export(commands)
    _add_audit(commands)
    _add_report(commands)


def _add_status(commands: Commands) -> None:
    summary = "say what a peer of this machine does, what it gave, and whether its part of the round will be in time"
    parser = add_command(commands, "status", _status, summary)
    add_directory(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _status(options: argparse.Namespace) -> int:
    from tui.commands.status import describe_directory

    print(describe_directory(directory(options), as_json=options.json))
    return 0


def _tell_peer(cmd: str, options: argparse.Namespace) -> int:
    from tui.commands.control import command

    print(command(directory(options), cmd))
    return 0


def _tell_peers(cmd: str, options: argparse.Namespace) -> int:
    from tui.commands.control import command

    return tell_each(options, lambda folder: command(folder, cmd))


def _add_export(commands: Commands) -> None:
    parser = add_command(commands, "export", _export, "write the model of a peer's folder for plain transformers")
    parser.add_argument("dir", type=Path, metavar="DIR", help="the folder of a peer, stopped or at work")
    parser.add_argument("--to", type=Path, metavar="OUT", help="new folder (default: DIR/export-round-N)")


def _export(options: argparse.Namespace) -> int:
    from tui.commands.join import run_export

    print(run_export(options.dir, options.to, debug=options.debug))
    return 0


def _add_audit(commands: Commands) -> None:
    parser = add_command(commands, "audit", _audit, "check every vote, digest and weight of a peer's folder")
    parser.add_argument("dir", type=Path, metavar="DIR", help="the folder of a peer, stopped or at work")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _audit(options: argparse.Namespace) -> int:
    from tui.commands.join import run_audit

    run_audit(options.dir, as_json=options.json, debug=options.debug)
    return 0


def _add_report(commands: Commands) -> None:
    parser = add_command(commands, "report", _report, "write one page of HTML about a run")
    text = "the folder of a peer or a demo, a folder of those, or event lines"
    parser.add_argument("source", type=Path, metavar="DIR|FILE", help=text)
    text = "file to write (default: DIR/report.html, or FILE with .html at its end)"
    parser.add_argument("--to", type=Path, metavar="OUT", help=text)


def _report(options: argparse.Namespace) -> int:
    from peer.events import printable
    from tui.report.report import default_target, write_report

    print(printable(write_report(options.source, options.to or default_target(options.source))))
    return 0
