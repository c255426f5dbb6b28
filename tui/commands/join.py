"""`homefires join`: runs one peer, and shows its events until it ends, or a dashboard that can be
closed and reopened.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from dht.addresses import check_listen, listened_on
from dht.errors import BadInput
from dht.invite import INVITE_FILE, parse, parse_for, read_text, save_in
from peer.network.link.cluster_invite import parse_cluster, read_cluster_text, save_line
from tui.command_line import Argument, Command, Option
from tui.commands.attach import join_and_attach, require_free
from tui.commands.consent import consents
from tui.commands.options import INVITE, DisplayOptions, PeerOptions, Ui, Yes
from tui.commands.run_end import end_lines
from tui.commands.settings import kept_if_taken, values_for_start
from tui.folders import default_directory, is_strangers
from tui.output.output import open_output
from tui.processes.children import Output, python_module, repeated
from tui.processes.supervisor import follow, supervise
from tui.terminal import choose_ui

SETS = "what you allow your peer, kept from its first start on, as in --set 'schedule=22:00-07:00'; repeatable"


@dataclass(frozen=True, kw_only=True)
class JoinCommand(PeerOptions, Command):
    invite: Annotated[str, Argument(INVITE, "INVITE")]
    upload: Annotated[str, Option("limit your peer's upload, in megabits per second (default: no limit)", "MBPS")] = ""
    """Kept as text: the peer itself reports what is wrong with it."""
    download: Annotated[
        str, Option("limit your peer's download, in megabits per second (default: no limit)", "MBPS")
    ] = ""
    cluster: Annotated[
        str, Option("join a friend's cluster by the line from `homefires cluster invite`, or a file with it", "LINE")
    ] = ""
    """Empty: the cluster in which the peer was before, if any."""
    sets: Annotated[tuple[str, ...], Option(SETS, "KEY=VALUE", "--set")] = ()
    yes: Yes = False
    keep_running: Annotated[bool, Option("start it again after a crash (by systemd: homefires service)")] = False
    ui: Ui = "auto"
    look: DisplayOptions = field(default_factory=DisplayOptions)

    def run(self) -> int:
        self.require_valid()
        cluster = parse_cluster(read_cluster_text(self.cluster)) if self.cluster else None
        join = replace(self, invite=read_text(self.invite), cluster=cluster.text() if cluster else "")
        words = self.sets
        if self.keep_running:
            words, join = (*self.settings(), *words), join.without_settings()
        ui = choose_ui(self.ui)
        settings = join.agree(words)
        if settings:
            require_free(join.place())  # they are for the peer that is started here
            join.settle(join.place())  # and not for that of another run
        with kept_if_taken(join.place(), settings):
            if ui == "tui":
                return join_and_attach(join, self.look, open_output("plain", sys.stdout, sys.stderr))
            return run_join(join, open_output(ui, sys.stdout, sys.stderr))

    def require_valid(self) -> None:
        """What the peer would end with is said before anybody is asked. Raises BadInput."""
        for option, limit in (("--upload", self.upload), ("--download", self.download)):
            _require_limit(option, limit)
        values_for_start(self.settings())
        for address in listened_on(self.listen):
            check_listen(address)

    def place(self) -> Path:
        """The run directory. Raises BadInvite, also for an expired invite unless the peer there has taken part, and
        BadInput for a folder with other contents."""
        invite = parse(self.invite, float("-inf"))
        directory = self.directory or default_directory("runs", invite.run, invite.spec_hash)
        if is_strangers(directory):
            raise BadInput(f"--dir {directory} is not an empty folder, nor a peer's; name a new one")
        parse_for(directory, self.invite, time.time())
        return directory

    def agree(self, words: Sequence[str]) -> dict[str, Any]:
        """The settings with which the owner agrees to join, including these `KEY=VALUE` words. Raises as `consents`
        does."""
        settings = values_for_start(words)
        is_decided = bool(self.cluster or self.devices or {"offload", "stages", "devices"} & settings.keys())
        chosen = consents(
            self, yes=self.yes, stdin=sys.stdin, screen=sys.stderr, is_decided=is_decided,
            data_path=str(settings.get("data_path", "")),
        )  # fmt: skip
        return settings | values_for_start(chosen)

    def settle(self, directory: Path) -> None:
        """Write the invite to the peer's folder. Raises RunMismatch if another run's invite is there, DiskFull."""
        save_in(parse_for(directory, self.invite, time.time()), directory)
        if self.cluster:
            save_line(parse_cluster(self.cluster), directory)

    def argv(self, directory: Path) -> list[str]:
        """The command line of the peer, after `settle`."""
        settings = [part for word in self.settings() for part in ("--set", f"settings.{word}")]
        words = ["join", str(directory / INVITE_FILE), "--dir", str(directory), *repeated("--listen", self.listen)]
        return python_module("peer", *words, *repeated("--peer", self.peers), *settings)

    def settings(self) -> list[str]:
        """The volunteer's own settings from the options, as `KEY=VALUE`."""
        chosen = [("name", self.name), ("devices", self.devices)]
        chosen += [("upload_mbps", self.upload), ("download_mbps", self.download)]
        return [f"{key}={value}" for key, value in chosen if value]

    def without_settings(self) -> JoinCommand:
        """The same command without settings, for a command line that is run again and again: a setting there would
        undo at each start what the owner has changed since."""
        return replace(self, name="", devices="", upload="", download="")

    def lasting_argv(self, directory: Path, log: Path) -> list[str]:
        """The command line of a process that continues when the process that started it ends."""
        if self.keep_running:
            return python_module("tui.processes.supervisor", str(log), "--", *self.argv(directory))
        return [*self.argv(directory), "--stay"]


def _require_limit(option: str, limit: str) -> None:
    """Raises BadInput for no number, and for nothing: a peer that may send nothing cannot take part."""
    if limit and not re.fullmatch(r"[0-9]+\.?[0-9]*|\.[0-9]+", limit.strip()):
        raise BadInput(f"{option} is {limit[:40]!r}; give megabits per second, as in {option} 5")
    if limit and not float(limit):
        raise BadInput(
            f"{option} is {limit}, and a peer that may use nothing cannot take part; leave it out for no limit"
        )


def run_join(join: JoinCommand, output: Output) -> int:
    """Take part in the run of the invite until interrupted. Raises BadInvite and DirectoryBusy before anything is
    started."""
    directory = join.place()
    require_free(directory)
    invite = parse_for(directory, join.invite, time.time())
    output.say(f"joining {invite.run}; data in {directory}; Ctrl-C leaves")
    log = directory / "peer.log"
    join.settle(directory)
    run = supervise if join.keep_running else follow
    code = run("peer", join.argv(directory), log, output)
    for line in end_lines(directory) if code == 0 else []:
        output.say(line)
    return code
