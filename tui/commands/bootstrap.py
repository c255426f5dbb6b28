"""The command that starts a run: the node that newcomers dial first. `homefires service` takes the same options."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tui.commands.options import (
    LINES_UI_CHOICES,
    Commands,
    Parser,
    add_addresses,
    add_command,
    add_keep,
    add_spec_options,
    add_ui,
    keep,
)

if TYPE_CHECKING:
    from peer.spec import RunSpec
    from tui.processes.supervisor import NodeOptions

STRAY = ("announce", "also", "admission", "invites", "members_for", "expires", "health_port", "keep")
"""What `add_node` adds, as the names of its answers: empty where nobody asked for it."""


def add_to(commands: Commands) -> None:
    """Add it."""
    parser = add_command(commands, "bootstrap", _bootstrap, "start a run: the node that newcomers dial first")
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
    text = "with --admission: how long one lasts before the node renews it (default 30d)"
    parser.add_argument("--members-for", default="", metavar="TIME", help=f"{when}{text}")
    text = "how long the invites last, such as 12h, 7d or 4w (default: as long as the run)"
    parser.add_argument("--expires", default="", metavar="TIME", help=f"{when}{text}")
    text = "serve a health page and metrics on this port of loopback (default: none)"
    parser.add_argument("--health-port", type=int, default=0, metavar="PORT", help=f"{when}{text}")
    add_keep(parser)


def node_options(options: argparse.Namespace) -> NodeOptions:
    """What `add_node` was answered."""
    from tui.processes.supervisor import NodeOptions

    return NodeOptions(
        listen=options.listen, announce=options.announce, also=options.also, invites=options.invites,
        expires=options.expires, members_for=options.members_for, health_port=options.health_port,
    )  # fmt: skip


def node_spec(name_or_path: str, options: argparse.Namespace) -> RunSpec:
    """The run that is meant. Raises BadSpec, BadInput."""
    from tui.commands.spec_choice import choose_spec

    fixed = {"admission.policy": "invited"} if options.admission else None
    return choose_spec(name_or_path, sets=options.sets, fixed=fixed)


def _bootstrap(options: argparse.Namespace) -> int:
    from tui.commands.join import run_bootstrap
    from tui.output.output import open_output

    spec = node_spec(options.spec, options)
    output = open_output(options.ui, sys.stdout, sys.stderr)
    return run_bootstrap(spec, output, node_options(options), directory=options.dir, keep=keep(options))
