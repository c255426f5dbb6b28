"""`homefires plan`, `place` and `simulate`: what a run would cost that nobody has made yet."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tui.commands.options import Parser, add_machine, add_sets, add_spec_options, asked
from tui.spec_choice import choose_spec


def add_plan(parser: Parser) -> None:
    parser.set_defaults(run=_plan)
    add_spec_options(parser, "spec")
    text = "how many, a TOML file of [[peer]] tables, or the folder of a peer of a run (default: as many as found it)"
    parser.add_argument("--peers", default="", metavar="N|FILE|DIR", help=text)
    add_machine(parser)
    text = "compare replicas that span several peers, too, as clusters do"
    parser.add_argument("--spans", action="store_true", help=text)
    text = "how much the quality of tokens counts beside their number: 0 not at all (default 1)"
    parser.add_argument("--quality", type=float, default=1.0, metavar="W", help=text)
    text = "what rounds took on your machines: a peer's folder or events, or what an earlier fit wrote"
    parser.add_argument("--measured", type=Path, metavar="DIR|FILE", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the planned spec, for homefires bootstrap")


def _plan(options: argparse.Namespace) -> int:
    from peer.events import printable
    from tui.simulation.machines import machine_of
    from tui.simulation.plan_page import describe, describe_options
    from tui.simulation.planner import NoPlan, PlanOptions, answer, options_to_json, to_json, write

    spec = choose_spec(options.spec, sets=options.sets, drafts=True)
    plan = asked(PlanOptions, options, spec=spec, machine=machine_of(options))
    found = answer(plan)
    if isinstance(found, NoPlan):
        page = options_to_json(found) if options.json else describe_options(found)
        print("\n".join(map(printable, page.splitlines())))
        raise found.why
    print(to_json(found) if options.json else "\n".join(map(printable, describe(found).splitlines())))
    if options.write:
        print(write(found, options.write), file=sys.stderr if options.json else sys.stdout)
    return 0


def add_place(parser: Parser) -> None:
    parser.set_defaults(run=_place)
    add_spec_options(parser, "spec")
    text = "how many, a TOML file of [[peer]] tables, or a peer's folder (default: as many as found the run)"
    parser.add_argument("--peers", default="", metavar="N|FILE|DIR", help=text)
    text = "a network of known places, such as aws, over which they are spread (default: their own lines)"
    parser.add_argument("--preset", default="", metavar="NAME", help=text)
    add_machine(parser)
    text = "into how many the model is cut (default: as few as memory allows)"
    parser.add_argument("--stages", type=int, default=0, metavar="K", help=text)
    text = "replicas of the model (default: as many as there are peers for, or fewer if these are faster together)"
    parser.add_argument("--pipelines", type=int, default=0, metavar="M", help=text)
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the same seed gives the same placement")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _place(options: argparse.Namespace) -> int:
    from peer.events import printable
    from tui.simulation.machines import machine_of
    from tui.simulation.place import PlaceOptions, Searching, describe, find, to_json

    spec = choose_spec(options.spec, sets=options.sets, drafts=True)
    wanted = asked(PlaceOptions, options, spec=spec, machine=machine_of(options))
    searching = Searching(lambda text: print(text, file=sys.stderr, flush=True))
    found = find(wanted, searching.tell)
    print(to_json(found) if options.json else "\n".join(map(printable, describe(found).splitlines())))
    return 0


def add_simulate(parser: Parser) -> None:
    parser.set_defaults(run=_simulate)
    add_scenario(parser)
    text = "sides of a grid of groups, as in 8x8x8 (default: as needed)"
    parser.add_argument("--grid", default="", metavar="SIDES", help=text)
    text = "draw what most groups do from what a few did, instead of simulating every message"
    parser.add_argument("--aggregate", action="store_true", help=text)
    text = "of a grid, message by message (default: one per core); the outcome is the same"
    parser.add_argument("--processes", type=int, default=0, metavar="N", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    text = "write the event lines of all peers there; of a grid those of one row"
    parser.add_argument("--events", type=Path, metavar="FILE", help=text)


def add_scenario(parser: argparse.ArgumentParser) -> None:
    """Which run, on which peers: what every simulation asks."""
    parser.add_argument("spec", nargs="?", default="tiny", metavar="SPEC", help="a TOML file or a name (default tiny)")
    add_sets(parser)
    text = "how many, or a TOML file of [[peer]] tables (default 4)"
    parser.add_argument("--peers", default="4", metavar="N|FILE", help=text)
    parser.add_argument("--rounds", type=int, metavar="R", help="rounds to make (default: the spec's, else 20)")
    parser.add_argument("--preset", default="", metavar="NAME", help="a network of known places, such as aws")
    text = "seconds of an inner step (default: of a home GPU)"
    parser.add_argument("--step-s", type=float, default=0.0, metavar="S", help=text)
    text = "deviation of the speed of a peer from round to round, as a share (default 0.05)"
    parser.add_argument("--spread", type=float, default=0.05, metavar="X", help=text)
    for word in ("upload", "download"):
        text = f"megabits per second of each peer's {word} (default: no cap)"
        parser.add_argument(f"--{word}", type=float, default=0.0, metavar="MBPS", help=text)
    text = "how peers come and go, per hour: crash=0.1,leave=0.05,join=0.1,back=600; or a file of changes"
    parser.add_argument("--churn", default="", metavar="RATES|FILE", help=text)
    text = "how many attack, and how: times_100=1,nan=1,zeros=1,replay=1"
    parser.add_argument("--attackers", default="", metavar="KINDS", help=text)
    text = "largest error of a clock in seconds (default 0)"
    parser.add_argument("--skew", type=float, default=0.0, metavar="S", help=text)
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the same seed gives the same run")


def _simulate(options: argparse.Namespace) -> int:
    from tui.simulation.simulate import SimulateOptions, run_simulate

    wanted = asked(SimulateOptions, options, skew_s=options.skew, as_json=options.json)
    return run_simulate(wanted, sys.stdout)
