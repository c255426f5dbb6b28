"""Takes one piece of work at a time to the trainer, its checkpoints and its snapshots.

It takes no decisions: `peer.node.lifecycle` says what is done in which order, and is told how each piece ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from dht.errors import BadInput, DeviceLost, DiskFull, MemoryFull, Unreachable
from peer.consensus.protocol.head import next_anchor
from peer.node.host.device import assert_index, first_line, raising_device_lost, raising_memory_full
from peer.node.lifecycle.inputs_effects import (
    Adopt,
    Apply,
    ContinuePrompts,
    Done,
    Evaluate,
    LayersReady,
    LeaveDevice,
    LifeInput,
    Moved,
    NoData,
    NoRoom,
    Post,
    Replay,
    Result,
    Resume,
    Save,
    Saved,
    Step,
    Stepped,
    Submit,
    TakeBack,
    TakeDevice,
    TrainerFailed,
    TrainerStatus,
    Work,
    Written,
)  # fmt: skip
from peer.node.store.objects import load_object
from peer.node.store.snapshots import names
from peer.training.checkpoint.checkpoint import Checkpoints, size_bytes
from peer.training.checkpoint.replay import SnapshotOrigin, origin_of, read_anchor
from peer.training.checkpoint.saver import CheckpointSaver, SnapshotWriter, WithHomes
from peer.training.train.layerwise import HALF_DONE
from peer.training.train.trainer import LocalTrainer

T = TypeVar("T")


class TrainerWorker:
    """A real trainer as a lifecycle drives it: implements `peer.node.lifecycle.inputs_effects.Trainer`."""

    def __init__(
        self, trainer: LocalTrainer, checkpoints: Checkpoints, directory: Path, warn: Callable[[str, str], None]
    ) -> None:
        """`warn` is called with a code and a text for faults that end nothing."""
        self._trainer, self._directory, self._warn = trainer, directory, warn
        self._saver = CheckpointSaver(checkpoints)
        homes = None if trainer.span is None else WithHomes(trainer.layer_sizes, trainer.span.homes.share_chunks)
        self._snapshots = SnapshotWriter(directory, trainer.spec, homes, warn)
        self._load = partial(load_object, directory)
        self._origins: dict[bytes, SnapshotOrigin] = {}
        """The origin of the newest checkpoint: no way is followed further back."""

    @property
    def status(self) -> TrainerStatus:
        return self._trainer.status

    def enter_thread(self) -> None:
        """Called once by the thread that will `do` everything, since a GPU is selected per thread. Raises
        DeviceLost."""
        device = self._trainer.device
        if device.type != "cuda":
            return
        assert_index(device)
        try:
            torch.cuda.set_device(device)
        except RuntimeError as error:
            why = f"the trainer's thread cannot use {device} ({first_line(error)})"
            raise DeviceLost(f"{why}; see what `homefires doctor` says of it") from error

    def close(self) -> None:
        """Nothing follows, and nothing goes on: neither on disk nor in any process."""
        self._trainer.close()
        self._saver.close()
        self._snapshots.close()

    def write_snapshot(self, anchor: bytes, state: bytes) -> None:
        """Begin to write the anchor in place, if a snapshot is due. Returns at once, from any thread. The next work
        that moves the trainer waits for it."""
        if self._snapshots.due(self._trainer.anchor.round):
            self._snapshots.start(self._trainer.anchor, anchor, state)

    def do(self, work: Work, post: Post, stop: Callable[[], bool]) -> None:
        """Do it, see `peer.node.lifecycle.inputs_effects.Trainer`. Raises BadInput for damage, which changes
        nothing, DeviceLost, MemoryFull if work is left half done, and the error of an update beside the steps
        before."""
        device = self._trainer.device
        with raising_device_lost(device), raising_memory_full(device, HALF_DONE):
            self._do(work, post, stop)

    def _do(self, work: Work, post: Post, stop: Callable[[], bool]) -> None:
        trainer = self._trainer
        if trainer.layers is not None and trainer.layers.done():
            trainer.layers.result()

        def done(result: Result = None) -> None:
            status = self.status
            post(lambda now: Done(now, result, status))

        match work:
            case Step():
                done(self._step(work, stop))
            case Submit(anchor=anchor, members=members):
                self._begin_round(members)
                writing = trainer.submit(anchor)
                done()
                self._pass_on(writing, post, lambda ended: _written(anchor, ended))
            case TakeBack():
                trainer.take_back()
                done()
            case Apply(update=update, beside=beside):
                self._finish_snapshot()
                given_up = trainer.apply(update, self._load, beside=beside)
                if not beside:
                    done(Moved(given_up, trainer.state_digest(next_anchor(update.parent, update.digest))))
                    return
                applying = trainer.layers
                assert applying is not None
                done(Moved(given_up))
                self._pass_on(applying, post, lambda ended: partial(LayersReady, state=ended.result()))
            case Replay(update=update):
                self._finish_snapshot()
                done(Moved(trainer.replay(update, self._load)))
            case Adopt(round=round, anchor=anchor, left=left):
                self._finish_snapshot()
                done(Moved(trainer.adopt(left, read_anchor(self._directory, round, anchor, trainer.held))))
            case Resume(anchor=anchor):
                trainer.resume(anchor)
                done(Moved(state=trainer.state_digest(anchor)))
            case Evaluate():
                done(self._look(trainer.evaluate, stop))
            case ContinuePrompts():
                done(self._look(trainer.continue_prompts, stop))
            case Save():
                self._save(work, post, done)
            case LeaveDevice():
                trainer.leave_device()
                done()
            case TakeDevice():
                done(None if trainer.take_device() else NoRoom())

    def _begin_round(self, members: tuple[str, ...] | None) -> None:
        if members is not None:
            self._trainer.begin_round(members)

    def _step(self, work: Step, stop: Callable[[], bool]) -> Result:
        """A home that waited for its lead in vain returns nothing."""
        self._begin_round(work.members)
        waited_before_s = self._trainer.waited_s
        try:
            step = self._trainer.step(work.position, stop)
        except MemoryFull as error:
            return NoRoom(str(error))
        except (Unreachable, DiskFull) as error:
            return NoData(str(error))
        if not step.tokens:
            return None
        waited_s = self._trainer.waited_s - waited_before_s
        return Stepped(tokens=step.tokens, loss=step.loss, learning_rate=step.learning_rate, waited_s=waited_s)

    def _look(self, look: Callable[[Callable[[], bool]], Result], stop: Callable[[], bool]) -> Result:
        if not self._trainer.take_device():
            return None
        try:
            return look(stop)
        except MemoryFull as error:
            return NoRoom(str(error))
        except Unreachable as error:
            return NoData(str(error))

    def _save(self, work: Save, post: Post, done: Callable[[], None]) -> None:
        trainer, beside = self._trainer, work.when == "due" and self._trainer.device.type in ("cpu", "cuda")
        capture = trainer.checkpoint(work.anchor, self._origin_of(work.anchor))
        round, began_at = trainer.anchor.round, time.monotonic()

        def saved(ended: Future[Path]) -> Callable[[float], LifeInput]:
            seconds, error = time.monotonic() - began_at, ended.exception()
            if isinstance(error, DiskFull):
                return partial(Saved, round=round, seconds=seconds, no_room=str(error))
            path = ended.result()
            return partial(Saved, round=round, seconds=seconds, path=str(path), size_bytes=size_bytes(path))

        if beside:
            trainer.read_beside(capture)
        self._pass_on(self._saver.save(capture, beside=beside), post, saved)
        if work.when == "last":
            self._finish_snapshot()
        done()

    def _pass_on(
        self, running: Future[T], post: Post, told: Callable[[Future[T]], Callable[[float], LifeInput]]
    ) -> None:
        """Post what `told` makes of the end of `running`, from the thread in which that ends. An error in it is a
        crash."""

        def hear(ended: Future[T]) -> None:
            try:
                device = self._trainer.device
                with raising_device_lost(device), raising_memory_full(device, HALF_DONE):
                    heard = told(ended)
            except Exception as error:
                heard = partial(TrainerFailed, error=error)
            post(heard)

        running.add_done_callback(hear)

    def _origin_of(self, name: bytes) -> SnapshotOrigin:
        """The snapshot from which the chain leads to the trainer's position; one is written if there is none."""
        anchor = self._trainer.anchor
        if self._trainer.span is not None:
            return None  # its checkpoints hold the anchor
        try:
            origin = origin_of(self._directory, name, anchor.round, self._origins)
        except BadInput:
            self._finish_snapshot()
            self._snapshots.start(anchor, name, anchor.state_digest())
            self._finish_snapshot()
            origin = anchor.round, name
            if origin not in names(self._directory):
                return None  # why was told; a restart finds no way, and goes on from a snapshot
        self._origins = {name: origin}
        return origin

    def _finish_snapshot(self) -> None:
        """It is written beside training until the anchor is about to change."""
        if why := self._snapshots.wait():
            self._warn("SNAPSHOT", why)


def _written(anchor: bytes, ended: Future[None]) -> Callable[[float], LifeInput]:
    error = ended.exception()
    if isinstance(error, DiskFull):
        return partial(Written, anchor=anchor, no_room=str(error))
    ended.result()
    return partial(Written, anchor=anchor)
