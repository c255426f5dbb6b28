"""`python -m tests.benchmarks memory`: what a peer takes of main memory beside training, and what holds up its steps.

A 134 M Llama on the processor, without overlap. One child only trains; another one submits, writes a checkpoint while
it waits for the others, applies an update, and writes a snapshot and a checkpoint beside its next steps. Peaks are the
kernel's (`VmHWM`), set back between the phases.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from peer.consensus.protocol.encoding import digest
from peer.node.lifecycle.inputs_effects import Apply, Done, LifeInput, Save, Saved, Step, Stepped, Submit, Work, Written
from peer.node.store import snapshots
from peer.node.store.run_directory import ChainBase
from peer.schema.spec import RunSpec, from_mapping
from peer.training.checkpoint.checkpoint import Checkpoints
from peer.training.checkpoint.saver import SnapshotWriter
from peer.training.data.open_source import open_source
from peer.training.data.sampler import ShardSampler
from peer.training.model.build import build
from peer.training.outer.outer_state import OuterState
from peer.training.train.backend import SingleDevice
from peer.training.train.trainer import LocalTrainer
from peer.training.train.worker import TrainerWorker
from tests.decided import DecidedRound
from tests.stepping import never

ME, FIRST = "p0", digest("anchor", 0)
BYTES_PER_PARAMETER, MORE_BYTES = 8, 1 << 30
WAIT_BAR_S = 0.05
WAIT_S, CHILD_S = 240.0, 280.0
STEPS = 2


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("memory", help="what a peer takes beside training, and what its steps wait; 3 minutes")
    parser.add_argument("--hidden", type=int, default=960, help="width of the model; 960 is 134 M parameters")
    parser.add_argument("--context", type=int, default=256, help="tokens of a sequence; a step has two")
    parser.add_argument("--child", choices=["alone", "whole"], help=argparse.SUPPRESS)
    parser.set_defaults(run=_run)


def _spec(hidden: int, context: int) -> RunSpec:
    config = {
        "hidden_size": hidden, "intermediate_size": hidden * 8 // 3, "num_hidden_layers": 12,
        "num_attention_heads": 8, "num_key_value_heads": 8,
    }  # fmt: skip
    return from_mapping(
        {
            "run": {"name": "memory"},
            "model": {"architecture": "llama", "context": context, "config": config},
            "inner": {"sequences": 1, "accumulation": 2},
            "round": {"steps": STEPS},
        },
        "memory",
    )


def _run(arguments: argparse.Namespace) -> int:
    if arguments.child:
        spec = _spec(arguments.hidden, arguments.context)
        print(json.dumps(_alone(spec) if arguments.child == "alone" else _whole(spec)))
        return 0
    alone, whole = (_child(arguments, mode) for mode in ("alone", "whole"))
    parameters, training = whole.pop("parameters"), alone["training"]
    allowed = training + BYTES_PER_PARAMETER * parameters + MORE_BYTES
    print(f"{parameters / 1e6:.0f} M parameters; training alone: {training / 1e9:.2f} GB")
    worst = max(whole["peaks"].values())
    for phase, peak in whole["peaks"].items():
        more = (peak - training) / parameters
        print(f"  {phase:<24} {peak / 1e9:6.2f} GB, {more:5.1f} bytes per parameter more")
    print(f"bar: at most {allowed / 1e9:.2f} GB: {'met' if worst <= allowed else 'missed'}")
    longest_s = max(whole["waits_s"].values())
    for phase, waited_s in whole["waits_s"].items():
        print(f"  a step beside a {phase:<12} waited {1e3 * waited_s:.0f} ms")
    print(f"bar: {1e3 * WAIT_BAR_S:.0f} ms: {'met' if longest_s <= WAIT_BAR_S else 'missed'}")
    print(f"checkpoint: {whole['checkpoint_bytes'] / parameters:.1f} bytes per parameter in {whole['saved_s']:.1f} s")
    return int(worst > allowed or longest_s > WAIT_BAR_S)


def _child(arguments: argparse.Namespace, mode: str) -> dict[str, Any]:
    words = [sys.executable, "-m", "tests.benchmarks", "memory", "--child", mode]
    words += ["--hidden", str(arguments.hidden), "--context", str(arguments.context)]
    ended = subprocess.run(words, check=True, stdout=subprocess.PIPE, timeout=CHILD_S)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def _alone(spec: RunSpec) -> dict[str, int]:
    batches = ShardSampler(open_source(spec, spec.data.path), spec, ME, (ME,), {})
    loop = SingleDevice(build(spec), spec, batches, torch.device("cpu"))
    loop.step(0, 0)
    peaks: dict[str, int] = {}
    with _peak(peaks, "training"):
        loop.step(0, 1)
    return peaks


@contextmanager
def _peak(peaks: dict[str, int], phase: str) -> Iterator[None]:
    """Note the most that was resident inside."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    yield
    lines = Path("/proc/self/status").read_text().splitlines()
    peaks[phase] = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


