"""The commands about what a volunteer allows the peer of this machine."""

from __future__ import annotations

import argparse
import time

from tui.commands.options import Commands, add_command, add_directory, directory, tell_each


def add_to(commands: Commands) -> None:
    """Add them."""
    _add_set(commands)
    _add_snooze(commands)


def _add_set(commands: Commands) -> None:
    summary = "show or change what you allow your peer: hours, heat, traffic, disk and memory"
    parser = add_command(commands, "set", _set, summary)
    text = "give a setting a value; without any, all are shown with what they mean"
    parser.add_argument("assignments", nargs="*", metavar="KEY=VALUE", help=text)
    add_directory(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _set(options: argparse.Namespace) -> int:
    from tui.commands.settings import WIDE, change, describe, read_table, to_json
    from tui.terminal import columns

    place = directory(options)
    said = change(place, options.assignments) if options.assignments else []
    if options.json:
        print(to_json(read_table(place)))
    else:
        print(*(said or describe(read_table(place), time.time(), columns(WIDE))), sep="\n")
    return 0


def _add_snooze(commands: Commands) -> None:
    parser = add_command(commands, "snooze", _snooze, "have the peer of this machine pause for some hours")
    parser.add_argument("hours", nargs="?", type=float, default=1.0, metavar="HOURS", help="how long (default 1)")
    add_directory(parser, every=True)


def _snooze(options: argparse.Namespace) -> int:
    from tui.commands.control import snooze

    return tell_each(options, lambda folder: snooze(folder, options.hours, time.time()))
