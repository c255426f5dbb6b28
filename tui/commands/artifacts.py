"""What a peer's folder yields: the model, words of it, a check of its chain, credit, a page, a bug report, and its key.

Models and chains are read by children, since that loads torch; a passphrase is asked for by `python -m dht.key_files`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dht.errors import BadInput
from peer.events import printable
from tui.bundle import write_bundle
from tui.commands.options import Parser, add_command, add_directory, directory
from tui.processes.children import environment, failure_said, python_module
from tui.processes.tools import answer, limited

GONE_S = 20.0
"""A child that has closed its output ends within this time."""
PASSPHRASE_S = 600.0
"""A person has typed a passphrase by then, or gone away."""
EXPORT_S = AUDIT_S = 3600.0
"""Replaying the longest chain takes no longer, or something is wrong."""
PUSH_S = CHAT_S = 86_400.0
"""An upload takes no longer, and nobody talks for longer."""
AUDITED = "audited round"
"""How a line begins by which an audit says how far it is."""


def add_export(parser: Parser) -> None:
    parser.set_defaults(run=_export)
    parser.add_argument("dir", type=Path, metavar="DIR", help="the folder of a peer, stopped or at work")
    parser.add_argument("--to", type=Path, metavar="OUT", help="new folder (default: DIR/export-round-N)")
    text = "where DIR is of a home of a cluster: the folders of its other homes"
    parser.add_argument("--homes", type=Path, nargs="+", default=[], metavar="DIR", help=text)
    text = (
        "of a run that starts from a model: its adapter for peft, model and adapter merged (default where an adapter "
        "is trained), or the model from which it starts"
    )
    parser.add_argument("--what", choices=("adapter", "merged", "base"), help=text)
    text = "upload it, too, to this public repository at huggingface.co, with your own login"
    parser.add_argument("--push", metavar="OWNER/NAME", help=text)


def _export(options: argparse.Namespace) -> int:
    more = [*(["--what", options.what] if options.what else []), *(["--push", options.push] if options.push else [])]
    print(run_export(options.dir, options.to, options.homes, more, debug=options.debug))
    return 0


def run_export(
    directory: Path, to: Path | None, homes: Sequence[Path] = (), more: Sequence[str] = (), *, debug: bool
) -> str:  # fmt: skip
    """Have the model of a run directory written to `to`; one line that says what is where. `homes`: of a cluster.

    A child, since it loads torch. Raises the error that its exit code stands for.
    """
    words = [
        str(directory),
        *(["--to", str(to)] if to else []),
        *more,
        *(["--homes", *map(str, homes)] if homes else []),
    ]
    limit_s = PUSH_S if "--push" in more else EXPORT_S
    return answer("export", python_module("peer", "export", *words), limit_s, debug=debug)


def add_chat(parser: Parser) -> None:
    parser.set_defaults(run=_chat)
    text = "the folder of a peer, stopped or at work, a checkpoint in it, or the folder of an export"
    parser.add_argument("dir", type=Path, metavar="DIR", help=text)
    parser.add_argument("--prompt", metavar="TEXT", help="answer this and end (default: answer what is typed)")
    text = "0 for the likeliest token each time; the higher, the more surprising (default 0.7)"
    parser.add_argument("--temperature", type=float, default=0.7, metavar="T", help=text)
    parser.add_argument("--tokens", type=int, default=256, metavar="N", help="of an answer at most (default 256)")


def _chat(options: argparse.Namespace) -> int:
    if not 0 <= options.temperature <= 10:
        raise BadInput(f"--temperature is {options.temperature:g}; use 0 to 10")
    if not 1 <= options.tokens <= 100_000:
        raise BadInput(f"--tokens is {options.tokens}; use 1 to 100,000")
    words = [str(options.dir), f"--temperature={options.temperature}", f"--tokens={options.tokens}"]
    words += [] if options.prompt is None else [f"--prompt={options.prompt}"]
    return run_chat(*words, *(["--debug"] if options.debug else []))


def run_chat(*words: str) -> int:
    """The child has the terminal, says what is wrong, and its exit code is ours."""
    argv = python_module("peer", "chat", *words)
    try:
        return subprocess.run(argv, env=environment(), timeout=CHAT_S, check=False).returncode
    except subprocess.TimeoutExpired as error:
        raise BadInput(f"nobody talks for longer than {CHAT_S / 3600:.0f} h; begin again") from error


def ask_child(command: str, *arguments: str, debug: bool) -> str:
    """What `python -m peer COMMAND` prints at its end. Raises the error that its exit code stands for."""
    return answer(command, python_module("peer", command, *arguments), EXPORT_S, debug=debug)


def add_audit(parser: Parser) -> None:
    parser.set_defaults(run=_audit)
    parser.add_argument("dir", type=Path, metavar="DIR", help="the folder of a peer, stopped or at work")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _audit(options: argparse.Namespace) -> int:
    run_audit(options.dir, as_json=options.json, debug=options.debug)
    return 0


def run_audit(directory: Path, *, as_json: bool, debug: bool) -> None:
    """Have a run directory checked: what was verified goes to stdout, how far it is to stderr.

    A child, since it loads torch. Raises the error that its exit code stands for, BadChain for a bad link.
    """
    argv = python_module("peer", "audit", str(directory), *(["--json"] if as_json else []))
    said: list[str] = []
    with limited(argv, AUDIT_S, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        for line in child.stderr:
            if debug or line.startswith(AUDITED):
                print(line, end="", file=sys.stderr, flush=True)
            said.append(line)
        verdict = child.stdout.read().strip()  # one line: the pipe holds it
        with suppress(subprocess.TimeoutExpired):  # it is killed then, which is an end of its own
            child.wait(GONE_S)
    if verdict:
        print(verdict)
    if child.returncode != 0:
        raise failure_said("audit", child.returncode, "".join(said))


def add_credit(parser: Parser) -> None:
    parser.set_defaults(run=_credit)
    parser.add_argument("dir", type=Path, metavar="DIR", help="the folder of a peer, stopped or at work")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _credit(options: argparse.Namespace) -> int:
    print(ask_child("credit", str(options.dir), *(["--json"] if options.json else []), debug=options.debug))
    return 0


def add_report(parser: Parser) -> None:
    parser.set_defaults(run=_report)
    text = "the folder of a peer or a demo, a folder of those, or event lines"
    parser.add_argument("source", type=Path, metavar="DIR|FILE", help=text)
    text = "file to write (default: DIR/report.html, or FILE with .html at its end)"
    parser.add_argument("--to", type=Path, metavar="OUT", help=text)


def _report(options: argparse.Namespace) -> int:
    from tui.report.report import default_target, write_report

    print(printable(write_report(options.source, options.to or default_target(options.source))))
    return 0


def add_bundle(parser: Parser) -> None:
    parser.set_defaults(run=_bundle)
    text = "the folder of a peer (default: the run that reported last)"
    parser.add_argument("dir", type=Path, nargs="?", metavar="DIR", help=text)
    text = "the zip file to write (default: here, with the time in its name)"
    parser.add_argument("--to", type=Path, metavar="FILE", help=text)


def _bundle(options: argparse.Namespace) -> int:
    print(write_bundle(directory(options), options.to))
    return 0


def add_identity(parser: Parser) -> None:
    parser.set_defaults(run=_show)
    add_directory(parser)
    actions = parser.add_subparsers(metavar="export|import")
    for name, summary in (
        ("export", "write the key to a new file that a passphrase opens"),
        ("import", "put the key of such a file into a folder that has none"),
    ):
        action = add_command(actions, name, summary)
        action.add_argument("file", type=Path, metavar="FILE")
        # Suppressed: a default of its own would take the place of a --dir that stands before the action.
        action.add_argument("--dir", type=Path, metavar="DIR", default=argparse.SUPPRESS, help="the folder of the key")
        action.set_defaults(run=_keep, action=name)


def _show(options: argparse.Namespace) -> int:
    return run_keyfile("show", "--dir", str(directory(options)))


def _keep(options: argparse.Namespace) -> int:
    if options.action == "import" and options.dir is None:
        raise BadInput("--dir is missing: name the folder into which the key goes, which must have none")
    return run_keyfile(options.action, str(options.file), "--dir", str(directory(options)))


def run_keyfile(*words: str) -> int:
    """Save or bring back a key; the exit code. The child asks for the passphrase, says what came of it, and why not."""
    argv = python_module("dht.key_files", *words)
    try:
        return subprocess.run(argv, env=environment(), timeout=PASSPHRASE_S, check=False).returncode
    except subprocess.TimeoutExpired as error:
        raise BadInput(f"no passphrase was typed within {PASSPHRASE_S:.0f} s; nothing was written") from error
