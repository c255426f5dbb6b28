"""CUDA bars that take one trainer: its arithmetic, what a round costs it, what holds it up, how soon it leaves."""

from __future__ import annotations

import ctypes
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from peer.consensus.protocol.encoding import digest
from peer.node.lifecycle import state as life_state
from peer.node.lifecycle.inputs_effects import Apply, Done, LifeInput, Save, Saved, Step, Submit, Work, Written
from peer.node.store import snapshots
from peer.node.store.run_directory import ChainBase
from peer.schema.spec import RunSpec
from peer.training.checkpoint import saver
from peer.training.checkpoint.capture import Capture
from peer.training.checkpoint.checkpoint import Checkpoints
from peer.training.checkpoint.saver import CheckpointSaver, SnapshotWriter
from peer.training.model.build import build
from peer.training.outer.outer_state import OuterState
from peer.training.train.trainer import LocalTrainer
from peer.training.train.worker import TrainerWorker
from tests.benchmarks.cuda_models import spec_of
from tests.benchmarks.obeyed import ME, Case
from tests.decided import DecidedRound
from tests.golden_bits import GOLDEN, digest_of
from tests.stepping import never

if TYPE_CHECKING:
    from tests.benchmarks.cuda_bars import Say, Setting

FIRST = digest("anchor", 0)
STEPS, WARM_STEPS, ROUND_STEPS = 20, 3, 100
WAIT_S = 150.0
LOOK_S = 0.02
PHASES = {
    "step": "in an inner step", "submit": "while it submits", "apply": "while an update is applied",
    "checkpoint": "while a checkpoint is written",
}  # fmt: skip
WORKS: dict[str, type[Work]] = {"step": Step, "submit": Submit, "apply": Apply, "checkpoint": Save}

T = TypeVar("T")


# ---- bits


def same_bits(setting: Setting, say: Say) -> None:
    """All 2,000 layers of each operation; of one operation if it shall only be seen to work."""
    operations = list(GOLDEN)[:1] if setting.smoke else list(GOLDEN)
    say("bits", sum(digest_of(operation, setting.device) != GOLDEN[operation] for operation in operations))


# ---- a round


def round_cost(model: str, setting: Setting, say: Say) -> None:
    """Of a peer alone, which overlaps nothing; and how fast it steps beside a loop that does nothing else."""
    spec = spec_of(model, tiny=setting.smoke)
    bare_s = _bare_step_s(spec, setting)
    peer = Driven(spec, setting)
    step_s = _say_round_cost(model, peer, say)
    say("speed, of a bare loop's", bare_s / step_s)
    _say_copies(setting, say)


def life_of_a_billion(setting: Setting, say: Say) -> None:
    """1.1 B: a round, what lies in memory, checkpoint and snapshot beside steps, and leaving at any time."""
    beside = Host()
    peer = Driven(spec_of("1.1 B", tiny=setting.smoke, round={"steps": 1}), setting)
    step_s = _say_round_cost("1.1 B", peer, say, beside)
    say("memory", beside.peak_bytes() / peer.trainer.parameters)
    if setting.device.type == "cuda":
        say("peak device bytes per parameter", torch.cuda.max_memory_allocated() / peer.trainer.parameters)
    for phase in PHASES:  # in this order: the first has no step behind it, the last one leaves a submission
        say(f"leave {phase}", peer.leave_s(phase))
    _say_stalls(peer, step_s, say)


def _say_round_cost(model: str, peer: Driven, say: Say, beside: Host | None = None) -> float:
    """Two rounds, of which the second counts: the first takes memory and loads kernels. Returns seconds of a step."""
    step_s = peer.step_s(STEPS)
    for _ in range(2):
        peer.step_s(1)
        with beside.watched() if beside else nullcontext():
            submit_s = peer.timed(peer.submit)
        decided = peer.decide()
        with beside.watched() if beside else nullcontext():
            apply_s = peer.timed(lambda made=decided: peer.apply(made))  # type: ignore[misc]
    for name, seconds in {"step": step_s, "submit": submit_s, "apply": apply_s}.items():
        say(f"{name}, s", seconds)
    say(f"share {model}", 100 * (submit_s + apply_s) / (ROUND_STEPS * step_s))
    return step_s


