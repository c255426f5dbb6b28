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
from typing import NoReturn

from dht.errors import BadInput, DiskFull, HomefiresError
from tui.commands import (
    artifacts,
    bootstrap,
    credit,
    doctor,
    explain,
    folder,
    identity,
    limits,
    organiser,
    place,
    plan,
    service,
    swarm,
)
from tui.commands.options import Parser, add_debug


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
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _fail(_describe_full_disk(error), DiskFull.exit_code, debug="--debug" in arguments)
        if error.filename is None:
            return _fail(_describe_bug(error), 1, debug="--debug" in arguments)
        return _fail(_describe_file(error), BadInput.exit_code, debug="--debug" in arguments)
    except Exception as error:  # the outermost frame: whatever arrives here is a bug, and is written down
        return _fail(_describe_bug(error), 1, debug="--debug" in arguments)


def _run(arguments: list[str]) -> int:
    try:
        options = build_parser().parse_args(arguments)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    command: Callable[[argparse.Namespace], int] = options.run
    return command(options)


def build_parser() -> Parser:
    """The whole command line. `options.run` is the function of the command."""
    parser = Parser(prog="homefires", description="Train one language model on many home GPUs over the internet.")
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    add_debug(parser, default=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for group in (
        swarm, bootstrap, folder, limits, doctor, explain, credit, artifacts, service, identity, organiser, plan,
        place,
    ):  # fmt: skip
        group.add_to(commands)
    return parser


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


def _describe_file(error: OSError) -> str:
    """One line for a folder or file that cannot be used."""
    return f"{error.filename}: {error.strerror}; see who may use it, or name another file or folder (--dir)"


def _describe_full_disk(error: OSError) -> str:
    """One line for a disk, or an owner's share of it, that is used up."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}the disk is full; make room, or write to another disk"


def _fail(message: str, exit_code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"homefires: {message}", file=sys.stderr)
    return exit_code


def _describe_bug(error: Exception) -> str:
    """One line for an error that is ours, after its traceback went to a log."""
    from tui.folders import ERROR_LOG, data_root

    what = f"{type(error).__name__}: {error}".splitlines()[0]
    log = data_root() / ERROR_LOG
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.write_text(traceback.format_exc())
    except OSError:
        return f"this is a bug: {what}; run it again with --debug"
    return f"this is a bug: {what}; the details are in {log}"
