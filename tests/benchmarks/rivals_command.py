"""`python -m tests.benchmarks papers` and `rivals`: beside what papers printed, and beside other ways to train."""

from __future__ import annotations

import argparse
import json

from tests.benchmarks import published
from tests.benchmarks.compared import compare
from tests.benchmarks.rivals_report import describe
from tui.command_line import add_options, read_options
from tui.simulation.plan_options import SwarmOptions
from tui.simulation.simulate import scenario_options


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add both."""
    commands.add_parser("papers", help="the figures of papers beside ours; some seconds").set_defaults(run=_papers)
    summary = "gossip and delayed Nesterov beside rounds: how fast, and how far, of 2 to 64 peers"
    parser = commands.add_parser("rivals", help=summary)
    add_options(parser, SwarmOptions)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_rivals)


def _papers(options: argparse.Namespace) -> int:
    print(*published.lines(), sep="\n")
    return 0


def _rivals(options: argparse.Namespace) -> int:
    found = compare(scenario_options(read_options(SwarmOptions, vars(options))))
    print(json.dumps(found.plain()) if options.json else describe(found), end="\n" if options.json else "")
    return 0
