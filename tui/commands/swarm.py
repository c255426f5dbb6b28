"""The commands that take part in a run, or look at one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dht.errors import BadInput
from tui.commands.options import (
    INVITE,
    LISTEN,
    PEER,
    Commands,
    add_addresses,
    add_command,
    add_directory,
    add_look,
    add_settings,
    add_spec_options,
    add_ui,
    directory,
    look,
)


def add_to(commands: Commands) -> None:
    """Add them."""
    _add_demo(commands)
    _add_join(commands)
    _add_watch(commands)
    _add_attach(commands)


def _add_demo(commands: Commands) -> None:
    parser = add_command(commands, "demo", _demo, "train a small model with several peers on this machine")
    parser.add_argument("--peers", type=int, default=3, metavar="N", help="how many peers, 1 to 16 (default 3)")
    parser.add_argument("--rounds", type=int, metavar="R", help="rounds to make (default: the spec's)")
    parser.add_argument("--seed", type=int, metavar="S", help="seed of the initial parameters and the data order")
    add_spec_options(parser, "--spec")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="keep everything in this new folder")
    add_ui(parser)
    add_look(parser)


def _demo(options: argparse.Namespace) -> int:
    from tui.commands.demo import DemoOptions, run_demo
    from tui.output.output import open_output
    from tui.terminal import choose_ui

    if not 1 <= options.peers <= 16:
        raise BadInput(f"--peers is {options.peers}; a demo has 1 to 16")
    if options.rounds is not None and options.rounds < 1:
        raise BadInput(f"--rounds is {options.rounds}; a demo makes at least 1")
    demo = DemoOptions(
        peers=options.peers,
        spec=options.spec,
        rounds=options.rounds,
        seed=options.seed,
        sets=tuple(options.sets),
        directory=options.dir,
    )
    spec = demo.choose()
    rounds, flags = spec.run.rounds, look(options).options()
    output = open_output(choose_ui(options.ui), sys.stdout, sys.stderr, rounds=rounds, terse=True, options=flags)
    return run_demo(demo, output, spec)


def _add_join(commands: Commands) -> None:
    parser = add_command(commands, "join", _join, "take part in the run of an invite")
    parser.add_argument("invite", metavar="INVITE", help=INVITE)
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="where the peer lives (default: by run, below your data)"
    )
    parser.add_argument("--name", default="", help="what the others call your peer (default: the end of its id)")
    parser.add_argument("--device", default="", metavar="D", help="auto, cpu, cuda, cuda:1 or mps (default auto)")
    for word, what in (("upload", "sends"), ("download", "takes in")):
        text = f"megabits per second that your peer {what} at most (default: no cap)"
        parser.add_argument(f"--{word}", default="", metavar="MBPS", help=text)
    add_addresses(parser, "--listen", LISTEN)
    add_addresses(parser, "--peer", PEER)
    add_settings(parser)
    text = "agree to what the run is and takes, without being asked: for services and scripts"
    parser.add_argument("--yes", action="store_true", help=text)
    text = "start the peer again after a crash, later and later (with systemd: homefires service install)"
    parser.add_argument("--keep-running", action="store_true", help=text)
    add_ui(parser)
    add_look(parser)


def _join(options: argparse.Namespace) -> int:
    from dht.invite import read_text
    from tui.commands.attach import join_and_attach, require_free
    from tui.commands.consent import consents
    from tui.commands.join import JoinOptions, run_join
    from tui.commands.settings import keep_for_start, values_for_start
    from tui.output.output import open_output
    from tui.terminal import choose_ui

    join = JoinOptions(
        invite=read_text(options.invite),
        directory=options.dir,
        name=options.name,
        device=options.device,
        upload=options.upload,
        download=options.download,
        listen=tuple(options.listen),
        peers=tuple(options.peer),
        keep_running=options.keep_running,
    )
    words = list(options.sets)
    if join.keep_running:
        words, join = [*join.settings(), *words], join.without_settings()
    ui, settings = choose_ui(options.ui), values_for_start(words)
    if not consents(join, yes=options.yes, stdin=sys.stdin, screen=sys.stderr):
        return 0
    if settings:
        require_free(join.place())  # they are for the peer that is started here
        join.settle(join.place())  # and not for that of another run
        keep_for_start(join.place(), settings)
    if ui == "tui":
        return join_and_attach(join, look(options), open_output("plain", sys.stdout, sys.stderr))
    return run_join(join, open_output(ui, sys.stdout, sys.stderr))


def _add_watch(commands: Commands) -> None:
    parser = add_command(commands, "watch", _watch, "look at a recording, a peer's folder, or a run from outside")
    text = f"event lines, a folder of a peer, the folder of a bootstrap node of yours, or an invite: {INVITE}"
    parser.add_argument("what", metavar="FILE|DIR|INVITE", help=text)
    parser.add_argument("--live", action="store_true", help="somebody still writes the file: follow it")
    parser.add_argument("--viewer", action="store_true", help=argparse.SUPPRESS)  # see `tui.output.viewer`
    add_ui(parser)
    add_look(parser)


def _watch(options: argparse.Namespace) -> int:
    from tui.commands.watch import WatchOptions, watch_in_dashboard, watch_in_lines
    from tui.output.output import open_output
    from tui.output.viewer import VIEWER_CODES
    from tui.terminal import choose_ui

    watch = WatchOptions(what=options.what, live=options.live, viewer=options.viewer)
    ui = choose_ui(options.ui)
    output = open_output("plain" if ui == "tui" else ui, sys.stdout, sys.stderr)
    if ui != "tui":
        return watch_in_lines(watch, output)
    outcome = watch_in_dashboard(watch, look(options), output)
    return VIEWER_CODES[outcome] if watch.viewer else 0


def _add_attach(commands: Commands) -> None:
    parser = add_command(commands, "attach", _attach, "show the dashboard of a peer of this machine")
    add_directory(parser)
    add_look(parser)


def _attach(options: argparse.Namespace) -> int:
    from tui.commands.attach import attach
    from tui.terminal import require_terminal

    require_terminal()
    print(attach(directory(options), look(options)))
    return 0
