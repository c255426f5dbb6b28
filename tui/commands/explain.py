"""The command that says what a code means."""

from __future__ import annotations

import argparse
import textwrap

from tui.commands.options import Commands, add_command

WIDTH = 96
"""Characters of a line of prose."""


def add_to(commands: Commands) -> None:
    """Add it."""
    summary = "say what a code means: of a penalty, an alert, a pause, a state or an exit"
    parser = add_command(commands, "explain", _explain, summary)
    parser.add_argument("code", nargs="?", metavar="CODE", help="as it is printed, or an exit code; none lists all")


def _explain(options: argparse.Namespace) -> int:
    from tui.terminal import columns
    from tui.text.codes import explain, list_all

    if options.code is None:
        print(*list_all(), sep="\n")
    else:
        print(*(textwrap.fill(line, columns(WIDTH)) for line in explain(options.code)), sep="\n")
    return 0
