"""The command line that the training benchmarks have in common."""

from __future__ import annotations

import argparse
from pathlib import Path

from peer.schema.spec import RunSpec
from tui.spec_choice import choose_spec


def add_options(parser: argparse.ArgumentParser, *, out: str, seeds: int) -> None:
    """What to train, with how many peers and seeds, and where the rows lie."""
    parser.add_argument("--spec", default="tiny", help="a shipped spec or a TOML file")
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="TABLE.KEY=VALUE")
    parser.add_argument("--rounds", type=int, help="rounds; all of the spec's by default")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1, seeds + 1)))
    parser.add_argument("--out", type=Path, default=Path(out), help="folder for rows and results")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")


def base_spec(arguments: argparse.Namespace) -> RunSpec:
    """The spec that the options name. SystemExit if nothing says how many rounds it has."""
    fixed = {} if arguments.rounds is None else {"run.rounds": arguments.rounds}
    base = choose_spec(arguments.spec, sets=arguments.sets, fixed=fixed)
    if base.run.rounds == 0:
        raise SystemExit(f"{arguments.spec} has no last round; say how many with --rounds")
    return base
