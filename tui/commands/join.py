"""`homefires join` and `homefires bootstrap`: one child, its events on the screen until it ends.

`homefires export` and `homefires audit`: one child, its one line at its end.
"""

from __future__ import annotations

import dataclasses
import errno
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dht.errors import BadInput, DiskFull, HomefiresError, RunMismatch
from dht.invite import INVITE_FILE, parse_for
from dht.invite import parse as parse_invite
from dht.invite import save_in as keep_invite
from peer.spec import RunSpec, dump, load
from tui.folders import default_directory, namesakes
from tui.output.output import Output
from tui.processes.children import INTERRUPTED, ProcessGroup, environment, error_of, failure_said, python_module
from tui.processes.supervisor import LOG_FILE, NodeOptions, RetentionOptions, follow_child, serve_and_keep, supervise

GONE_S = 20.0
"""A child that has closed its output ends within this time."""
DESCRIBE_S = 120.0
"""Loading torch and laying out the model takes no longer, or something is wrong."""
PASSPHRASE_S = 600.0
"""A person has typed a passphrase by then, or gone away."""
EXPORT_S = AUDIT_S = 3600.0
"""Replaying the longest chain takes no longer, or something is wrong."""
AUDITED = "audited round"
"""How a line begins by which an audit says how far it is."""


@dataclass(frozen=True, kw_only=True)
class JoinOptions:
    """What the command line of `join` asked for. Empty values leave the peer's own choice."""

    invite: str
    directory: Path | None = None
    name: str = ""
    device: str = ""
    upload: str = ""
    """Megabits per second; the peer says what is wrong with them."""
    download: str = ""
    listen: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    """Addresses to dial besides those of the invite."""
    keep_running: bool = False
    """Whether the peer is started again after a crash."""

    def place(self) -> Path:
        """The run directory. Raises BadInvite, for one that is over unless the peer there has taken part."""
        invite = parse_invite(self.invite, float("-inf"))
        directory = self.directory or default_directory("runs", invite.run, invite.spec_hash)
        parse_for(directory, self.invite, time.time())
        return directory

    def settle(self, directory: Path) -> None:
        """Have the invite in the peer's folder. Raises RunMismatch if another run's is there, DiskFull."""
        keep_invite(parse_for(directory, self.invite, time.time()), directory)

    def argv(self, directory: Path) -> list[str]:
        """The command line of the peer, once it is settled."""
        settings = [part for word in self.settings() for part in ("--set", f"settings.{word}")]
        words = ["join", str(directory / INVITE_FILE), "--dir", str(directory), *_listen(self.listen)]
        return python_module("peer", *words, *also_dialled(self.peers), *settings)

    def settings(self) -> list[str]:
        """What was asked for of the volunteer's own settings, as `KEY=VALUE`."""
        chosen = [("name", self.name), ("device", self.device)]
        chosen += [("upload_mbps", self.upload), ("download_mbps", self.download)]
        return [f"{key}={value}" for key, value in chosen if value]

    def without_settings(self) -> JoinOptions:
        """The same for a command line that is started again and again: a setting there would undo at each start what
        its owner has set since."""
        return replace(self, name="", device="", upload="", download="")

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


def run_bootstrap(
    spec: RunSpec, output: Output, options: NodeOptions, *, directory: Path | None, keep: RetentionOptions | None = None
) -> int:
    """Serve the run until interrupted, and keep checkpoints of it if `keep` says where.

    Raises RunMismatch if the directory belongs to another run, or another run of this name to this organiser; DiskFull.
    """
    directory = place_node(directory, spec)
    path = claim_directory(directory, spec)
    output.say(describe_model(path))
    argv = node_argv(path, options)
    output.say(f"serving {spec.run.name}; data in {directory}; Ctrl-C stops")
    log = directory / LOG_FILE
    if keep is None:
        return follow("bootstrap", argv, log, output)
    if spec.admission.policy != "open":
        keep = dataclasses.replace(keep, organiser=directory)
    return serve_and_keep(argv, log, keep, output)


def node_argv(path: Path, options: NodeOptions) -> list[str]:
    """The command line of the node whose folder holds the spec at `path`."""
    return python_module("bootstrap", str(path), "--dir", str(path.parent), *options.words())


def check_node(path: Path, options: NodeOptions) -> str:
    """Raises the error that the node would end with for these options. The words by which people know its organiser."""
    return _answer("check", [*node_argv(path, options), "--check"], DESCRIBE_S, debug=False)


def place_node(directory: Path | None, spec: RunSpec) -> Path:
    """Where the node of a run lives. Raises RunMismatch where nobody has named a folder, and the first one of this run
    would stand beside that of another run of its name: an option was forgotten, and nobody would notice.
    """
    mine = directory or default_directory("bootstrap", spec.run.name, spec.digest())
    others = [] if directory or mine.exists() else namesakes(mine)
    if others:
        raise RunMismatch(
            f"{others[0]} is of a run called {spec.run.name} already, and with these options this would be another "
            "one: give the --admission and --set of that time, or name that folder's spec.toml; to start another run, "
            "name a new folder with --dir"
        )
    return mine


