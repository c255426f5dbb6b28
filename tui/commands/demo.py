"""`homefires demo`: a bootstrap node and several peers on this machine, until every round is committed.

In order: write the spec, start the bootstrap node, take its invite, start the peers, show what they report, and check
at the end that every peer committed every round with the same bits.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TextIO

from dht.atomic_files import raising_disk_full, write_atomic
from dht.errors import BadInput, RoundsFailed, Unreachable
from dht.invite import INVITE_FILE
from peer.network.link.cluster_invite import issue_in
from peer.node.telemetry.event_tail import EventTail
from peer.schema.byte_text import format_bytes
from peer.schema.events import AlertRaised, EventLine, InviteIssued, PeerStarted, RoundCommitted, format_line
from peer.schema.spec import RunSpec, dump
from tui.command_line import Command, Option, words_of
from tui.commands.options import DisplayOptions, Ui
from tui.folders import quoted
from tui.output.output import open_output
from tui.processes.children import (
    INTERRUPTED,
    ChildExited,
    ChildProcess,
    EventPrinted,
    InterruptReceived,
    Output,
    ProcessGroup,
    error_of,
    python_module,
)
from tui.processes.device_probe import DEVICES, find_device, share_devices, usable_cores
from tui.spec_choice import SPEC, Sets, choose_spec
from tui.swarm import figures
from tui.swarm.figure_text import agreement_words
from tui.swarm.reducer import apply
from tui.swarm.round_ledger import MAX_COMMITS
from tui.swarm.snapshot import SwarmState, labels_of
from tui.terminal import choose_ui

Devices = Sequence[Sequence[str]]
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
FINGERPRINT = "FINGERPRINT"
"""The code with which a bootstrap node reports its organiser's fingerprint; a demo hides it, since nobody else
joins."""

QUIET_S = 1.0
"""The time without a word after which a person hears what is waited for."""
BOOTSTRAP_S = 60.0
"""The time in which the bootstrap node must have issued its invite."""

PROMPT, SAMPLES, SAMPLE = "def main(", 6, 100
"""The prompt that a demo's model continues, about how many times, and how many characters of it are shown at the
end."""

SLICE = 500
"""The maximal number of lines that are taken at once of a peer that somebody has started again."""

START_S = 180.0
"""The time in which peers must have begun round 0: they load torch and the data first."""


@dataclass(frozen=True, kw_only=True)
class DemoCommand(Command):
    peers: Annotated[int, Option("how many peers, 1 to 16", "N", within=(1, 16))] = 3
    rounds: Annotated[int | None, Option("rounds to make (default: the spec's)", "R", within=(1, float("inf")))] = None
    seed: Annotated[int | None, Option("seed of the initial parameters and the data order", "S")] = None
    spec: Annotated[str, Option(f"{SPEC} (default tiny, on a GPU small)", "SPEC")] = ""
    sets: Sets = ()
    data: Annotated[
        Path | None, Option("folder or file that all peers read, for a spec that reads your own files", "PATH")
    ] = None
    ranks: Annotated[int, Option("processes per peer, each on a GPU or all on the CPU", "N", within=(1, 8))] = 1
    stages: Annotated[
        int, Option("homes per cluster: peers that train one copy of the model together", "N", within=(1, 8))
    ] = 1
    """With 1, every peer has the whole model."""
    devices: Annotated[
        str, Option("where the peers train (default auto: a GPU if there is one, else the CPU)", choices=DEVICES)
    ] = "auto"
    directory: Annotated[Path | None, Option("keep everything in this new folder", "DIR", "--dir")] = None
    ui: Ui = "auto"
    look: DisplayOptions = field(default_factory=DisplayOptions)

    def run(self) -> int:
        self._check()
        found = find_device(self.devices)
        devices = share_devices(found, self.peers, self.ranks)
        demo = replace(self, spec=self.spec or ("small" if found.is_gpu else "tiny"))
        spec = demo.choose()
        output = open_output(
            choose_ui(self.ui), sys.stdout, sys.stderr, rounds=spec.run.rounds, terse=True, options=words_of(self.look)
        )
        if found.note:
            output.say(found.note)
        return run_demo(demo, output, spec, devices)

    def _check(self) -> None:
        if self.data is not None and not self.data.exists():
            raise BadInput(f"--data {self.data} does not exist; name a file or a folder")
        if self.peers % self.stages:
            raise BadInput(f"--peers is {self.peers}; clusters of {self.stages} homes take a multiple of that")
        if self.stages > 1 and self.ranks > 1:
            raise BadInput("--stages and --ranks do not go together: a home of a cluster trains on one device")

    def choose(self) -> RunSpec:
        """The spec with as many founders as there are peers or clusters. Raises BadSpec and BadInput."""
        asked = {"run.founders": self.peers // self.stages, "run.rounds": self.rounds, "run.seed": self.seed}
        if self.stages > 1:
            asked["model.config.tie_word_embeddings"] = False  # first and last stage are two homes
        fixed: dict[str, Any] = {key: value for key, value in asked.items() if value is not None}
        spec = choose_spec(self.spec, sets=self.sets, fixed=fixed)
        if spec.run.rounds == 0:
            raise BadInput(f"{self.spec} has no last round; say how many the demo shall make with --rounds")
        called = [each.path for each in spec.data.sources if each.source == "files"]
        if self.data is not None and not called and not spec.data.mix:
            own = {"data.source": "files", "data.path": self.data.name, "data.subset": "", "data.split": "train"}
            return choose_spec(self.spec, sets=self.sets, fixed=fixed | own)
        if called and self.data is None:
            raise BadInput(
                f"{self.spec} is on files, which it calls {' and '.join(map(repr, called))}; say which with --data PATH"
            )
        if spec.evaluate is None and spec.data.source == "stdlib":
            fixed |= {"evaluate.prompts": [PROMPT], "evaluate.every": max(1, spec.run.rounds // SAMPLES)}
            return choose_spec(self.spec, sets=self.sets, fixed=fixed)
        return spec


def run_demo(demo: DemoCommand, output: Output, spec: RunSpec, devices: Devices = ()) -> int:
    """Run the demo to its end; returns the exit code. `devices` of each peer are values of `settings.devices`; if
    empty, the peers choose. Raises RoundsFailed unless every round was committed with equal results."""
    with open_directory(demo.directory) as directory:
        write_atomic(directory / "spec.toml", dump(spec).encode())
        output.say(
            f"{demo.peers} peers train {spec.run.name}{_where(devices)} for {spec.run.rounds} rounds in {directory}"
        )
        events, went_well = directory / "events.jsonl", False
        try:
            with (
                ProcessGroup() as children,
                events.open("w", encoding="utf-8") as merged,
                contextlib.closing(DemoRun(children, output, merged, spec, directory)) as story,
            ):
                output.begin(events)
                story.start_bootstrap()
                story.run_peers(demo.peers, devices, demo.data, demo.stages)
            went_well = not children.interrupts and not story.fault
        finally:
            output.close(at_once=not went_well)
    if children.interrupts:
        return INTERRUPTED
    fault = story.fault or find_fault(story.swarm, story.names, spec.run.rounds, story.ends, story.returned)
    if fault:
        kept = f"logs are in {directory}" if demo.directory else "run again with --dir DIR to keep the logs"
        raise RoundsFailed(f"{fault}; {kept}")
    for sentence in (*summarise(story.swarm, spec.run.rounds), *next_commands(demo.directory)):
        output.say(sentence)
    return 0


def _where(devices: Devices) -> str:
    own = devices[0] if devices else ()
    if len(own) > 1:
        return f" on {len(own)} {'processor ranks' if own[0] == 'cpu' else 'GPUs'} each"
    return f" on {own[0]}" if own else ""


class DemoRun:
    """The child processes of one demo and what they have reported so far; `merged` receives all events in the order
    of reading."""

    def __init__(self, children: ProcessGroup, output: Output, merged: TextIO, spec: RunSpec, directory: Path) -> None:
        self.children, self.output, self.merged, self.spec, self.directory = children, output, merged, spec, directory
        self.swarm = SwarmState()
        self.names: list[str] = []
        self.fault = ""
        """Why the demo was cut short, in words; empty if it was not."""
        self.ends: dict[str, str] = {}
        """For each child that failed and did not come back, how it ended."""
        self.returned: set[str] = set()
        """Peers that failed, and that somebody has started again by hand."""
        self._tails: dict[str, EventTail] = {}
        """For each child that failed, what is written to its folder since then."""
        self._has_invite = False
        self._bootstrap: ChildProcess | None = None

    def start_bootstrap(self) -> None:
        """Start the node; the peers wait for its invite."""
        directory = self.directory / "bootstrap"
        where = [str(self.directory / "spec.toml"), "--dir", str(directory), "--listen", LOOPBACK]
        argv = python_module("bootstrap", *where)
        self._bootstrap = self.children.start("bootstrap", argv, directory / "bootstrap.log")

    def run_peers(self, count: int, devices: Devices = (), data: Path | None = None, stages: int = 1) -> None:
        """Start all peers at once, and follow them until all have ended or `fault` says why they cannot go on.

        They train on these devices, or on those that each chooses, and on `data` if the spec needs files. If `stages`
        is more than 1, that number of peers form a cluster, led by the first. The peers load their libraries while the
        node starts. Raises the error that kept the node from issuing an invite.
        """
        invite = self.directory / "bootstrap" / INVITE_FILE
        threads = max(1, (usable_cores() - 1) // count)
        for number, own in zip(range(1, count + 1), devices or ((),) * count, strict=True):
            self.names.append(name := f"peer-{number}")
            directory = self.directory / name
            settings = ["--set", f"settings.name={name}", "--set", f"settings.threads={threads}"]
            settings += ["--set", f"settings.devices={','.join(own)}"] if own else []
            settings += ["--set", f"settings.data_path={data.resolve()}"] if data else []
            lead = number - (number - 1) % stages
            if lead == number and stages > 1:
                settings += ["--set", f"settings.stages={stages}"]
            elif stages > 1:
                settings += ["--cluster", issue_in(self.directory / f"peer-{lead}").text()]
            words = ["--await", f"{BOOTSTRAP_S:.0f}", "--dir", str(directory), "--listen", LOOPBACK, *settings]
            self.children.start(name, python_module("peer", "join", str(invite), *words), directory / "peer.log")
        self._await_invite()
        deadline = time.monotonic() + START_S + round_limit_s(self.spec)
        while not self.fault and any(child is not self._bootstrap for child in self.children.running):
            match self._next():
                case EventPrinted(line=EventLine(event=RoundCommitted())):
                    deadline = time.monotonic() + round_limit_s(self.spec)
                case ChildExited(child=child):
                    self._check_founder(child)
            if time.monotonic() > deadline:
                limit_s = round_limit_s(self.spec)
                self.fault = f"nothing was committed after round {self.swarm.round} for {limit_s:.0f} s"
        self._take_returned()

    def _await_invite(self) -> None:
        began, ended, is_told = time.monotonic(), list[ChildProcess](), False
        while not self._has_invite and not self.children.interrupts:
            if not is_told and time.monotonic() > began + QUIET_S:
                is_told = True
                self.output.say("the bootstrap node and the peers load their libraries, which takes some seconds")
            match self._next():
                case ChildExited(child=child) if child is self._bootstrap:
                    raise error_of(child)
                case ChildExited(child=child):
                    ended.append(child)
            if time.monotonic() > began + BOOTSTRAP_S:
                raise Unreachable(f"the bootstrap node issued no invite within {BOOTSTRAP_S:.0f} s")
        for child in ended:
            self._check_founder(child)

    def _check_founder(self, child: ChildProcess) -> None:
        """If a peer ends before the first round, set `fault`, since the others would wait for it."""
        if not self._has_begun and not self.children.interrupts:
            self.fault = f"{child.name} ended before round 0: {child.describe_end()}"

    def _next(self) -> EventPrinted | ChildExited | InterruptReceived | None:
        """Wait at most a second for the next happening, and show it."""
        happened = self.children.next(timeout_s=1.0)
        self.output.tick(time.time())
        self._take_returned()
        match happened:
            case EventPrinted(child=child, line=line) if child is self._bootstrap:
                if isinstance(line.event, InviteIssued):
                    self._has_invite = True
                if isinstance(line.event, AlertRaised) and line.event.code != FINGERPRINT:
                    self.output.say(f"bootstrap: {line.event.level}: {line.event.text}")
            case EventPrinted(line=line):
                self._take(line)
            case ChildExited(child=child):
                self._note_end(child)
            case InterruptReceived() if self.children.interrupts == 1:
                self.output.say("stopping; once more to stop at once")
        return happened

    def _take(self, line: EventLine) -> None:
        self.swarm = apply(self.swarm, line)
        with raising_disk_full(self.directory):  # flushed: whoever follows the file sees it
            print(format_line(line), file=self.merged, flush=True)
        self.output.show(line)

    def _take_returned(self) -> None:
        """Whoever is started again by hand is no child of ours: its events are in its own folder."""
        for name, tail in self._tails.items():
            for line in filter(None, tail.take(SLICE)):
                if isinstance(line.event, PeerStarted):
                    self.returned.add(name)
                    self.ends.pop(name, None)
                self._take(line)

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()

    def _note_end(self, child: ChildProcess) -> None:
        if child.bad_lines:
            self.output.say(f"{child.name}: lines of its output that are no events: {child.bad_lines}")
        if child.exit_code != 0 and not self.children.interrupts:
            self.ends[child.name] = child.describe_end()
            self._tails[child.name] = EventTail(child.log.parent / "events.jsonl")
            self._tails[child.name].skip_to_end()
            self.output.say(f"{child.name}: {child.describe_end()}")

    @property
    def _has_begun(self) -> bool:
        """Whether training has begun. If a founder ends before that, the others wait for it."""
        return self.swarm.round > 0 or any(view.steps for view in self.swarm.reporting)


def round_limit_s(spec: RunSpec) -> float:
    """The longest time of one round: training, then two coordinators that both run into every deadline."""
    table = spec.round
    return table.max_train_s + table.gather_s + 2 * (table.silence_s + table.exchange_s + table.ack_s)


def summarise(swarm: SwarmState, rounds: int) -> list[str]:
    peers = [view for view in swarm.reporting if not view.lead]
    last, workers = peers[0].commits[-1], len(swarm.reporting) - len(peers)
    helped = f" and their {workers} workers" if workers else ""
    sentences = [
        f"{rounds} of {rounds} rounds committed by all {len(peers)} peers{helped} with equal bits "
        f"(digest {last.digest[:12]}, state {last.state[:12]})"
    ]
    if swarm.losses:
        (first_round, first), (last_round, final) = swarm.losses[0], swarm.losses[-1]
        sentences.append(
            f"held-out loss {first:.3f} (round {first_round}) → {final:.3f} (round {last_round}); lower is better"
        )
    sent = format_bytes(figures.round_traffic(swarm).sent)
    sentences.append(f"{swarm.tokens:,} tokens, {sent} sent in rounds, {swarm.seconds:.0f} s")
    samples = {sample.round: sample for sample in swarm.samples if sample.prompt == swarm.samples[0].prompt}
    for round in sorted({min(samples), max(samples)}) if samples else ():
        when = f"after round {round}" if round else "before training"
        sentences.append(f"{when} it continued {samples[round].prompt!r} with {samples[round].text[:SAMPLE]!r}")
    return sentences


def next_commands(directory: Path | None) -> list[str]:
    """What a person may want to do after a demo, as two commands."""
    if directory is None:
        return ["keep one to look at again: homefires demo --dir my-demo", "start a run of your own: homefires new"]
    where = quoted(directory)
    return [f"talk to what it made: homefires chat {where}/peer-1", f"one page about it: homefires report {where}"]


@contextlib.contextmanager
def open_directory(chosen: Path | None) -> Iterator[Path]:
    """A private folder for the demo: `chosen`, which must be empty and is kept, or a temporary one."""
    if chosen is None:
        # Sockets lie below it, and their whole path may have 107 bytes.
        with tempfile.TemporaryDirectory(prefix="hf-") as temporary:
            yield Path(temporary)
        return
    if chosen.exists() and (not chosen.is_dir() or any(chosen.iterdir())):
        raise BadInput(f"--dir {chosen} is not an empty folder; name a new one")
    was_there = chosen.exists()
    chosen.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        yield chosen.resolve()
    finally:
        if not was_there and not any(chosen.iterdir()):  # as on a full disk
            chosen.rmdir()


def find_fault(
    swarm: SwarmState, expected: Sequence[str], rounds: int, ends: Mapping[str, str], returned: Collection[str] = ()
) -> str | None:
    """One sentence on the first problem, or None.

    `expected` are the names of the started peers, `rounds` is the number of rounds that each had to commit, and `ends`
    says in words how a peer failed. One that has `returned` had to commit those from its first one on.
    """
    by_name = {view.name: view for view in swarm.reporting}
    for name in expected:
        if name not in by_name:
            return f"{name} never reported anything" + _because(ends.get(name, ""))
    if figures.agreement(swarm).differs is not None:
        return agreement_words(swarm, labels_of(swarm))
    known = range(max(1, rounds + 1 - MAX_COMMITS), rounds + 1)  # of a longer demo not the oldest
    for view in (by_name[name] for name in expected):
        committed = {commit.round for commit in view.commits}
        first = min(committed, default=rounds) if view.name in returned else 0
        if missing := set(known) - committed - set(range(first)):
            last, why = max(committed, default=0), _because(ends.get(view.name, view.why))
            return f"{view.label} did not commit round {min(missing)} of {rounds}, its last is {last}{why}"
    return None


def _because(why: str) -> str:
    return f": {why}" if why else ""
