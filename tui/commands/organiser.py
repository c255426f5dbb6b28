"""The commands of an organiser beside `bootstrap`: more invites, members, and peers that nobody shall work with.

The work is done by `python -m bootstrap.organiser`, in a child.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dht.errors import BadInput
from tui.commands.options import Commands, Parser, add_addresses, add_command


def add_to(commands: Commands) -> None:
    """Add them."""
    _add_invite(commands)
    _add_members(commands)
    _add_quarantine(commands)


def _add_invite(commands: Commands) -> None:
    parser = add_command(commands, "invite", _invite, "print more invites to a run of yours")
    text = "the organiser's folder (default: the node that was started last)"
    parser.add_argument("dir", type=Path, nargs="?", metavar="DIR", help=text)
    text = "how long they last, such as 12h, 7d or 4w (default: as long as the run)"
    parser.add_argument("--expires", default="", metavar="TIME", help=text)
    text = "N invites for one peer each (default: one for all; needs a run with --admission)"
    parser.add_argument("--invites", type=int, default=0, metavar="N", help=text)
    text = "where else newcomers may dial, with /p2p/…: a peer that runs, while your node is away; repeatable"
    add_addresses(parser, "--also", text)


def _invite(options: argparse.Namespace) -> int:
    words = ["--count", str(options.invites)] + (["--expires", options.expires] if options.expires else [])
    words += [word for address in options.also for word in ("--also", address)]
    return _tell(options, "invite", *words)


def _add_members(commands: Commands) -> None:
    parser = add_command(commands, "members", _members, "say who is admitted to a run of yours, or end an admission")
    parser.add_argument("peer", nargs="?", metavar="PEER", help="its id, 12D3Koo…; none: list all, and until when")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--end", default="", metavar="TEXT", help="let it stay until its admission ends, and why")
    what.add_argument("--renew", action="store_true", help="take that back")
    _add_folder(parser)


def _members(options: argparse.Namespace) -> int:
    if options.peer is None:
        return _tell(options, "members")
    if options.renew:
        return _tell(options, "renew", options.peer)
    if not options.end.strip():
        raise BadInput("--end is missing: say why, its owner reads it; or --renew to take that back")
    return _tell(options, "end", options.peer, "--reason", options.end)


def _add_quarantine(commands: Commands) -> None:
    parser = add_command(commands, "quarantine", _quarantine, "have nobody in a run of yours work with a peer any more")
    parser.add_argument("peer", nargs="?", metavar="PEER", help="its id, 12D3Koo…; none: say who is in quarantine")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--reason", default="", metavar="TEXT", help="why; every peer shows it")
    what.add_argument("--lift", action="store_true", help="let the peer in again")
    _add_folder(parser)


def _quarantine(options: argparse.Namespace) -> int:
    if options.peer is None:
        return _tell(options, "list")
    if options.lift:
        return _tell(options, "lift", options.peer)
    if not options.reason.strip():
        raise BadInput("--reason is missing: say why, every peer shows it; or --lift to let the peer in again")
    return _tell(options, "quarantine", options.peer, "--reason", options.reason)


def _add_folder(parser: Parser) -> None:
    text = "the organiser's folder (default: the node that was started last)"
    parser.add_argument("--dir", type=Path, metavar="DIR", help=text)


def _tell(options: argparse.Namespace, *words: str) -> int:
    from tui.commands.join import run_organiser
    from tui.folders import data_root

    directory = options.dir or _newest(data_root() / "bootstrap")
    print(run_organiser(directory, words, debug=options.debug))
    return 0


def _newest(root: Path) -> Path:
    """The organiser's folder whose node was started last. Raises BadInput if there is none."""
    found = [path for path in root.glob("*/invite") if path.is_file()]
    if not found:
        raise BadInput(f"no run was started on this machine (nothing in {root}); name the organiser's folder")
    return max(found, key=lambda path: path.stat().st_mtime).parent
