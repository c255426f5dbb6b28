"""The command that collects what a bug report needs."""

from __future__ import annotations

import argparse
from pathlib import Path

from tui.commands.options import Commands, add_command, directory


def add_to(commands: Commands) -> None:
    """Add it."""
    summary = "collect events, logs and versions for a bug report, without keys, addresses or names of this machine"
    parser = add_command(commands, "bundle", _bundle, summary)
    text = "the folder of a peer (default: the run that reported last)"
    parser.add_argument("dir", type=Path, nargs="?", metavar="DIR", help=text)
    text = "the zip file to write (default: here, with the time in its name)"
    parser.add_argument("--to", type=Path, metavar="FILE", help=text)


def _bundle(options: argparse.Namespace) -> int:
    from tui.bundle import write_bundle

    print(write_bundle(directory(options), options.to))
    return 0
