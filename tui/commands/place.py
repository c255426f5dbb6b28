"""The command that says which peer would hold which stage of a model."""

from __future__ import annotations

import argparse
import sys

from tui.commands.options import Commands, add_command, add_machine, add_spec_options


def add_to(commands: Commands) -> None:
    """Add it."""
    summary = "say which peer would hold which stage of a model that is cut over several of them"
    parser = add_command(commands, "place", _place, summary)
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
    from tui.commands.spec_choice import choose_spec
    from tui.simulation.machines import machine_of
    from tui.simulation.place import PlaceOptions, Searching, describe, find, to_json

    asked = PlaceOptions(
        spec=choose_spec(options.spec, sets=options.sets), peers=options.peers, machine=machine_of(options),
        stages=options.stages, pipelines=options.pipelines, parameters=options.parameters,
        preset=options.preset, seed=options.seed,
    )  # fmt: skip
    searching = Searching(lambda text: print(text, file=sys.stderr, flush=True))
    found = find(asked, searching.tell)
    print(to_json(found) if options.json else "\n".join(map(printable, describe(found).splitlines())))
    return 0
