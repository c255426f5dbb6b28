"""`homefires bootstrap`: a run's first node, which newcomers dial. And what its organiser does besides: more invites,
members, peers that nobody shall work with; and the line with which friends train a stage of a peer's copy.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from dht.atomic_files import write_atomic
from dht.errors import BadInput, RunMismatch
from peer.link.cluster_invite import issue_in
from peer.spec import RunSpec, dump, load
from tui.commands.options import (
    LINES_UI_CHOICES,
    Parser,
    add_addresses,
    add_command,
    add_keep,
    add_spec_options,
    add_ui,
    asked,
    keep,
)
from tui.folders import data_root, default_directory, folder_meant, namesakes
from tui.output.output import open_output
from tui.processes.children import Output, python_module
from tui.processes.supervisor import LOG_FILE, NodeOptions, RetentionOptions, follow, serve_and_keep
from tui.processes.tools import answer
from tui.spec_choice import choose_spec

DESCRIBE_S = 120.0
"""Loading torch and laying out the model takes no longer, or something is wrong."""
STRAY = ("announce", "also", "admission", "invites", "founder", "members_for", "expires", "health_port", "keep")
"""What `add_node` adds, as the names of its answers: empty where nobody asked for it."""


def add_bootstrap(parser: Parser) -> None:
    parser.set_defaults(run=_bootstrap)
    add_spec_options(parser, "spec")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where its keys lie (default: by run, below your data)")
    text = "listen on this multiaddr (default: all interfaces, a free port, always the same); repeatable"
    add_addresses(parser, "--listen", text)
    add_node(parser)
    add_ui(parser, LINES_UI_CHOICES)


def add_node(parser: Parser, when: str = "") -> None:
    """What is asked of a node, but where it lives and listens; `when` goes before each help text."""
    add_addresses(parser, "--announce", f"{when}tell others to dial this multiaddr; repeatable")
    text = "where else newcomers may dial, with /p2p/…: another node or a peer; repeatable"
    add_addresses(parser, "--also", f"{when}{text}")
    text = "take those peers alone whom the node admits for an invite (admission.policy of the spec)"
    parser.add_argument("--admission", action="store_true", help=f"{when}{text}")
    text = "with --admission: print N invites for one peer each, not one for all"
    parser.add_argument("--invites", type=int, default=0, metavar="N", help=f"{when}{text}")
    text = "only this peer, by its id, may found the run; as often as run.founders says (default: who comes first)"
    parser.add_argument("--founder", action="append", default=[], metavar="PEER", help=f"{when}{text}")
    text = "with --admission: how long one lasts before the node renews it (default 30d)"
    parser.add_argument("--members-for", default="", metavar="TIME", help=f"{when}{text}")
    text = "how long the invites last, such as 12h, 7d or 4w (default: as long as the run)"
    parser.add_argument("--expires", default="", metavar="TIME", help=f"{when}{text}")
    text = "serve a health page and metrics on this port of loopback (default: none)"
    parser.add_argument("--health-port", type=int, default=0, metavar="PORT", help=f"{when}{text}")
    add_keep(parser)


def _bootstrap(options: argparse.Namespace) -> int:
    spec = node_spec(options.spec, options)
    output = open_output(options.ui, sys.stdout, sys.stderr)
    return run_bootstrap(spec, output, node_options(options), directory=options.dir, keep=keep(options))


def node_options(options: argparse.Namespace) -> NodeOptions:
    return asked(NodeOptions, options)


def node_spec(name_or_path: str, options: argparse.Namespace) -> RunSpec:
    """The run that is meant. Raises BadSpec, BadInput."""
    fixed = {"admission.policy": "invited"} if options.admission else None
    return choose_spec(name_or_path, sets=options.sets, fixed=fixed)


def run_bootstrap(
    spec: RunSpec, output: Output, options: NodeOptions, *, directory: Path | None, keep: RetentionOptions | None = None
) -> int:
    """Serve the run until interrupted, and keep checkpoints of it if `keep` says where.

    Raises RunMismatch if the directory belongs to another run, or another run of this name to this organiser; DiskFull.
    """
    directory = place_node(directory, spec)
    path = claim_directory(directory, spec)
    output.say(describe_model(path))
    argv = node_argv(path, options)
    output.say(f"serving {spec.run.name}; data in {directory}; Ctrl-C stops")
    log = directory / LOG_FILE
    if keep is None:
        return follow("bootstrap", argv, log, output)
    if spec.admission.policy != "open":
        keep = dataclasses.replace(keep, organiser=directory)
    return serve_and_keep(argv, log, keep, output)


def node_argv(path: Path, options: NodeOptions) -> list[str]:
    """The command line of the node whose folder holds the spec at `path`."""
    return python_module("bootstrap", str(path), "--dir", str(path.parent), *options.words())


def check_node(path: Path, options: NodeOptions) -> str:
    """Raises the error that the node would end with for these options. The words by which people know its organiser."""
    return answer("check", [*node_argv(path, options), "--check"], DESCRIBE_S)


def place_node(directory: Path | None, spec: RunSpec) -> Path:
    """Where the node of a run lives. Raises RunMismatch where nobody has named a folder, and the first one of this run
    would stand beside that of another run of its name: an option was forgotten, and nobody would notice.
    """
    mine = directory or default_directory("bootstrap", spec.run.name, spec.digest())
    others = [] if directory or mine.exists() else namesakes(mine)
    if others:
        raise RunMismatch(
            f"{others[0]} is of a run called {spec.run.name} already, and with these options this would be another "
            "one: give the --admission and --set of that time, or name that folder's spec.toml; to start another run, "
            "name a new folder with --dir"
        )
    return mine


def claim_directory(directory: Path, spec: RunSpec) -> Path:
    """The folder of a bootstrap node, with the spec in it, whose path is returned. Raises RunMismatch, DiskFull."""
    path = directory / "spec.toml"
    if path.exists() and load(str(path)).digest() != spec.digest():
        raise RunMismatch(f"{directory} holds another run; name a new folder with --dir")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, dump(spec).encode())
    return path


def describe_model(path: Path) -> str:
    """What the run's model is and needs, built once to see that it can be. Raises BadInput with the child's one line.

    A child, since it loads torch. An organiser must hear of a mistake before volunteers do.
    """
    return answer("description", python_module("peer", "describe", str(path)), DESCRIBE_S)


def add_invite(parser: Parser) -> None:
    parser.set_defaults(run=_invite)
    text = "the organiser's folder (default: the node that was started last)"
    parser.add_argument("dir", type=Path, nargs="?", metavar="DIR", help=text)
    text = "how long they last, such as 12h, 7d or 4w (default: as long as the run)"
    parser.add_argument("--expires", default="", metavar="TIME", help=text)
    text = "N invites for one peer each (default: one for all; needs a run with --admission)"
    parser.add_argument("--invites", type=int, default=0, metavar="N", help=text)
    text = "where else newcomers may dial, with /p2p/…: a peer that runs, while your node is away; repeatable"
    add_addresses(parser, "--also", text)


def _invite(options: argparse.Namespace) -> int:
    from bootstrap.organiser import more_invites

    print(more_invites(options.dir or _newest(), expires=options.expires, count=options.invites, also=options.also))
    return 0


def add_members(parser: Parser) -> None:
    parser.set_defaults(run=_members)
    parser.add_argument("peer", nargs="?", metavar="PEER", help="its id, 12D3Koo…; none: list all, and until when")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--end", default="", metavar="TEXT", help="let it stay until its admission ends, and why")
    what.add_argument("--renew", action="store_true", help="take that back")
    _add_folder(parser)


def _members(options: argparse.Namespace) -> int:
    from bootstrap.organiser import end_admission, list_members, renew_admission

    directory = options.dir or _newest()
    if options.peer is None:
        print(list_members(directory))
    elif options.renew:
        print(renew_admission(directory, options.peer))
    elif options.end.strip():
        print(end_admission(directory, options.peer, options.end))
    else:
        raise BadInput("--end is missing: say why, its owner reads it; or --renew to take that back")
    return 0


def add_quarantine(parser: Parser) -> None:
    parser.set_defaults(run=_quarantine)
    parser.add_argument("peer", nargs="?", metavar="PEER", help="its id, 12D3Koo…; none: say who is in quarantine")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--reason", default="", metavar="TEXT", help="why; every peer shows it")
    what.add_argument("--lift", action="store_true", help="let the peer in again")
    _add_folder(parser)


def _quarantine(options: argparse.Namespace) -> int:
    from bootstrap.organiser import keep_out, let_back, list_quarantine

    directory = options.dir or _newest()
    if options.peer is None:
        print(list_quarantine(directory))
    elif options.lift:
        print(let_back(directory, options.peer))
    elif options.reason.strip():
        print(keep_out(directory, options.peer, options.reason))
    else:
        raise BadInput("--reason is missing: say why, every peer shows it; or --lift to let the peer in again")
    return 0


def _add_folder(parser: Parser) -> None:
    text = "the organiser's folder (default: the node that was started last)"
    parser.add_argument("--dir", type=Path, metavar="DIR", help=text)


def _newest(root: Path | None = None) -> Path:
    """The organiser's folder whose node was started last. Raises BadInput if there is none."""
    root = root or data_root() / "bootstrap"
    found = [path for path in root.glob("*/invite") if path.is_file()]
    if not found:
        raise BadInput(f"no run was started on this machine (nothing in {root}); name the organiser's folder")
    return max(found, key=lambda path: path.stat().st_mtime).parent


def add_cluster(parser: Parser) -> None:
    parser.set_defaults(run=_cluster_invite)
    actions = parser.add_subparsers(metavar="invite", required=True)
    action = add_command(actions, "invite", "print the line for friends who would train a stage of your copy")
    text = "the folder of the peer that leads, which may not have begun (default: the peer of this machine)"
    action.add_argument("--dir", type=Path, metavar="DIR", help=text)
    action.set_defaults(run=_cluster_invite)


def _cluster_invite(options: argparse.Namespace) -> int:
    print(issue_in(options.dir or folder_meant()).text())
    return 0
