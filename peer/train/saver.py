"""What a peer puts on disk of itself while it goes on: checkpoints for itself, snapshots for newcomers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dht.errors import DiskFull, HomefiresError
from peer.events import AlertRaised, CheckpointWritten, Event
from peer.host.processes import available_bytes
from peer.spec import RunSpec
from peer.store import snapshots
from peer.store.run_directory import genesis_head, read_base_at, read_genesis

if TYPE_CHECKING:
    from peer.train.checkpoint import Checkpoint, Checkpoints
    from peer.train.outer import OuterState

SPARE = 3
"""A checkpoint is copied and written beside training where so many times its size is available in memory; else training
waits until it is written."""


class CheckpointSaver:
    """Writes checkpoints and snapshots, and says what came of it."""

    def __init__(self, checkpoints: Checkpoints, snapshotter: SnapshotWriter, emit: Callable[[Event], None]) -> None:
        self._checkpoints, self._snapshotter, self._emit = checkpoints, snapshotter, emit
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: tuple[Checkpoint, Future[Path]] | None = None
        self._failed = False

    def due(self, *, round_ends: bool) -> bool:
        """Whether it is time for a checkpoint, and none is being written."""
        return self._writing is None and self._checkpoints.due(round_ends=round_ends)

    def write(self, checkpoint: Checkpoint, *, wait: bool = False, last: bool = False) -> None:
        """Have all of a peer on disk. Without room for it the one before stays, and training goes on.

        It returns when that is done if one asks it to `wait`. The `last` one of a life is followed by nothing.
        """
        self._finish_checkpoint()
        waits = wait or last or available_bytes() < SPARE * checkpoint.size_bytes
        if not waits:
            copied = {
                file: {name: tensor.clone() for name, tensor in tensors.items()}
                for file, tensors in checkpoint.tensors.items()
            }
            checkpoint = replace(checkpoint, tensors=copied)
        self._writing = checkpoint, self._executor.submit(self._checkpoints.write, checkpoint)
        if waits:
            self._finish_checkpoint(last=last)
        self.tell()

    def tell(self) -> None:
        """Say that a checkpoint is written, if one is."""
        if self._writing is not None and self._writing[1].done():
            self._finish_checkpoint()

    def start_snapshot(self, anchor: OuterState, name: bytes, state: bytes) -> None:
        """Write a snapshot of this anchor if it is time. It must not change before `finish_snapshot`."""
        if self._snapshotter.due(anchor.round):
            self._snapshotter.start(anchor, name, state)

    def finish_snapshot(self) -> None:
        """It is written beside training, until the anchor is about to change."""
        why = self._snapshotter.wait()
        if why:
            self._warn("SNAPSHOT", why)

    def _finish_checkpoint(self, *, last: bool = False) -> None:
        if self._writing is None:
            return
        (checkpoint, writing), self._writing = self._writing, None
        try:
            path = writing.result()
        except DiskFull as error:
            if last:
                self._warn("CHECKPOINT", f"{error}; inner steps since the one before are lost")
            elif not self._failed:
                self._warn("CHECKPOINT", str(error))
            self._failed = True
            return
        self._failed = False
        written = CheckpointWritten(round=checkpoint.state["round"], path=str(path), bytes=checkpoint.size_bytes)
        self._emit(written)

    def _warn(self, code: str, text: str) -> None:
        self._emit(AlertRaised(level="warning", code=code, text=text))


SHARE = 0.05
"""Writing takes at most this share of the time, however slow the disk is."""
PACE_ROUNDS = 8
"""How many of the newest rounds say how long a round takes."""
MOST_ROUNDS = 1 << 16


class SnapshotWriter:
    """Writes a snapshot every `snapshot_rounds` rounds in a thread. The anchor must not change before `wait`."""

    def __init__(self, directory: Path, spec: RunSpec) -> None:
        self._directory, self._spec = directory, spec
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshot")
        self._writing: Future[None] | None = None
        self._cost_s = 0.0
        self._rounds: deque[tuple[int, float]] = deque(maxlen=PACE_ROUNDS)
        """The newest rounds, and when they came."""

    def due(self, round: int) -> bool:
        """Whether this is a round in which all peers write one, said once per round.

        A peer whose disk is too slow writes every second one of them, or every fourth: so peers of
        different speed still have some in common.
        """
        now = time.monotonic()
        if self._rounds and round <= self._rounds[-1][0]:
            self._rounds.clear()  # an undo
        pace_s = (now - self._rounds[0][1]) / (round - self._rounds[0][0]) if self._rounds else float("inf")
        self._rounds.append((round, now))
        every = self._spec.round.snapshot_rounds
        while self._cost_s > SHARE * every * pace_s and every < MOST_ROUNDS:
            every *= 2
        return round > 0 and round % every == 0

    def start(self, anchor: OuterState, name: bytes, state: bytes) -> None:
        """Begin to write the snapshot of `anchor`; `name` is the chain's, `state` its digest."""
        assert self._writing is None, "the one before is waited for"
        self._writing = self._executor.submit(self._write, anchor, name, state)

    def wait(self) -> str:
        """Until it is on disk; why it is not, in words, else nothing."""
        if self._writing is None:
            return ""
        writing, self._writing = self._writing, None
        try:
            writing.result()
        except HomefiresError as error:
            return str(error)
        return ""

    def _write(self, anchor: OuterState, name: bytes, state: bytes) -> None:
        began_at = time.monotonic()
        try:
            genesis = genesis_head(read_genesis(self._directory))
            base = read_base_at(self._directory, genesis, name, anchor.round, self._spec.round.keep_rounds + 1)
            snapshots.write(
                self._directory, anchor.theta.numpy(), anchor.momentum.numpy(), run=self._spec.digest(), base=base,
                cursors=anchor.cursors, state=state,
            )  # fmt: skip
        finally:
            self._cost_s = time.monotonic() - began_at
