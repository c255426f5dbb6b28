"""Commands that read a peer's folder: export, chat, audit, credit, report, events, bundle, and its key.

Child processes read models and chains, since that loads torch. `python -m dht.key_files` asks for passphrases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from dht.errors import BadInput
from peer.schema.artifact_options import (
    ANSWER_TOKENS,
    AUDITED,
    DIGITS,
    EXPORTING,
    TEMPERATURE,
    TRACKERS,
    WHAT,
)
from peer.schema.events import printable
from tui.bundle import write_bundle
from tui.command_line import Argument, Option, words_of
from tui.commands.options import MEANT, AsJson, FolderCommand, PeerCommand
from tui.folders import holds_model
from tui.processes.children import python_module
from tui.processes.one_shot import answer, converse, overhear

PASSPHRASE_S = 600.0
"""The time in which a person must have typed a passphrase."""
EXPORT_S = AUDIT_S = 3600.0
"""The time in which even the longest chain must have been replayed."""
PUSH_S = CHAT_S = 86_400.0
"""The time limit for an upload, and for a conversation."""


@dataclass(frozen=True, kw_only=True)
class ChildCommand(FolderCommand):
    """A command that `python -m peer` executes in a child process, since it loads torch."""

    def argv(self, name: str) -> list[str]:
        """Raises BadInput for a folder of other things, before what takes seconds is loaded."""
        directory = self.find()
        if not directory.is_dir():
            raise BadInput(f"{directory} is no folder; name the folder of a peer")
        if not holds_model(directory):
            raise BadInput(f"{directory} holds nothing of a run; name the folder of a peer")
        return python_module("peer", name, str(directory), *words_of(replace(self, directory=None)))


@dataclass(frozen=True, kw_only=True)
class ExportCommand(ChildCommand):
    to: Annotated[Path | None, Option("new folder (default: DIR/export-round-N)", "OUT")] = None
    what: Annotated[
        str,
        Option(
            "adapter: only the adapter; merged: the model with it (default); base: the model without it", choices=WHAT
        ),
    ] = ""
    push: Annotated[str, Option("also upload it to this public repository at huggingface.co", "OWNER/NAME")] = ""
    gguf: Annotated[
        str,
        Option(
            "also one file for llama.cpp and Ollama, with 4, 2 or about 1 byte per parameter (needs homefires[gguf])",
            choices=DIGITS,
        ),
    ] = ""
    homes: Annotated[tuple[Path, ...], Option("for a cluster: the folders of its other homes", "DIR", many=True)] = ()

    def run(self) -> int:
        """The result is printed to stdout, the progress to stderr."""
        limit_s = PUSH_S if self.push else EXPORT_S
        told, failure = overhear("export", self.argv("export"), limit_s, EXPORTING, debug=self.debug)
        if failure is not None:
            raise failure
        print(told)
        return 0


@dataclass(frozen=True, kw_only=True)
class ChatCommand(ChildCommand):
    """The model may also be a checkpoint in a peer's folder, or the folder of an export."""

    prompt: Annotated[str | None, Option("answer this text and end (default: answer what you type)", "TEXT")] = None
    temperature: Annotated[
        float, Option("sampling temperature; 0 always takes the likeliest token", "T", within=(0, 10))
    ] = TEMPERATURE
    tokens: Annotated[int, Option("the most tokens of an answer", "N", within=(1, 100_000))] = ANSWER_TOKENS

    def run(self) -> int:
        argv = [*self.argv("chat"), *(["--debug"] if self.debug else [])]
        return converse(argv, CHAT_S, f"nobody talks for longer than {CHAT_S / 3600:.0f} h; begin again")


@dataclass(frozen=True, kw_only=True)
class AuditCommand(ChildCommand):
    as_json: AsJson = False

    def run(self) -> int:
        """The result is printed to stdout, the progress to stderr. Raises the error for the child's exit code, such
        as BadChain for a bad link."""
        verdict, failure = overhear("audit", self.argv("audit"), AUDIT_S, AUDITED, debug=self.debug)
        if verdict:
            print(verdict)
        if failure is not None:
            raise failure
        return 0


@dataclass(frozen=True, kw_only=True)
class CreditCommand(ChildCommand):
    as_json: AsJson = False

    def run(self) -> int:
        print(answer("credit", self.argv("credit"), EXPORT_S, debug=self.debug))
        return 0


@dataclass(frozen=True, kw_only=True)
class ReportCommand(FolderCommand):
    place: Annotated[Path | None, Argument(f"of a demo, of several peers, event lines, or {MEANT}", "DIR|FILE")] = None
    to: Annotated[Path | None, Option("file to write (default: DIR/report.html, or FILE.html)", "OUT")] = None

    def run(self) -> int:
        from tui.report.report import default_target, write_report

        source = self.find()
        print(printable(write_report(source, self.to or default_target(source))))
        return 0


@dataclass(frozen=True, kw_only=True)
class EventsCommand(ChildCommand):
    to: Annotated[str, Option("the program that shall read them (extra: tensorboard)", choices=TRACKERS)] = TRACKERS[0]
    out: Annotated[Path | None, Option("new folder to write (default: DIR/tensorboard)", "OUT")] = None

    def run(self) -> int:
        print(answer("events", [*self.argv("events"), "--to", self.to], EXPORT_S, debug=self.debug))
        return 0


@dataclass(frozen=True, kw_only=True)
class BundleCommand(FolderCommand):
    to: Annotated[Path | None, Option("the zip file to write (default: one here, named by the time)", "FILE")] = None

    def run(self) -> int:
        print(write_bundle(self.find(), self.to))
        return 0


class IdentityCommand(PeerCommand):
    def run(self) -> int:
        return self._ask("show")

    def _ask(self, *words: str) -> int:
        """Export or import a key. The child process asks for the passphrase, and reports the result or the error."""
        argv = python_module("dht.key_files", *words, "--dir", str(self.find()))
        late = f"no passphrase was typed within {PASSPHRASE_S:.0f} s; nothing was written"
        return converse(argv, PASSPHRASE_S, late)


@dataclass(frozen=True, kw_only=True)
class IdentityExportCommand(IdentityCommand):
    file: Annotated[Path, Argument("where the key is written to", "FILE")]

    def run(self) -> int:
        return self._ask("export", str(self.file))


@dataclass(frozen=True, kw_only=True)
class IdentityImportCommand(IdentityCommand):
    file: Annotated[Path, Argument("what an export has written", "FILE")]

    def run(self) -> int:
        if self.directory is None:
            raise BadInput("--dir is missing: name the folder into which the key goes, which must have none")
        return self._ask("import", str(self.file))
