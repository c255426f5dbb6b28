"""`homefires cluster invite`: the line with which friends train a stage of my cluster."""

from __future__ import annotations

import argparse
from pathlib import Path

from peer.link.cluster_invite import issue_in
from tui.commands.options import Parser, add_command
from tui.folders import folder_meant


def add_cluster(parser: Parser) -> None:
    parser.set_defaults(run=_invite)
    actions = parser.add_subparsers(metavar="invite", required=True)
    action = add_command(actions, "invite", "print the line for friends who would train a stage of your copy")
    text = "the folder of the peer that leads, which may not have begun (default: the peer of this machine)"
    action.add_argument("--dir", type=Path, metavar="DIR", help=text)
    action.set_defaults(run=_invite)


def _invite(options: argparse.Namespace) -> int:
    print(issue_in(options.dir or folder_meant()).text())
    return 0
