"""Options that several commands share, and how a command is added."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from dht.errors import BadInput, HomefiresError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tui.processes.supervisor import RetentionOptions

UI_CHOICES = ("auto", "tui", "plain", "json", "none")
LINES_UI_CHOICES = ("auto", "plain", "json", "none")
"""Of a command that has no dashboard."""


Request = TypeVar("Request", bound="DataclassInstance")


class Parser(argparse.ArgumentParser):
    """Mistakes are one line and exit code 2. What a command takes is added when it is the one that was typed."""

    fill: Callable[[Parser], None] | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.fill is not None:
            fill, self.fill = self.fill, None
            fill(self)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; see {self.prog} --help")


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
"""To which `add_command` adds."""


def add_command(commands: Commands, name: str, summary: str) -> Parser:
    parser = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    add_debug(parser, default=argparse.SUPPRESS)
    return parser


def add_debug(parser: Parser, default: bool | str) -> None:
    parser.add_argument("--debug", action="store_true", default=default, help="show tracebacks")


def add_device_names(parser: Parser) -> None:
    text = "auto, cpu, cuda, mps, or several GPUs that train as one peer, as in cuda:0,cuda:1 (default auto)"
    parser.add_argument("--devices", default="", metavar="D", help=text)


def add_directory(parser: Parser, *, every: bool = False) -> None:
    """`--dir`: which of the peers of this machine; with `every` also `--all`."""
    where: argparse._ActionsContainer = parser.add_mutually_exclusive_group() if every else parser
    text = "the peer's folder (default: that of the peer that runs, else of the one that reported last)"
    where.add_argument("--dir", type=Path, metavar="DIR", help=text)
    if every:
        text = "every peer of this machine, also those that do not run now"
        where.add_argument("--all", action="store_true", dest="every", help=text)


def add_ui(parser: Parser, choices: Sequence[str] = UI_CHOICES) -> None:
    text = "plain lines, JSON event lines, or nothing on stdout (auto: plain)"
    if "tui" in choices:
        text = "a dashboard, plain lines, JSON event lines, or nothing (auto: a dashboard on a terminal, else plain)"
    parser.add_argument("--ui", choices=choices, default="auto", help=text)


def add_look(parser: Parser) -> None:
    parser.add_argument("--ascii", action="store_true", dest="ascii_only", help="a dashboard of ASCII characters")
    parser.add_argument("--mono", action="store_true", help="a dashboard without colours (as with NO_COLOR)")
    parser.add_argument("--read-only", action="store_true", help="a dashboard that commands nothing")


def add_spec_options(parser: Parser, name: str) -> None:
    """A run spec, and changes of it."""
    text = "a TOML file, or the name of a shipped one, such as micro, tiny, smollm2-135m-code"
    if name == "--spec":
        parser.add_argument("--spec", default="", metavar="SPEC", help=f"{text} (default tiny, on a GPU small)")
    else:
        parser.add_argument("spec", metavar="SPEC", help=text)
    add_sets(parser)


def add_sets(parser: argparse.ArgumentParser) -> None:
    sets = "change one value of the spec, as in --set round.steps=50; repeatable"
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", dest="sets", help=sets)


INVITE = "the text that begins with hf1:, or a file that holds it: what others of this machine shall not see"
"""What an invite is on a command line, which everybody on a machine can read."""


def add_settings(parser: Parser) -> None:
    text = "what you allow your peer, kept from its first start on, as in --set 'schedule=22:00-07:00'; repeatable"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="sets", help=text)


LISTEN = (
    "listen on this multiaddr (default: all interfaces, a free port), repeatable; or none: others reach this machine "
    "through the bootstrap node"
)
"""What a peer's --listen means."""


def add_addresses(parser: Parser, flag: str, text: str) -> None:
    parser.add_argument(flag, action="append", default=[], metavar="ADDR", help=text)


PEER = "dial this peer of the run, too, such as when no address of the invite answers; repeatable"
"""What join's --peer is for."""


def add_machine(parser: Parser) -> None:
    """What every peer of a plan is, where they are only counted; and how large the model is."""
    for flag, metavar, what in (
        ("--step-s", "S", "seconds of an inner step of the spec as it stands, measured"),
        ("--flops", "F", "FLOP/s that training reaches, as in 2e13"),
        ("--memory", "GB", "of the training device"),
        ("--upload", "MBPS", "megabits per second that each sends at most"),
        ("--download", "MBPS", "megabits per second that each takes in at most"),
    ):
        parser.add_argument(flag, type=float, default=0.0, metavar=metavar, help=f"{what}, of every peer")
    text = "plan for a model of so many parameters instead of the spec's"
    parser.add_argument("--parameters", type=int, default=0, metavar="N", help=text)


def add_keep(parser: Parser) -> None:
    """Whether an organiser's node has checkpoints kept, and which."""
    text = "keep checkpoints of the run in this folder; homefires export takes each of them"
    parser.add_argument("--keep", type=Path, metavar="DIR", help=text)
    parser.add_argument("--keep-last", type=int, default=3, metavar="N", help="the newest N of them (default 3)")
    text = "and the first of every M rounds (default: none)"
    parser.add_argument("--keep-every", type=int, default=0, metavar="M", help=text)


def keep(options: argparse.Namespace) -> RetentionOptions | None:
    """What `add_keep` was answered. Raises BadInput."""
    from tui.processes.supervisor import RetentionOptions

    if options.keep is None:
        return None
    if options.keep_last < 1 or options.keep_every < 0:
        raise BadInput(
            f"--keep-last is {options.keep_last} and --keep-every {options.keep_every}; keep at least the last one, "
            "and every so many rounds, or 0"
        )
    return RetentionOptions(directory=options.keep, last=options.keep_last, every=options.keep_every)


@dataclass(frozen=True, kw_only=True)
class DisplayOptions:
    """How a dashboard shall look, and whether it may command."""

    read_only: bool = False
    ascii_only: bool = False
    mono: bool = False

    def options(self) -> list[str]:
        flags = {"--read-only": self.read_only, "--ascii": self.ascii_only, "--mono": self.mono}
        return [flag for flag, wanted in flags.items() if wanted]


def look(options: argparse.Namespace) -> DisplayOptions:
    return asked(DisplayOptions, options)


def asked(kind: type[Request], options: argparse.Namespace, **given: object) -> Request:
    """What a command line asked for, as a dataclass: each field is the option of that name, but those `given`."""
    of_options = {each.name: getattr(options, each.name) for each in fields(kind) if each.name not in given}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in of_options.items()}
    return kind(**values, **given)


def directory(options: argparse.Namespace) -> Path:
    """The folder of the peer that is meant. Raises BadInput if there is none, or if several peers run."""
    from tui.folders import folder_meant

    return options.dir or folder_meant("; or all of them: --all" if "every" in options else "")


def tell_each(options: argparse.Namespace, tell: Callable[[Path], str]) -> int:
    """Print what `tell` says of the peer that is meant, or of each with `--all`, where one that cannot be told keeps
    no other from it: then the exit code is that of the first."""
    from tui.folders import every_folder

    if not getattr(options, "every", False):
        print(tell(directory(options)))
        return 0
    codes = []
    for folder in every_folder():
        try:
            print(tell(folder))
        except HomefiresError as error:
            print(f"homefires: {error}", file=sys.stderr)
            codes.append(error.exit_code)
        except OSError as error:
            print(f"homefires: {error.filename}: {error.strerror}", file=sys.stderr)
            codes.append(BadInput.exit_code)
    return next(iter(codes), 0)
