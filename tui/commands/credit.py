"""The command that says what each peer has put into a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from tui.commands.options import Commands, add_command


def add_to(commands: Commands) -> None:
    """Add it."""
    summary = "say what each peer has put into a run, from the certificates of its chain"
    parser = add_command(commands, "credit", _credit, summary)
    parser.add_argument("dir", type=Path, metavar="DIR", help="the folder of a peer, stopped or at work")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _credit(options: argparse.Namespace) -> int:
    from tui.commands.join import ask_child

    print(ask_child("credit", str(options.dir), *(["--json"] if options.json else []), debug=options.debug))
    return 0
