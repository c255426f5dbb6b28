"""`homefires bootstrap`: a run's first node, which newcomers dial. Also the organiser's other commands: more invites,
members, quarantine; and `cluster invite`, which makes the line with which friends join a cluster.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from dht.atomic_files import write_atomic
from dht.errors import BadInput, Declined, RunMismatch
from dht.invite import INVITE_FILE
from peer.network.link.cluster_invite import issue_in
from peer.schema.spec import RunSpec, dump, load
from tui.command_line import Argument, Command, Option, words_of
from tui.commands.consent import YES, in_two_lines
from tui.commands.options import LISTEN, PeerCommand
from tui.folders import data_root, default_directory, is_at_work, namesakes
from tui.output.output import open_output
from tui.processes.children import Output, python_module
from tui.processes.one_shot import answer
from tui.processes.supervisor import LOG_FILE, RetentionOptions, follow, serve_and_keep
from tui.spec_choice import Sets, Spec, choose_spec
from tui.terminal import columns

NONE_KEPT = RetentionOptions()
UNBROKEN = 10_000
"""Columns where no terminal says how many it has: programs read whole lines."""
DESCRIBE_S = 120.0
"""The time in which torch must have been loaded and the model laid out."""
Admission = Annotated[bool, Option("admit only peers whose invite has a token (sets admission.policy)")]
Also = Annotated[tuple[str, ...], Option("also name this node or peer (with /p2p/…) in invites; repeatable", "ADDR")]
LINES = ("auto", "plain", "json", "none")


@dataclass(frozen=True, kw_only=True)
class InviteOptions:
    invites: Annotated[int, Option("with --admission: N invites for one peer each (default: one for all)", "N")] = 0
    expires: Annotated[
        str, Option("how long invites last, such as 12h, 7d or 4w (default: as long as the run)", "TIME")
    ] = ""


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """The options of a node, for `homefires bootstrap` and `python -m bootstrap`; the node checks them."""

    listen: Annotated[tuple[str, ...], Option(LISTEN, "ADDR")] = ()
    announce: Annotated[tuple[str, ...], Option("tell others to dial this multiaddr; repeatable", "ADDR")] = ()
    also: Also = ()
    founder: Annotated[
        tuple[str, ...], Option("let this peer found the run; repeatable (default: the first that come)", "PEER")
    ] = ()
    members_for: Annotated[str, Option("how long an admission lasts before it is renewed (default 30d)", "TIME")] = ""
    promote: Annotated[str, Option("promote strangers after this time and 20 rounds (default 24h)", "TIME|never")] = ""
    upload: Annotated[str, Option("limit the node's upload, in megabits per second (default: no limit)", "MBPS")] = ""
    """Of what the node sends; what it relays for others has a quarter of that."""
    download: Annotated[
        str, Option("limit the node's download, in megabits per second (default: no limit)", "MBPS")
    ] = ""
    page: Annotated[Path | None, Option("write a page about the run for everybody into this folder", "DIR")] = None
    health_port: Annotated[int, Option("serve a status page and metrics on this port of loopback", "PORT")] = 0
    invite: InviteOptions = field(default_factory=InviteOptions)


@dataclass(frozen=True, kw_only=True)
class BootstrapCommand(Command):
    spec: Spec
    sets: Sets = ()
    directory: Annotated[
        Path | None, Option("the node's folder, with its keys (default: one per run)", "DIR", "--dir")
    ] = None
    admission: Admission = False
    node: NodeOptions = field(default_factory=NodeOptions)
    keep: RetentionOptions = NONE_KEPT
    ui: Annotated[str, Option("what is printed (default auto: plain lines)", choices=LINES)] = "auto"

    def run(self) -> int:
        spec = node_spec(self.spec, self.sets, admission=self.admission)
        output = open_output(self.ui, sys.stdout, sys.stderr)
        return run_bootstrap(spec, output, self.node, directory=self.directory, keep=self.keep)


def node_spec(name_or_path: str, sets: Sequence[str], *, admission: bool) -> RunSpec:
    """The spec of the run. Raises BadSpec, BadInput."""
    return choose_spec(name_or_path, sets=sets, fixed={"admission.policy": "invited"} if admission else None)


def run_bootstrap(
    spec: RunSpec, output: Output, options: NodeOptions, *, directory: Path | None, keep: RetentionOptions = NONE_KEPT
) -> int:
    """Serve the run until interrupted, and keep checkpoints of it if `keep` names a directory. Raises RunMismatch if
    the directory belongs to another run, or this organiser has another run of this name; DiskFull."""
    directory = place_node(directory, spec)
    is_new = not (directory / "spec.toml").exists()
    path = claim_directory(directory, spec)
    words = check_node(path, options)  # what it would end with is said before it is said to serve
    for line in textwrap.wrap(describe_model(path), columns(UNBROKEN), break_long_words=False, break_on_hyphens=False):
        output.say(line)
    if is_new:
        recommend(spec, path, output)
    argv = node_argv(path, options)
    output.say(f"serving {spec.run.name}; data in {directory}; Ctrl-C stops")
    output.say(f"the invite is in {directory / INVITE_FILE}, too")
    output.say("who joins is shown these words for you; tell them to people by another way than the invite:")
    for line in in_two_lines(words):
        output.say(f"  {line}")
    log = directory / LOG_FILE
    if keep.directory is None:
        return follow("bootstrap", argv, log, output)
    if spec.admission.policy != "open":
        keep = replace(keep, organiser=directory)
    return serve_and_keep(argv, log, keep, output)


def recommend(spec: RunSpec, path: Path, output: Output) -> None:
    """Say in a line if a plan would make more of the run's rounds. Its organiser wrote them, so they stay."""
    from tui.simulation.recommended import recommended

    if (found := recommended(spec)) is not None:
        output.say(
            f"a plan would choose {found.words}; homefires plan {path} {found.homes} says why, and with --write FILE "
            "makes another run of it"
        )