def _bare_step_s(spec: RunSpec, setting: Setting) -> float:
    """What anybody would write: one micro-batch that lies on the device, again and again; nothing is read back."""
    device, config = setting.device, spec.model.config
    model = build(spec).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=device.type == "cuda")
    shape = (spec.inner.sequences, spec.model.context + 1)
    tokens_BT = torch.randint(0, min(256, int(config["vocab_size"])), shape, device=device)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            logits_BTV = model(input_ids=tokens_BT[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), tokens_BT[:, 1:].flatten())
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARM_STEPS):
        step()
    count = 1 if setting.smoke else STEPS
    return seconds_of(lambda: [step() for _ in range(count)], device) / count


def _say_copies(setting: Setting, say: Say) -> None:
    """Device to main memory, which is for information: 256 MB at once, pageable and pinned."""
    values = torch.zeros(1 << (16 if setting.smoke else 26), device=setting.device)
    for kind in ("pageable", "pinned") if setting.device.type == "cuda" else ("pageable",):
        room = torch.empty(values.shape, pin_memory=kind == "pinned")
        room.copy_(values)
        say(f"copied {kind}, GB/s", values.nbytes / 1e9 / seconds_of(lambda to=room: to.copy_(values), setting.device))


# ---- what holds it up


def _say_stalls(peer: Driven, step_s: float, say: Say) -> None:
    """As shares of training: the lifecycle has each of them take so much of the time and no more."""
    anchor = peer.anchor
    held_s, saved = peer.beside_steps(lambda: peer.do(Save(anchor, "due")), Saved, step_s)
    say("checkpoint", 100 * life_state.SAVE_SHARE * held_s / saved.seconds)
    say("checkpoint, s", saved.seconds)
    say("checkpoint, bytes per parameter", saved.size_bytes / peer.trainer.parameters)
    saved_at = Path(saved.path)
    for path in saved_at.iterdir():
        path.unlink()  # the device machine's disk has room for one
    decided = peer.decide()
    peer.apply(decided)
    began_at = time.monotonic()
    held_s, _ = peer.beside_steps(lambda: peer.begin_snapshot(decided), SnapshotIsThere, step_s)
    say("snapshot", 100 * saver.SHARE * held_s / (time.monotonic() - began_at))


class SnapshotIsThere:
    """Heard when a snapshot is on disk."""


