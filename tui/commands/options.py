"""Options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dht.errors import BadInput, HomefiresError
from tui.command_line import Argument, Command, Option

LISTEN = "listen on this multiaddr; repeatable (default: all interfaces, a free port)"
INVITE = "the text that begins with hf1:, or a file with that text, which hides it from other users of this machine"
"""The help text for an invite. Every user of a machine can read command lines."""

AsJson = Annotated[bool, Option("print one JSON object", flag="--json")]
Devices = Annotated[str, Option("auto, cpu, cuda, mps, or GPUs that train as one: cuda:0,cuda:1 (default auto)", "D")]
UI = ("auto", "tui", "plain", "json", "none")
Ui = Annotated[
    str, Option("how to show the run (default auto: a dashboard on a terminal, else plain lines)", choices=UI)
]
Yes = Annotated[bool, Option("agree to the run without being asked: for services and scripts")]


@dataclass(frozen=True, kw_only=True)
class DisplayOptions:
    """How a dashboard looks, and whether it may give commands."""

    ascii_only: Annotated[bool, Option("draw the dashboard with ASCII characters only", flag="--ascii")] = False
    mono: Annotated[bool, Option("draw the dashboard without colours (as with NO_COLOR)")] = False
    read_only: Annotated[bool, Option("open a dashboard that cannot change anything")] = False


@dataclass(frozen=True, kw_only=True)
class PeerOptions:
    """The options of a peer that is started here. If one is empty, the peer chooses."""

    directory: Annotated[
        Path | None, Option("the peer's folder (default: one per run, below your data folder)", "DIR", "--dir")
    ] = None
    name: Annotated[str, Option("the name that others see (default: the end of the peer's id)")] = ""
    devices: Devices = ""
    listen: Annotated[tuple[str, ...], Option(f"{LISTEN}; none: be reached through the node", "ADDR")] = ()
    peers: Annotated[
        tuple[str, ...], Option("also dial this peer, if no other answers; repeatable", "ADDR", "--peer")
    ] = ()


# ---- which folder ----

MEANT = "the peer's folder (default: that of the running peer, or of the last one that ran)"


@dataclass(frozen=True, kw_only=True)
class PeerCommand(Command):
    """A command about a peer of this machine."""

    directory: Annotated[Path | None, Option(MEANT, "DIR", "--dir", either="peers")] = None

    def find(self) -> Path:
        """The folder of the peer. Raises BadInput if there is none, or if several peers run."""
        from tui.folders import folder_meant

        return self.directory or folder_meant()


@dataclass(frozen=True, kw_only=True)
class FolderCommand(PeerCommand):
    """A command whose folder may also be given without `--dir`."""

    place: Annotated[Path | None, Argument(MEANT, "DIR")] = None

    def find(self) -> Path:
        if self.place is not None and self.directory is not None:
            raise BadInput(f"the folder is {self.place}, and --dir {self.directory}; name one of them")
        return self.place or super().find()


@dataclass(frozen=True, kw_only=True)
class PeersCommand(PeerCommand):
    every: Annotated[
        bool, Option("all peers of this machine, also those that do not run now", flag="--all", either="peers")
    ] = False

    def tell(self, tell: Callable[[Path], str]) -> int:
        """Print the result of `tell` for the peer, or for each one with `--all`. A failure does not stop the others;
        the exit code is that of the first failure."""
        from tui.folders import every_folder, folder_meant

        if not self.every:
            print(tell(self.directory or folder_meant("; or all of them: --all")))
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
