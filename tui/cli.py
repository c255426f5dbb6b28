"""The command line. Parse first; import torch-free but heavy things (pydantic) only for a command that runs.

Only this module prints errors: one line that says what, which value and what to do. `--debug` adds the traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dht.errors import BadInput, HomefiresError

if TYPE_CHECKING:
    from tui.attach import Look

UI_CHOICES = ("auto", "tui", "plain", "json", "none")
LINES_UI_CHOICES = ("auto", "plain", "json", "none")
"""Of a command that has no dashboard."""
COMMANDS_TO_A_PEER = {
    "pause": "have the peer of this machine give what it has made and train no more, until it is resumed",
    "resume": "have the paused peer of this machine train again",
    "finish": "have the peer of this machine complete its round, then pause",
    "leave": "have the peer of this machine leave its run",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code (see `dht.errors`)."""
    from tui.terminal import hold_standard_streams, is_gone

    hold_standard_streams()
    with contextlib.suppress(AttributeError):
        # A terminal that lacks a character gets a question mark, not a traceback.
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        exit_code = _run(arguments)
        sys.stdout.flush()
        return exit_code
    except HomefiresError as error:
        return _fail(str(error), error.exit_code, debug="--debug" in arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _end_in_silence()
    except OSError as error:
        if error.errno == errno.EIO and is_gone(sys.stdout):
            return _end_in_silence()
        if error.filename is None:
            return _fail(_describe_bug(error), 1, debug="--debug" in arguments)
        return _fail(_describe_folder(error), BadInput.exit_code, debug="--debug" in arguments)
    except Exception as error:  # the outermost frame: whatever arrives here is a bug, and is written down
        return _fail(_describe_bug(error), 1, debug="--debug" in arguments)


def _run(arguments: list[str]) -> int:
    try:
        options = build_parser().parse_args(arguments)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    command: Callable[[argparse.Namespace], int] = options.run
    return command(options)


class Parser(argparse.ArgumentParser):
    """Mistakes are one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; see {self.prog} --help")


def build_parser() -> Parser:
    """The whole command line. `options.run` is the function of the command."""
    parser = Parser(prog="homefires", description="Train one language model on many home GPUs over the internet.")
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    _add_debug(parser, default=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_bootstrap(commands)
    _add_join(commands)
    _add_watch(commands)
    _add_attach(commands)
    _add_status(commands)
    for name, summary in COMMANDS_TO_A_PEER.items():
        _add_directory(_add_command(commands, name, partial(_tell_peer, name), summary))
    _add_export(commands)
    _add_audit(commands)
    _add_report(commands)
    _add_plan(commands)
    _add_simulate(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "demo", _demo, "train a small model with several peers on this machine")
    parser.add_argument("--peers", type=int, default=3, metavar="N", help="how many peers, 1 to 16 (default 3)")
    parser.add_argument("--rounds", type=int, metavar="R", help="rounds to make (default: the spec's)")
    parser.add_argument("--seed", type=int, metavar="S", help="seed of the initial parameters and the data order")
    _add_spec_options(parser, "--spec")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="keep everything in this new folder")
    _add_ui(parser)
    _add_look(parser)


def _add_bootstrap(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "bootstrap", _bootstrap, "start a run: the node that newcomers dial first")
    _add_spec_options(parser, "spec")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where its keys lie (default: by run, below your data)")
    _add_addresses(parser, "--listen", "listen on this multiaddr (default: all interfaces, a free port); repeatable")
    _add_addresses(parser, "--announce", "tell others to dial this multiaddr; repeatable")
    _add_ui(parser, LINES_UI_CHOICES)


def _add_join(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "join", _join, "take part in the run of an invite")
    parser.add_argument("invite", metavar="INVITE", help="the text that begins with hf1:")
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="where the peer lives (default: by run, below your data)"
    )
    parser.add_argument("--name", default="", help="what the others call your peer (default: the end of its id)")
    parser.add_argument("--device", default="", metavar="D", help="auto, cpu, cuda, cuda:1 or mps (default auto)")
    for word, what in (("upload", "sends"), ("download", "takes in")):
        text = f"megabits per second that your peer {what} at most (default: no cap)"
        parser.add_argument(f"--{word}", default="", metavar="MBPS", help=text)
    _add_addresses(parser, "--listen", "listen on this multiaddr (default: all interfaces, a free port); repeatable")
    _add_ui(parser)
    _add_look(parser)


def _add_watch(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "watch", _watch, "look at a recording, a peer's folder, or a run from outside")
    parser.add_argument("what", metavar="FILE|DIR|INVITE", help="event lines, a folder of a peer, or an invite")
    parser.add_argument("--live", action="store_true", help="somebody still writes the file: follow it")
    parser.add_argument("--viewer", action="store_true", help=argparse.SUPPRESS)  # see `tui.viewer`
    _add_ui(parser)
    _add_look(parser)


def _add_attach(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "attach", _attach, "show the dashboard of a peer of this machine")
    _add_directory(parser)
    _add_look(parser)


def _add_status(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "status", _status, "say what a peer of this machine does")
    _add_directory(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_export(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "export", _export, "write the model of a peer's folder for plain transformers")
    parser.add_argument("dir", type=Path, metavar="DIR", help="the folder of a peer, stopped or at work")
    parser.add_argument("--to", type=Path, metavar="OUT", help="new folder (default: DIR/export-round-N)")


def _add_audit(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "audit", _audit, "check every vote, digest and weight of a peer's folder")
    parser.add_argument("dir", type=Path, metavar="DIR", help="the folder of a peer, stopped or at work")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_report(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "report", _report, "write one page of HTML about a run")
    text = "the folder of a peer or a demo, a folder of those, or event lines"
    parser.add_argument("source", type=Path, metavar="DIR|FILE", help=text)
    text = "file to write (default: DIR/report.html, or FILE with .html at its end)"
    parser.add_argument("--to", type=Path, metavar="OUT", help=text)


def _add_simulate(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "simulate", _simulate, "simulate a run on peers that one does not have")
    parser.add_argument("spec", nargs="?", default="tiny", metavar="SPEC", help="a TOML file or a name (default tiny)")
    _add_sets(parser)
    text = "how many, or a TOML file of [[peer]] tables (default 4)"
    parser.add_argument("--peers", default="4", metavar="N|FILE", help=text)
    parser.add_argument("--rounds", type=int, default=20, metavar="R", help="rounds to make (default 20)")
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
    text = "sides of a grid of groups, as in 8x8x8 (default: as needed)"
    parser.add_argument("--grid", default="", metavar="SIDES", help=text)
    text = "draw what groups do from runs of one instead of simulating every message"
    parser.add_argument("--aggregate", action="store_true", help=text)
    text = "of a grid, message by message (default: one per core); the outcome is the same"
    parser.add_argument("--processes", type=int, default=0, metavar="N", help=text)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--json", action="store_true", help="print one JSON object")
    what.add_argument("--papers", action="store_true", help="print the figures of papers beside simulated ones")
    text = "write the event lines of all peers there"
    parser.add_argument("--events", type=Path, metavar="FILE", help=text)


def _add_plan(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "plan", _plan, "say what a run will cost on some peers, and how to set it up")
    _add_spec_options(parser, "spec")
    text = "how many, or a TOML file of [[peer]] tables (default: as many as found the run)"
    parser.add_argument("--peers", default="", metavar="N|FILE", help=text)
    for flag, metavar, what in (
        ("--step-s", "S", "seconds of an inner step of the spec as it stands, measured"),
        ("--flops", "F", "FLOP/s that training reaches, as in 2e13"),
        ("--memory", "GB", "of the training device"),
        ("--upload", "MBPS", "megabits per second that each sends at most"),
        ("--download", "MBPS", "megabits per second that each takes in at most"),
    ):
        parser.add_argument(flag, type=float, default=0.0, metavar=metavar, help=f"{what}, of every peer")
    text = "size of the model, where the planner cannot count it"
    parser.add_argument("--parameters", type=int, default=0, metavar="N", help=text)
    text = "how much the quality of tokens counts beside their number: 0 not at all (default 1)"
    parser.add_argument("--quality", type=float, default=1.0, metavar="W", help=text)
    text = "what rounds took on your machines: a peer's folder or events, or what an earlier fit wrote"
    parser.add_argument("--measured", type=Path, metavar="DIR|FILE", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the planned spec, for homefires bootstrap")


def _add_command(
    commands: argparse._SubParsersAction[Parser], name: str, run: Callable[[argparse.Namespace], int], summary: str
) -> Parser:
    parser = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    parser.set_defaults(run=run)
    _add_debug(parser, default=argparse.SUPPRESS)
    return parser


def _add_debug(parser: Parser, default: bool | str) -> None:
    parser.add_argument("--debug", action="store_true", default=default, help="show tracebacks")


def _add_directory(parser: Parser) -> None:
    text = "the peer's folder (default: the run that reported last)"
    parser.add_argument("--dir", type=Path, metavar="DIR", help=text)


def _add_ui(parser: Parser, choices: Sequence[str] = UI_CHOICES) -> None:
    text = "plain lines, JSON event lines, or nothing on stdout (auto: plain)"
    if "tui" in choices:
        text = "a dashboard, plain lines, JSON event lines, or nothing (auto: a dashboard on a terminal, else plain)"
    parser.add_argument("--ui", choices=choices, default="auto", help=text)


def _add_look(parser: Parser) -> None:
    parser.add_argument("--ascii", action="store_true", dest="ascii_only", help="a dashboard of ASCII characters")
    parser.add_argument("--mono", action="store_true", help="a dashboard without colours (as with NO_COLOR)")
    parser.add_argument("--read-only", action="store_true", help="a dashboard that commands nothing")


def _add_spec_options(parser: Parser, name: str) -> None:
    text = "a TOML file, or micro, tiny, gpt2-small, llama-1b"
    if name == "--spec":
        parser.add_argument("--spec", default="tiny", metavar="SPEC", help=f"{text} (default tiny)")
    else:
        parser.add_argument("spec", metavar="SPEC", help=text)
    _add_sets(parser)


def _add_sets(parser: Parser) -> None:
    sets = "change one value of the spec, as in --set round.steps=50; repeatable"
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", dest="sets", help=sets)


def _add_addresses(parser: Parser, flag: str, text: str) -> None:
    parser.add_argument(flag, action="append", default=[], metavar="ADDR", help=text)


def _demo(options: argparse.Namespace) -> int:
    from tui.demo import Demo, run_demo
    from tui.output import open_output
    from tui.terminal import choose_ui

    if not 1 <= options.peers <= 16:
        raise BadInput(f"--peers is {options.peers}; a demo has 1 to 16")
    if options.rounds is not None and options.rounds < 1:
        raise BadInput(f"--rounds is {options.rounds}; a demo makes at least 1")
    demo = Demo(
        peers=options.peers,
        spec=options.spec,
        rounds=options.rounds,
        seed=options.seed,
        sets=tuple(options.sets),
        directory=options.dir,
    )
    spec = demo.choose()
    rounds, flags = spec.run.rounds, _look(options).options()
    output = open_output(choose_ui(options.ui), sys.stdout, sys.stderr, rounds=rounds, terse=True, options=flags)
    return run_demo(demo, output, spec)


def _bootstrap(options: argparse.Namespace) -> int:
    from tui.choose import choose_spec
    from tui.output import open_output
    from tui.single import run_bootstrap

    spec = choose_spec(options.spec, sets=options.sets)
    output = open_output(options.ui, sys.stdout, sys.stderr)
    return run_bootstrap(spec, output, directory=options.dir, listen=options.listen, announce=options.announce)


def _join(options: argparse.Namespace) -> int:
    from tui.attach import join_and_attach
    from tui.output import open_output
    from tui.single import Join, run_join
    from tui.terminal import choose_ui

    join = Join(
        invite=options.invite,
        directory=options.dir,
        name=options.name,
        device=options.device,
        upload=options.upload,
        download=options.download,
        listen=tuple(options.listen),
    )
    ui = choose_ui(options.ui)
    if ui == "tui":
        return join_and_attach(join, _look(options), open_output("plain", sys.stdout, sys.stderr))
    return run_join(join, open_output(ui, sys.stdout, sys.stderr))


def _watch(options: argparse.Namespace) -> int:
    from tui.output import open_output
    from tui.terminal import choose_ui
    from tui.viewer import VIEWER_CODES
    from tui.watch import Watch, watch_in_dashboard, watch_in_lines

    watch = Watch(what=options.what, live=options.live, viewer=options.viewer)
    ui = choose_ui(options.ui)
    output = open_output("plain" if ui == "tui" else ui, sys.stdout, sys.stderr)
    if ui != "tui":
        return watch_in_lines(watch, output)
    outcome = watch_in_dashboard(watch, _look(options), output)
    return VIEWER_CODES[outcome] if watch.viewer else 0


def _attach(options: argparse.Namespace) -> int:
    from tui.attach import attach
    from tui.terminal import require_terminal

    require_terminal()
    print(attach(_directory(options), _look(options)))
    return 0


def _look(options: argparse.Namespace) -> Look:
    from tui.attach import Look

    return Look(read_only=options.read_only, ascii_only=options.ascii_only, mono=options.mono)


def _directory(options: argparse.Namespace) -> Path:
    """The run directory that is meant. Raises BadInput if there is none."""
    from tui.places import data_root
    from tui.status import newest_directory

    return options.dir or newest_directory(data_root() / "runs")


def _tell_peer(cmd: str, options: argparse.Namespace) -> int:
    from tui.control import command

    print(command(_directory(options), cmd))
    return 0


def _status(options: argparse.Namespace) -> int:
    from tui.status import describe_directory

    print(describe_directory(_directory(options), as_json=options.json))
    return 0


def _export(options: argparse.Namespace) -> int:
    from tui.single import run_export

    print(run_export(options.dir, options.to, debug=options.debug))
    return 0


def _audit(options: argparse.Namespace) -> int:
    from tui.single import run_audit

    run_audit(options.dir, as_json=options.json, debug=options.debug)
    return 0


def _report(options: argparse.Namespace) -> int:
    from peer.events import printable
    from tui.report.write import default_target, write_report

    print(printable(write_report(options.source, options.to or default_target(options.source))))
    return 0


def _simulate(options: argparse.Namespace) -> int:
    if options.papers:
        from peer.plan.simulate.published import lines

        print(*lines(), sep="\n")
        return 0
    from tui.simulate import Simulate, run_simulate

    asked = Simulate(
        spec=options.spec, sets=tuple(options.sets), peers=options.peers, rounds=options.rounds,
        preset=options.preset, step_s=options.step_s, spread=options.spread, upload=options.upload,
        download=options.download, churn=options.churn, attackers=options.attackers, skew_s=options.skew,
        seed=options.seed, grid=options.grid, aggregate=options.aggregate, processes=options.processes,
        as_json=options.json, events=options.events,
    )  # fmt: skip
    return run_simulate(asked, sys.stdout)


def _plan(options: argparse.Namespace) -> int:
    from peer.events import printable
    from tui.choose import choose_spec
    from tui.planning import Plan, answer, describe, machine_of, to_json, write

    plan = Plan(
        spec=choose_spec(options.spec, sets=options.sets), peers=options.peers, machine=machine_of(options),
        parameters=options.parameters, quality=options.quality, measured=options.measured,
    )  # fmt: skip
    found = answer(plan)
    print(to_json(found) if options.json else "\n".join(map(printable, describe(found).splitlines())))
    if options.write:
        print(write(found, options.write), file=sys.stderr if options.json else sys.stdout)
    return 0


class _Version(argparse.Action):
    """`--version`, looked up only when asked for: reading package metadata costs as much as all of `--help`."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> NoReturn:
        from importlib.metadata import version

        print(f"homefires {version('homefires')}")
        parser.exit()


def _end_in_silence() -> int:
    """The exit code when whoever read our output is gone: nothing is left to say, not even at interpreter exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _describe_folder(error: OSError) -> str:
    """One line for a folder or file that cannot be used."""
    return f"{error.filename}: {error.strerror}; name another folder with --dir"


def _fail(message: str, exit_code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"homefires: {message}", file=sys.stderr)
    return exit_code


def _describe_bug(error: Exception) -> str:
    """One line for an error that is ours, after its traceback went to a log."""
    from tui.places import data_root

    what = f"{type(error).__name__}: {error}".splitlines()[0]
    log = data_root() / "error.log"
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.write_text(traceback.format_exc())
    except OSError:
        return f"this is a bug: {what}; run it again with --debug"
    return f"this is a bug: {what}; the details are in {log}"