def node_argv(path: Path, options: NodeOptions) -> list[str]:
    return python_module("bootstrap", str(path), "--dir", str(path.parent), *words_of(options))


def check_node(path: Path, options: NodeOptions) -> str:
    """Check these options in the node itself, and raise its error. Returns the words by which people know its
    organiser."""
    return answer("check", [*node_argv(path, options), "--check"], DESCRIBE_S)


def place_node(directory: Path | None, spec: RunSpec) -> Path:
    """The folder of a run's node. Raises RunMismatch if no folder was named and this run's folder would be new
    although there is another run of the same name: then an option was probably forgotten, and nobody would notice."""
    mine = directory or default_directory("bootstrap", spec.run.name, spec.digest())
    others = [] if directory or mine.exists() else namesakes(mine)
    if others:
        raise RunMismatch(
            f"{others[0]} is of a run called {spec.run.name} already, and this spec with these options makes "
            "another: a run keeps the values with which it began; give the --admission and --set of that time, undo "
            "what was edited since, or name that folder's spec.toml; to start another run, name a new folder with --dir"
        )
    return mine


def claim_directory(directory: Path, spec: RunSpec) -> Path:
    """Write the spec to the folder of a bootstrap node. Returns its path. Raises RunMismatch, DiskFull."""
    path = directory / "spec.toml"
    if path.exists() and load(str(path)).digest() != spec.digest():
        raise RunMismatch(f"{directory} holds another run; name a new folder with --dir")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, dump(spec).encode())
    return path


def describe_model(path: Path) -> str:
    """What the run's model is and needs. It is built once as a test. Raises BadInput with the child's one line.

    A child process does it, since it loads torch. An organiser must learn of a mistake before volunteers do.
    """
    return answer("description", python_module("peer", "describe", str(path)), DESCRIBE_S)


# ---- what an organiser does besides ----


@dataclass(frozen=True, kw_only=True)
class OrganiserCommand(Command):
    directory: Annotated[
        Path | None, Option("the organiser's folder (default: that of the node started last)", "DIR", "--dir")
    ] = None

    def find(self) -> Path:
        """The organiser's folder. Raises BadInput if no node was ever started."""
        root = data_root() / "bootstrap"
        found = [path for path in root.glob("*/invite") if path.is_file()]
        if self.directory is None and not found:
            raise BadInput(f"no run was started on this machine (nothing in {root}); name the organiser's folder")
        return self.directory or max(found, key=lambda path: path.stat().st_mtime).parent


