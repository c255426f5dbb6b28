"""`python -m tests.benchmarks obeyed`: how soon a peer with a real model pauses and leaves, whatever its trainer does.

The product's session, trainer and checkpoints; only the link plays its part. Two figures for each case: until people
read that it pauses (or the others hear that it leaves), and until its trainer computes nothing any more.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import torch

from peer.consensus.protocol.head import genesis_anchor
from peer.node.lifecycle.inputs_effects import Apply, Evaluate, LeaveAsked, Post, RoundDecided, Save, Work
from peer.node.lifecycle.state import Offered
from peer.node.limits.desired_state import Intent
from peer.node.telemetry.reporter import Reporter
from peer.schema import ipc
from peer.schema.events import Event
from peer.schema.ipc import Leave
from peer.schema.spec import RunSpec, from_mapping
from peer.session import Inbox, Session
from peer.training.checkpoint.checkpoint import Checkpoints
from peer.training.train.trainer import LocalTrainer
from peer.training.train.worker import TrainerWorker
from tests.decided import DecidedRound
from tests.played_link import PlayedLink, watched

BAR_S = 2.0
WAIT_S = 300.0
ME, OTHER = "p0", "p1"
CASES: tuple[type[Work], ...] = (Apply, Save, Evaluate)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("obeyed", help="how soon a peer with a large model pauses and leaves; 3 minutes")
    parser.add_argument("--hidden", type=int, default=960, help="width of the model; 960 is 134 M parameters")
    parser.set_defaults(run=_run)


def _spec(hidden: int) -> RunSpec:
    config = {
        "hidden_size": hidden, "intermediate_size": hidden * 8 // 3, "num_hidden_layers": 12,
        "num_attention_heads": 8, "num_key_value_heads": 8,
    }  # fmt: skip
    return from_mapping(
        {
            "run": {"name": "obeyed"},
            "model": {"architecture": "llama", "context": 64, "config": config},
            "data": {"eval_sequences": 256},
            "inner": {"sequences": 1},
            "round": {"steps": 1},
        },
        "obeyed",
    )


class Case:
    """One peer at `anchor`, up to the middle of what its trainer is to do."""

    def __init__(self, trainer: LocalTrainer, worker: TrainerWorker, work: type[Work], anchor: bytes = b"") -> None:
        """Without `anchor` at the first one."""
        self.events: list[Event] = []
        self.inbox, self.link, self.reporter = Inbox(), PlayedLink(), Reporter(self.events.append)
        self.trainer, self.worker, self.work = trainer, worker, work
        self.anchor = anchor or genesis_anchor(trainer.spec.digest(), (ME, OTHER), trainer.start.state)
        self.session = Session(
            self.link, self.inbox, trainer, worker, self.reporter, anchor,  # type: ignore[arg-type]
        )  # fmt: skip
        self.stepped = watched(self.session)
        self.begun = threading.Event()
        vars(worker)["do"] = self._do
        self.thread = threading.Thread(target=self._live, daemon=True)
        self.thread.start()

    def _live(self) -> None:
        with closing(self.session):
            self.session.run()

    def _do(self, work: Work, post: Post, stop: Callable[[], bool]) -> None:
        """In the trainer's thread: a short piece of work may be over before another thread has looked."""
        if isinstance(work, self.work):
            self.begun.set()
        TrainerWorker.do(self.worker, work, post, stop)

    def until(self, reached: Callable[[], object]) -> None:
        with self.stepped:
            assert self.stepped.wait_for(reached, WAIT_S)

    def is_at_work(self) -> bool:
        return isinstance(self.session.life.work, self.work)

    def begin(self) -> None:
        """It meets the others; for an update, it also hears of one that it takes part in."""
        members = (ME, OTHER) if self.work is Evaluate else ("another", ME)
        for message in (ipc.BeginAt(self.anchor, members), ipc.ResumeAt(self.anchor), ipc.InStep(True)):
            self.inbox.put(message)
        if self.work is Apply:
            self.until(
                lambda: isinstance(self.session.life.round.submission, Offered) and self.session.life.work is None
            )
            decided = DecidedRound([self.trainer], self.anchor)
            self.worker._load = decided.objects.__getitem__  # type: ignore[assignment]
            self.inbox.put(lambda now: RoundDecided(now, decided.update, decided.next_anchor, 0, 0, now))
        assert self.begun.wait(WAIT_S)

    def ask(self, word: str) -> tuple[float, float]:
        """Seconds until it is obeyed, and until the trainer is idle."""
        asked_at = time.monotonic()
        obeyed_s = self.obeyed_s(word)
        self.until(lambda: not self.is_at_work())
        return obeyed_s, time.monotonic() - asked_at

    def obeyed_s(self, word: str) -> float:
        """Seconds until people read that it pauses, or the others hear that it leaves."""
        asked_at = time.monotonic()
        if word == "pause":
            self.reporter.wishes.wish(Intent.PAUSE)
            self.until(lambda: self.reporter.state == "PAUSED")
        else:
            self.inbox.put(LeaveAsked)
            self.until(lambda: Leave(finished=False) in self.link.told)
        return time.monotonic() - asked_at

    def end(self) -> None:
        self.inbox.put(LeaveAsked)
        self.thread.join(WAIT_S)


def _run(options: argparse.Namespace) -> int:
    spec, met = _spec(options.hidden), True
    print("| in the middle of | word | obeyed after | done with it after |\n| --- | --- | --- | --- |")
    for work in CASES:
        for word in ("pause", "leave"):
            with tempfile.TemporaryDirectory() as folder:
                torch.manual_seed(0)
                trainer = LocalTrainer(spec, ME, Path(folder) / "contributions", torch.device("cpu"))
                checkpoints, warn = Checkpoints(Path(folder) / "checkpoints"), Reporter(lambda event: None).warn
                case = Case(trainer, TrainerWorker(trainer, checkpoints, Path(folder), warn), work)
                case.begin()
                obeyed_s, idle_s = case.ask(word)
                case.end()
            met &= obeyed_s <= BAR_S
            print(f"| {work.__name__} | {word} | {obeyed_s:.3f} s | {idle_s:.1f} s |", flush=True)
    print(f"{case.trainer.parameters / 1e6:.0f} M parameters; bar: obeyed within {BAR_S:g} s")
    return 0 if met else 1
