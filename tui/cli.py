"""The command line. Parse first; import torch-free but heavy things (pydantic) only for a command that runs.

Only this module prints errors: one line that says what, which value and what to do. `--debug` adds the traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from dht.errors import BadInput, HomefiresError

UI_CHOICES = ("auto", "plain", "json", "none")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code (see `dht.errors`)."""
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
        # Whoever read our output is gone: nothing is left to say, not even at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
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
    _add_status(commands)
    _add_export(commands)
    _add_audit(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "demo", _demo, "train a small model with several peers on this machine")
    parser.add_argument("--peers", type=int, default=3, metavar="N", help="how many peers, 1 to 16 (default 3)")
    parser.add_argument("--rounds", type=int, metavar="R", help="rounds to make (default: the spec's)")
    parser.add_argument("--seed", type=int, metavar="S", help="seed of the initial parameters and the data order")
    _add_spec_options(parser, "--spec")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="keep everything in this new folder")
    _add_ui(parser)


def _add_bootstrap(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "bootstrap", _bootstrap, "start a run: the node that newcomers dial first")
    _add_spec_options(parser, "spec")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where its keys lie (default: by run, below your data)")
    _add_addresses(parser, "--listen", "listen on this multiaddr (default: all interfaces, a free port); repeatable")
    _add_addresses(parser, "--announce", "tell others to dial this multiaddr; repeatable")
    _add_ui(parser)


def _add_join(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "join", _join, "take part in the run of an invite")
    parser.add_argument("invite", metavar="INVITE", help="the text that begins with hf1:")
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="where the peer lives (default: by run, below your data)"
    )
    parser.add_argument("--name", default="", help="what the others call your peer (default: the end of its id)")
    parser.add_argument("--device", default="", metavar="D", help="auto, cpu, cuda, cuda:1 or mps (default auto)")
    _add_addresses(parser, "--listen", "listen on this multiaddr (default: all interfaces, a free port); repeatable")
    _add_ui(parser)


def _add_status(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "status", _status, "say what a peer of this machine does")
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="the peer's folder (default: the run that reported last)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_export(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "export", _export, "write the model of a peer's folder for plain transformers")
    parser.add_argument("dir", type=Path, metavar="DIR", help="the folder of a peer, stopped or at work")
    parser.add_argument("--to", type=Path, metavar="OUT", help="new folder (default: DIR/export-round-N)")


def _add_audit(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _add_command(commands, "audit", _audit, "check every vote, digest and weight of a peer's folder")
    parser.add_argument("dir", type=Path, metavar="DIR", help="the folder of a peer, stopped or at work")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_command(
    commands: argparse._SubParsersAction[Parser], name: str, run: Callable[[argparse.Namespace], int], summary: str
) -> Parser:
    parser = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    parser.set_defaults(run=run)
    _add_debug(parser, default=argparse.SUPPRESS)
    return parser


def _add_debug(parser: Parser, default: bool | str) -> None:
    parser.add_argument("--debug", action="store_true", default=default, help="show tracebacks")


def _add_ui(parser: Parser) -> None:
    text = "plain lines, JSON event lines, or nothing on stdout (auto: plain)"
    parser.add_argument("--ui", choices=UI_CHOICES, default="auto", help=text)


def _add_spec_options(parser: Parser, name: str) -> None:
    text = "a TOML file, or micro, tiny, gpt2-small, llama-1b"
    if name == "--spec":
        parser.add_argument("--spec", default="tiny", metavar="SPEC", help=f"{text} (default tiny)")
    else:
        parser.add_argument("spec", metavar="SPEC", help=text)
    sets = "change one value of the spec, as in --set round.steps=50; repeatable"
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", dest="sets", help=sets)


def _add_addresses(parser: Parser, flag: str, text: str) -> None:
    parser.add_argument(flag, action="append", default=[], metavar="ADDR", help=text)


def _demo(options: argparse.Namespace) -> int:
    from tui.demo import Demo, run_demo
    from tui.output import open_output

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
    output = open_output(options.ui, sys.stdout, sys.stderr, rounds=spec.run.rounds, terse=True)
    return run_demo(demo, output, spec)


def _bootstrap(options: argparse.Namespace) -> int:
    from tui.choose import choose_spec
    from tui.output import open_output
    from tui.single import run_bootstrap

    spec = choose_spec(options.spec, sets=options.sets)
    output = open_output(options.ui, sys.stdout, sys.stderr)
    return run_bootstrap(spec, output, directory=options.dir, listen=options.listen, announce=options.announce)


def _join(options: argparse.Namespace) -> int:
    from tui.output import open_output
    from tui.single import Join, run_join

    join = Join(
        invite=options.invite,
        directory=options.dir,
        name=options.name,
        device=options.device,
        listen=tuple(options.listen),
    )
    return run_join(join, open_output(options.ui, sys.stdout, sys.stderr))


def _status(options: argparse.Namespace) -> int:
    from tui.places import data_root
    from tui.status import describe_directory, newest_directory

    directory = options.dir or newest_directory(data_root() / "runs")
    print(describe_directory(directory, as_json=options.json))
    return 0


def _export(options: argparse.Namespace) -> int:
    from tui.single import run_export

    print(run_export(options.dir, options.to, debug=options.debug))
    return 0


def _audit(options: argparse.Namespace) -> int:
    from tui.single import run_audit

    run_audit(options.dir, as_json=options.json, debug=options.debug)
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