def claim_directory(directory: Path, spec: RunSpec) -> Path:
    """The folder of a bootstrap node, with the spec in it, whose path is returned. Raises RunMismatch, DiskFull."""
    path = directory / "spec.toml"
    if path.exists() and load(str(path)).digest() != spec.digest():
        raise RunMismatch(f"{directory} holds another run; name a new folder with --dir")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write_spec(path, spec)
    return path


def _write_spec(path: Path, spec: RunSpec) -> None:
    """Replace the file, or leave the old one. Raises DiskFull."""
    scratch = path.with_name(path.name + ".new")
    try:
        scratch.write_text(dump(spec))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(f"the disk that holds {path.parent} is full") from error
    scratch.replace(path)


def describe_model(path: Path) -> str:
    """What the run's model is and needs, built once to see that it can be. Raises BadInput with the child's one line.

    A child, since it loads torch. An organiser must hear of a mistake before volunteers do.
    """
    return _answer("description", python_module("peer", "describe", str(path)), DESCRIBE_S, debug=False)


def run_export(directory: Path, to: Path | None, *, debug: bool) -> str:
    """Have the model of a run directory written to `to`; one line that says what is where.

    A child, since it loads torch. Raises the error that its exit code stands for.
    """
    return ask_child("export", str(directory), *(["--to", str(to)] if to else []), debug=debug)


def ask_child(command: str, *arguments: str, debug: bool) -> str:
    """What `python -m peer COMMAND` prints at its end. Raises the error that its exit code stands for."""
    return _answer(command, python_module("peer", command, *arguments), EXPORT_S, debug=debug)


def _answer(what: str, argv: Sequence[str], limit_s: float, *, debug: bool) -> str:
    """What a child prints. Raises the error that its exit code stands for, HomefiresError if it takes too long."""
    try:
        told = subprocess.run(
            argv, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise HomefiresError(f"the {what} did not end within {limit_s:.0f} s; run it again with --debug") from error
    if debug:
        print(told.stderr, end="", file=sys.stderr)
    if told.returncode != 0:
        raise failure_said(what, told.returncode, told.stderr)
    return told.stdout.strip()


def run_audit(directory: Path, *, as_json: bool, debug: bool) -> None:
    """Have a run directory checked: what was verified goes to stdout, how far it is to stderr.

    A child, since it loads torch. Raises the error that its exit code stands for, BadChain for a bad link.
    """
    argv = python_module("peer", "audit", str(directory), *(["--json"] if as_json else []))
    said: list[str] = []
    with subprocess.Popen(argv, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        watchdog = threading.Timer(AUDIT_S, child.kill)
        watchdog.start()
        try:
            assert child.stdout is not None
            assert child.stderr is not None
            for line in child.stderr:
                if debug or line.startswith(AUDITED):
                    print(line, end="", file=sys.stderr, flush=True)
                said.append(line)
            verdict = child.stdout.read().strip()  # one line: the pipe holds it
            with suppress(subprocess.TimeoutExpired):  # it is killed then, which is an end of its own
                child.wait(GONE_S)
        finally:
            watchdog.cancel()
            child.kill()
    if verdict:
        print(verdict)
    if child.returncode != 0:
        raise failure_said("audit", child.returncode, "".join(said))


def run_organiser(directory: Path, words: Sequence[str], *, debug: bool) -> str:
    """Have an invite made, or a quarantine written, in an organiser's folder; what there is to say of it.

    A child, since it needs keys. Raises the error that its exit code stands for.
    """
    argv = python_module("bootstrap.organiser", *words, "--dir", str(directory))
    return _answer("command", argv, DESCRIBE_S, debug=debug)


def run_keyfile(*words: str) -> int:
    """Save or bring back a key; the exit code. The child asks for the passphrase, says what came of it, and why not."""
    argv = python_module("dht.key_files", *words)
    try:
        return subprocess.run(argv, env=environment(), timeout=PASSPHRASE_S, check=False).returncode
    except subprocess.TimeoutExpired as error:
        raise BadInput(f"no passphrase was typed within {PASSPHRASE_S:.0f} s; nothing was written") from error


def follow(name: str, argv: Sequence[str], log: Path, output: Output) -> int:
    """Run one child to its end; the exit code. Raises the error that its exit code stands for."""
    with ProcessGroup() as children:
        child = follow_child(children, children.start(name, argv, log), output)
    output.close()
    if children.interrupts:
        return INTERRUPTED
    if child.exit_code != 0:
        raise error_of(child)
    return 0


def also_dialled(peers: Sequence[str]) -> list[str]:
    """The words that have a child dial these, too."""
    return [part for address in peers for part in ("--peer", address)]


def _listen(addresses: Sequence[str]) -> list[str]:
    return [part for address in addresses for part in ("--listen", address)]