@dataclass(frozen=True, kw_only=True)
class InviteCommand(OrganiserCommand):
    place: Annotated[Path | None, Argument("the same as --dir", "DIR")] = None
    invite: InviteOptions = field(default_factory=InviteOptions)
    also: Also = ()

    def run(self) -> int:
        from bootstrap.organiser import more_invites

        asked = self.invite
        print(more_invites(self.place or self.find(), expires=asked.expires, count=asked.invites, also=self.also))
        return 0


@dataclass(frozen=True, kw_only=True)
class MembersCommand(OrganiserCommand):
    peer: Annotated[str | None, Argument("its id, 12D3Koo…; none: list all, and until when", "PEER")] = None
    end: Annotated[str, Option("do not renew its admission, for this reason", "TEXT", either="what")] = ""
    renew: Annotated[bool, Option("undo --end", either="what")] = False
    promote: Annotated[bool, Option("make it a known peer, which votes like a founder", either="what")] = False
    demote: Annotated[bool, Option("undo --promote", either="what")] = False

    def run(self) -> int:
        from bootstrap.organiser import demote_peer, end_admission, list_members, promote_peer, renew_admission

        directory = self.find()
        if self.peer is None:
            print(list_members(directory))
        elif self.renew:
            print(renew_admission(directory, self.peer))
        elif self.promote:
            print(promote_peer(directory, self.peer))
        elif self.demote:
            print(demote_peer(directory, self.peer))
        elif self.end.strip():
            print(end_admission(directory, self.peer, self.end))
        else:
            raise BadInput("say what: --end and why, which its owner reads, --renew, --promote or --demote")
        return 0


@dataclass(frozen=True, kw_only=True)
class QuarantineCommand(OrganiserCommand):
    peer: Annotated[str | None, Argument("its id, 12D3Koo…; none: say who is in quarantine", "PEER")] = None
    reason: Annotated[str, Option("the reason, which every peer shows", "TEXT", either="what")] = ""
    lift: Annotated[bool, Option("end the quarantine", either="what")] = False

    def run(self) -> int:
        from bootstrap.organiser import keep_out, let_back, list_quarantine

        directory = self.find()
        if self.peer is None:
            print(list_quarantine(directory))
        elif self.lift:
            print(let_back(directory, self.peer))
        elif self.reason.strip():
            print(keep_out(directory, self.peer, self.reason))
        else:
            raise BadInput("--reason is missing: say why, every peer shows it; or --lift to end the quarantine")
        return 0


GIVEN_UP = """\
Fewer go on than half of those whom the organiser knows, and you give this up:
  - an update that the others decided among themselves may be lost to them;
  - whoever of them comes back begins anew from the newest snapshot, with its work counted as carried.
If they will come back, wait: nothing is lost by waiting, each peer trains on alone."""


@dataclass(frozen=True, kw_only=True)
class RestartRunCommand(OrganiserCommand):
    place: Annotated[Path | None, Argument("the same as --dir", "DIR")] = None
    yes: Annotated[bool, Option("do not ask")] = False

    def run(self) -> int:
        from bootstrap.restarts import let_go_on, read_waiting

        directory = self.place or self.find()
        if not is_at_work(directory):
            raise BadInput(f"no node runs in {directory}, so nobody can come to it; start it, and wait for a minute")
        waiting = read_waiting(directory)
        if not waiting.abouts:
            print("nobody waits: no voter has said to this node that its run has lost its quorum")
            return 0
        print("\n".join((*waiting.lines, GIVEN_UP)))
        if not self.yes:
            _require_yes("Let those go on who came? [y/N] ")
        print(let_go_on(directory, waiting))
        return 0


def _require_yes(question: str) -> None:
    """Ask for a yes. Raises Declined, and BadInput if nobody can be asked."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("nobody can be asked here, since there is no terminal; add --yes")
    print(question, end="", flush=True)
    if sys.stdin.readline().strip().lower() not in YES:
        raise Declined("nobody is let go on; all of it is as it was")


@dataclass(frozen=True, kw_only=True)
class ClusterInviteCommand(PeerCommand):
    """Prints the line for a cluster of the leading peer, which need not have started yet."""

    def run(self) -> int:
        print(issue_in(self.find()).text())
        return 0