class _Driven:
    """A worker that is told what to do, and what comes of it."""

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        self.trainer = LocalTrainer(spec, ME, folder / "contributions", torch.device("cpu"))
        self.objects = folder / "chain" / "objects"
        self.objects.mkdir(parents=True)
        self.worker = TrainerWorker(self.trainer, Checkpoints(folder / "checkpoints"), folder, print)
        self.heard: queue.Queue[LifeInput] = queue.Queue()

    def do(self, work: Work) -> Done:
        self.worker.do(work, lambda said: self.heard.put(said(time.monotonic())), never)
        return self.hear(Done)

    def hear(self, kind: type[Any]) -> Any:
        while not isinstance(found := self.heard.get(timeout=WAIT_S), kind):
            self.heard.put(found)
        return found

    def step(self, number: int) -> float:
        """Seconds that it waited."""
        stepped = self.do(Step(most=1, position=float(number), members=(ME,))).result
        assert isinstance(stepped, Stepped)
        return stepped.waited_s

    def decide(self) -> DecidedRound:
        """The means are on disk alone: another process has made them."""
        decided = DecidedRound([self.trainer], FIRST)
        for name, payload in decided.objects.items():
            (self.objects / name.hex()).write_bytes(payload)
        decided.objects.clear()
        return decided


def _whole(spec: RunSpec) -> dict[str, Any]:
    peaks: dict[str, int] = {}
    waits_s: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        peer = _Driven(spec, Path(folder))
        for number in range(STEPS):
            peer.step(number)
        with _peak(peaks, "submit"):
            peer.do(Submit(FIRST, None))
            peer.hear(Written)
        decided = peer.decide()
        with _peak(peaks, "checkpoint"):
            peer.do(Save(FIRST, "due"))
            saved = peer.hear(Saved)
        with _peak(peaks, "apply"):
            peer.do(Apply(decided.update, beside=False))
        with _peak(peaks, "snapshot"):
            waits_s["snapshot"] = _beside_snapshot(peer, Path(folder), ChainBase.after([decided.update]))
        with _peak(peaks, "checkpoint beside steps"):
            peer.do(Save(decided.next_anchor, "due"))
            waits_s["checkpoint"] = max(peer.step(number) for number in range(1, 3))
            saved = peer.hear(Saved)
    return {
        "peaks": peaks, "waits_s": waits_s, "parameters": peer.trainer.parameters,
        "checkpoint_bytes": saved.size_bytes, "saved_s": saved.seconds,
    }  # fmt: skip


def _beside_snapshot(peer: _Driven, folder: Path, base: ChainBase) -> float:
    """A step while one is written, whose chain has no other blocks."""
    written = threading.Event()

    def write(writer: SnapshotWriter, anchor: OuterState, name: bytes, state: bytes) -> None:
        snapshots.write(
            folder, anchor.sizes, anchor.chunks, run=bytes(32), base=base, cursors=anchor.cursors, state=state
        )
        written.set()

    write_one: Callable[..., None] = write
    SnapshotWriter._write = write_one  # type: ignore[method-assign]
    peer.worker._snapshots.start(peer.trainer.anchor, base.head.anchor, peer.trainer.anchor.state_digest())
    waited_s = peer.step(0)
    assert written.wait(WAIT_S)
    return waited_s
