"""`python -m tests.tui.recordings.make`: makes `demo.jsonl` beside this file anew (about two minutes).

It is `homefires demo` itself with four peers, but that its peers run with the fault kit of `peer.testing`, and that
this machine does to them what happens to people. What is in the recording:

    peer-1   nothing happens to it
    peer-2   has a slow uplink in one round (LATE), and later stands still for some rounds (ABSENT, STALE)
    peer-3   is killed and comes back: ABSENT, SYNCING, then accepted again
    peer-4   its numbers are wrong in two rounds, first those of one layer, then all: ANOMALY with the layer

The bars of the dashboard and of the report are about these facts; `tests/tui/test_recording_facts.py` has them in full.
Times, losses and peer ids are others each time, so pictures made from the recording change with it.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TextIO

from peer.schema.spec import dump
from peer.testing.fault_channel import Orders, Strike, end_struck, make_fifos, open_struck, parse_strike, throw
from peer.testing.faults import Crash, Fault, Odd, Slow, Stall
from tui.commands.demo import DemoCommand, DemoRun, open_directory
from tui.output.plain import PlainOutput
from tui.processes.children import ChildExited, ChildProcess, EventPrinted, InterruptReceived, ProcessGroup

RECORDING = Path(__file__).with_name("demo.jsonl")
DIRECTORY = Path("/tmp/homefires-demo")
"""Events name paths below it, so it is the same on every machine."""

ODD_LAYER = "model.layers.2"
MISHAPS: tuple[Fault, ...] = (
    Slow(peer=1, phase="exchange", round=6, seconds=8.0, bytes_per_s=6000.0),
    Crash(peer=2, phase="train", round=8, back_after_s=6.0),
    Odd(peer=3, round=11, factor=8.0, layer=ODD_LAYER),
    Stall(peer=1, phase="prepare", round=13, seconds=22.0),
    Odd(peer=3, round=17, factor=6.0),
)
"""`peer` counts from 0: peer-1 is 0."""

STEP_S = {"peer-1": 0.05, "peer-2": 0.08, "peer-3": 0.06, "peer-4": 0.12}
"""Shortest inner step: so unlike are people's machines."""
PEERS = tuple(STEP_S)
LOOK_S = 0.2
"""What struck is looked after this often."""

DEMO = DemoCommand(
    peers=4,
    spec="micro",
    rounds=20,
    directory=DIRECTORY,
    sets=(
        "run.name=hearth",
        "model.config.num_hidden_layers=4",
        "inner.schedule_rounds=24",
        "round.max_train_s=4",
        "round.exchange_s=6",
        "aggregation.warmup_rounds=4",
    ),
)


class Unlucky(ProcessGroup):
    """Starts the demo's peers with the fault kit, and sees to what strikes: who stands still goes on, who died is
    started again."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._strikes: queue.SimpleQueue[Strike] = queue.SimpleQueue()
        self._later: list[tuple[float, Callable[[], object]]] = []
        self._argv: dict[str, Sequence[str]] = {}
        threading.Thread(target=self._hear, args=(open_struck(directory),), daemon=True).start()

    def start(self, name: str, argv: Sequence[str], log: Path) -> ChildProcess:
        """As `ProcessGroup` does; a peer is a faulty one, with its orders."""
        if name in PEERS and name not in self._argv:
            argv = ["peer.testing.faulty_peer" if word == "peer" else word for word in argv if word != "join"]
            argv += ["--set", f"settings.min_step_s={STEP_S[name]}"]
            self._argv[name] = argv
            make_fifos(self._directory / name)
            self._order(name, MISHAPS)
        return super().start(name, argv, log)

    def next(self, timeout_s: float) -> EventPrinted | ChildExited | InterruptReceived | None:
        """As `ProcessGroup` does, but for the end of a peer that comes back."""
        while not self._strikes.empty():
            self._on_strike(self._strikes.get())
        now = time.monotonic()
        due = [call for at, call in self._later if at <= now]
        self._later = [(at, call) for at, call in self._later if at > now]
        for call in due:
            call()
        happened = super().next(min(timeout_s, LOOK_S))
        if isinstance(happened, ChildExited) and self._comes_back(happened.child):
            return None
        return happened

    def close(self) -> None:
        """End the thread that hears of strikes."""
        end_struck(self._directory)

    def _comes_back(self, child: ChildProcess) -> bool:
        """Whether a crash has killed it; then it is started again in time."""
        if child.exit_code != -signal.SIGKILL or self.interrupts:
            return False
        crash = next(fault for fault in MISHAPS if isinstance(fault, Crash) and PEERS[fault.peer] == child.name)
        assert crash.back_after_s is not None
        # What has killed it would strike the new process, too, which goes on in the same round.
        self._order(child.name, [fault for fault in MISHAPS if fault != crash])
        self._after(crash.back_after_s, lambda: self.start(child.name, self._argv[child.name], child.log))
        return True

    def _order(self, name: str, faults: Sequence[Fault]) -> None:
        index = PEERS.index(name)
        mine = {MISHAPS.index(fault): fault for fault in faults if index in fault.victims}
        Orders(peer=index, ids=(), faults=mine).write(self._directory / name)

    def _hear(self, struck: TextIO) -> None:
        with struck:
            while line := struck.readline().strip():
                self._strikes.put(parse_strike(line))

    def _on_strike(self, strike: Strike) -> None:
        fault, name = MISHAPS[strike.number], PEERS[strike.peer]
        if isinstance(fault, Stall):
            child = next(child for child in self.running if child.name == name)
            self._after(fault.seconds, lambda: os.killpg(child.process.pid, signal.SIGCONT))
        elif isinstance(fault, Slow) and not strike.by_link:
            throw(self._directory / name, fault)

    def _after(self, seconds: float, call: Callable[[], object]) -> None:
        self._later.append((time.monotonic() + seconds, call))


def main() -> int:
    """Make the recording; the exit code."""
    parser = argparse.ArgumentParser(description="Record a demo with mishaps.")
    parser.add_argument("--to", type=Path, default=RECORDING, help=f"file to write (default {RECORDING.name} here)")
    to = parser.parse_args().to
    spec = DEMO.choose()
    with open_directory(DIRECTORY) as directory:
        (directory / "spec.toml").write_text(dump(spec))
        events = (directory / "events.jsonl").open("w", encoding="utf-8")
        with Unlucky(directory) as children, closing(children), events as merged:
            story = DemoRun(children, PlainOutput(sys.stdout, rounds=spec.run.rounds), merged, spec, directory)
            story.start_bootstrap()
            story.run_peers(DEMO.peers)
    if children.interrupts or story.fault or story.ends:
        print(f"not recorded: {story.fault or story.ends or 'interrupted'}; see {directory}", file=sys.stderr)
        return 1
    shutil.copyfile(directory / "events.jsonl", to)
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
