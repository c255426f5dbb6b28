"""`homefires identity`: a copy of a peer's or an organiser's key that a passphrase opens.

The work is done by `python -m dht.key_files`, in a child that asks for the passphrase on the terminal.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dht.errors import BadInput
from tui.commands.options import Commands, add_command, add_debug, add_directory, directory


def add_to(commands: Commands) -> None:
    """Add it."""
    parser = add_command(commands, "identity", _show, "show, save or bring back the key of a peer of this machine")
    add_directory(parser)
    actions = parser.add_subparsers(metavar="export|import")
    for name, summary in (
        ("export", "write the key to a new file that a passphrase opens"),
        ("import", "put the key of such a file into a folder that has none"),
    ):
        action = actions.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        action.add_argument("file", type=Path, metavar="FILE")
        # Suppressed: a default of its own would take the place of a --dir that stands before the action.
        action.add_argument("--dir", type=Path, metavar="DIR", default=argparse.SUPPRESS, help="the folder of the key")
        action.set_defaults(run=_keep, action=name)
        add_debug(action, default=argparse.SUPPRESS)


def _show(options: argparse.Namespace) -> int:
    from tui.commands.join import run_keyfile

    return run_keyfile("show", "--dir", str(directory(options)))


def _keep(options: argparse.Namespace) -> int:
    from tui.commands.join import run_keyfile

    if options.action == "import" and options.dir is None:
        raise BadInput("--dir is missing: name the folder into which the key goes, which must have none")
    return run_keyfile(options.action, str(options.file), "--dir", str(directory(options)))
