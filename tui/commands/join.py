"""`homefires join`: one child, its events on the screen until it ends, or a dashboard that comes and goes."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from dht.invite import INVITE_FILE, parse, parse_for, read_text, save_in
from peer.link.cluster_invite import ClusterInvite, parse_cluster, read_cluster_text, save_line
from tui.commands.attach import join_and_attach, require_free
from tui.commands.consent import consents
from tui.commands.options import (
    INVITE,
    LISTEN,
    PEER,
    Parser,
    add_addresses,
    add_device_names,
    add_look,
    add_settings,
    add_ui,
    asked,
    look,
)
from tui.commands.settings import kept_if_taken, values_for_start
from tui.folders import default_directory
from tui.output.output import open_output
from tui.processes.children import Output, python_module, repeated
from tui.processes.supervisor import follow, supervise
from tui.terminal import choose_ui


def add_join(parser: Parser) -> None:
    parser.set_defaults(run=_join)
    parser.add_argument("invite", metavar="INVITE", help=INVITE)
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="where the peer lives (default: by run, below your data)"
    )
    parser.add_argument("--name", default="", help="what the others call your peer (default: the end of its id)")
    add_device_names(parser)
    for word, what in (("upload", "sends"), ("download", "takes in")):
        text = f"megabits per second that your peer {what} at most (default: no cap)"
        parser.add_argument(f"--{word}", default="", metavar="MBPS", help=text)
    text = "work in the cluster of this line, or of the file that holds it: train a stage of its lead's copy"
    parser.add_argument("--cluster", default="", metavar="LINE", help=text)
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
    invite = read_text(options.invite)
    cluster = parse_cluster(read_cluster_text(options.cluster)) if options.cluster else None
    join = asked(
        JoinOptions, options, invite=invite, directory=options.dir, peers=tuple(options.peer), cluster=cluster
    )  # fmt: skip
    words = list(options.sets)
    if join.keep_running:
        words, join = [*join.settings(), *words], join.without_settings()
    ui, settings = choose_ui(options.ui), values_for_start(words)
    is_decided = bool(cluster or options.devices or {"offload", "stages", "devices"} & settings.keys())
    said = consents(join, yes=options.yes, stdin=sys.stdin, screen=sys.stderr, is_decided=is_decided)
    if not said.joins:
        return 0
    settings |= values_for_start(said.settings)
    if settings:
        require_free(join.place())  # they are for the peer that is started here
        join.settle(join.place())  # and not for that of another run
    with kept_if_taken(join.place(), settings):
        if ui == "tui":
            return join_and_attach(join, look(options), open_output("plain", sys.stdout, sys.stderr))
        return run_join(join, open_output(ui, sys.stdout, sys.stderr))


@dataclass(frozen=True, kw_only=True)
class JoinOptions:
    """What the command line of `join` asked for. Empty values leave the peer's own choice."""

    invite: str
    directory: Path | None = None
    name: str = ""
    devices: str = ""
    """As `settings.devices`, with commas."""
    upload: str = ""
    """Megabits per second; the peer says what is wrong with them."""
    download: str = ""
    listen: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    """Addresses to dial besides those of the invite."""
    cluster: ClusterInvite | None = None
    """In which it works; None: in that of before, or in none."""
    keep_running: bool = False
    """Whether the peer is started again after a crash."""

    def place(self) -> Path:
        """The run directory. Raises BadInvite, for one that is over unless the peer there has taken part."""
        invite = parse(self.invite, float("-inf"))
        directory = self.directory or default_directory("runs", invite.run, invite.spec_hash)
        parse_for(directory, self.invite, time.time())
        return directory

    def settle(self, directory: Path) -> None:
        """Have the invite in the peer's folder. Raises RunMismatch if another run's is there, DiskFull."""
        save_in(parse_for(directory, self.invite, time.time()), directory)
        if self.cluster is not None:
            save_line(self.cluster, directory)

    def argv(self, directory: Path) -> list[str]:
        """The command line of the peer, once it is settled."""
        settings = [part for word in self.settings() for part in ("--set", f"settings.{word}")]
        words = ["join", str(directory / INVITE_FILE), "--dir", str(directory), *repeated("--listen", self.listen)]
        return python_module("peer", *words, *repeated("--peer", self.peers), *settings)

    def settings(self) -> list[str]:
        """What was asked for of the volunteer's own settings, as `KEY=VALUE`."""
        chosen = [("name", self.name), ("devices", self.devices)]
        chosen += [("upload_mbps", self.upload), ("download_mbps", self.download)]
        return [f"{key}={value}" for key, value in chosen if value]

    def without_settings(self) -> JoinOptions:
        """The same for a command line that is started again and again: a setting there would undo at each start what
        its owner has set since."""
        return replace(self, name="", devices="", upload="", download="")

    def lasting_argv(self, directory: Path, log: Path) -> list[str]:
        """The command line of a process that goes on when whoever started it ends."""
        if self.keep_running:
            return python_module("tui.processes.supervisor", str(log), "--", *self.argv(directory))
        return [*self.argv(directory), "--stay"]


def run_join(join: JoinOptions, output: Output) -> int:
    """Take part in the run of the invite until interrupted. Raises BadInvite before anything is started."""
    directory = join.place()
    invite = parse_for(directory, join.invite, time.time())
    output.say(f"joining {invite.run} of organiser {invite.organiser}; data in {directory}; Ctrl-C leaves")
    log = directory / "peer.log"
    join.settle(directory)
    if join.keep_running:
        return supervise("peer", join.argv(directory), log, output)
    return follow("peer", join.argv(directory), log, output)