class Unwritten(Checkpoints):
    """Checkpoints that a peer writes for as long as somebody holds them, and that take no disk."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()

    def write(self, capture: Capture) -> Path:
        with capture.being_read():
            assert self.go_on.wait(WAIT_S)
        return Path("nowhere")


class Driven:
    """A trainer on the device under its worker, as a lifecycle drives it."""

    def __init__(self, spec: RunSpec, setting: Setting) -> None:
        self.setting, self.folder, self.anchor = setting, setting.folder, FIRST
        self.trainer = LocalTrainer(spec, ME, self.folder / "contributions", setting.device)
        self._objects = self.folder / "chain" / "objects"
        self._objects.mkdir(parents=True)
        self.worker = TrainerWorker(self.trainer, Checkpoints(self.folder / "checkpoints"), self.folder, print_warning)
        self._heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.step_s(WARM_STEPS)

    def do(self, work: Work) -> Done:
        """Returns when the trainer is free again."""
        self.worker.do(work, lambda said: self._heard.put(said(time.monotonic())), never)
        done: Done = self.hear(Done)
        return done

    def hear(self, kind: type[T]) -> T:
        """The next one of this kind; what was heard of others stays."""
        others: list[LifeInput] = []
        until = time.monotonic() + WAIT_S
        while not isinstance(found := self._heard.get(timeout=max(0.0, until - time.monotonic())), kind):
            others.append(found)
        for other in others:
            self._heard.put(other)
        return found

    def timed(self, work: Callable[[], object]) -> float:
        return seconds_of(work, self.setting.device)

    def step_s(self, count: int) -> float:
        """Seconds of each of so many steps."""
        times = 1 if self.setting.smoke else count
        steps = [Step(most=1, position=0.0, members=(ME,)) for _ in range(times)]
        return statistics.median(self.timed(lambda each=step: self.do(each)) for step in steps)  # type: ignore[misc]

    def submit(self) -> None:
        """Until it is on disk."""
        self.do(Submit(self.anchor, None))
        self.hear(Written)

    def decide(self) -> DecidedRound:
        """The means are on disk alone: another process has made them."""
        decided = DecidedRound([self.trainer], self.anchor)
        for name, payload in decided.objects.items():
            (self._objects / name.hex()).write_bytes(payload)
        decided.objects.clear()
        return decided

    def apply(self, decided: DecidedRound) -> None:
        self.do(Apply(decided.update, beside=False))
        self.anchor = decided.next_anchor

    def beside_steps(self, begin: Callable[[], object], ends: type[T], step_s: float) -> tuple[float, T]:
        """Seconds that steps lose from `begin` until `ends` is heard, beyond their usual time; and what was heard."""
        lost_s, waits_until = self.timed(begin), time.monotonic() + WAIT_S
        while True:
            lost_s += max(0.0, self.step_s(1) - step_s)
            with suppress(queue.Empty):
                heard = self._heard.get_nowait()
                if isinstance(heard, ends):
                    return lost_s, heard
                self._heard.put(heard)
            assert time.monotonic() < waits_until, f"no {ends.__name__} within {WAIT_S:.0f} s"

    def begin_snapshot(self, decided: DecidedRound) -> None:
        """Of the anchor where it stands, whose chain has no other blocks."""
        base = ChainBase.after([decided.update])

        def write(writer: SnapshotWriter, anchor: OuterState, name: bytes, state: bytes) -> None:
            snapshots.write(
                self.folder, anchor.sizes, anchor.chunks, run=bytes(32), base=base, cursors=anchor.cursors, state=state
            )
            self._heard.put(SnapshotIsThere())

        write_one: Callable[..., None] = write
        SnapshotWriter._write = write_one  # type: ignore[method-assign]
        anchor = self.trainer.anchor
        self.worker._snapshots.start(anchor, base.head.anchor, anchor.state_digest())

    def leave_s(self, phase: str) -> float:
        """Seconds until the others have heard that it leaves, and the trainer is free but for a checkpoint."""
        checkpoints, saver, load = Unwritten(), self.worker._saver, self.worker._load
        self.worker._saver = CheckpointSaver(checkpoints)
        case = Case(self.trainer, self.worker, WORKS[phase], self.anchor)
        if phase == "checkpoint":
            checkpoints.go_on.clear()
        case.begin()
        obeyed_s, idle_s = case.ask("leave") if phase != "checkpoint" else (case.obeyed_s("leave"), 0.0)
        checkpoints.go_on.set()
        case.end()
        self.worker._saver, self.worker._load = saver, load
        if phase == "apply":
            self.anchor = case.session.life.round.anchor
        return max(obeyed_s, idle_s)


def print_warning(code: str, text: str) -> None:
    """Where the runner shows it if the job fails."""
    print(f"{code}: {text}", file=sys.stderr)


# ---- time and memory


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Until all of it is done, not only queued."""
    synchronize(device)
    began_at = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began_at


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Host:
    """What this process has of main memory that the system cannot take back: all but pages of files."""

    def __init__(self) -> None:
        self._before = _unreclaimable_bytes()
        self._peak = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Looks at it again and again inside."""
        ctypes.CDLL(None).malloc_trim(0)
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(LOOK_S):
                self._peak = max(self._peak, _unreclaimable_bytes())

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            self._peak = max(self._peak, _unreclaimable_bytes())
            ended.set()
            thread.join()

    def peak_bytes(self) -> int:
        """Beyond what it had when this was made."""
        return self._peak - self._before


def _unreclaimable_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "RssFile"))}
    return 1024 * (kilobytes["VmRSS"] - kilobytes["RssFile"])
