"""What a peer puts on disk of itself while it goes on: checkpoints for itself, snapshots for newcomers."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dht.errors import DiskFull
from peer.events import CheckpointWritten
from peer.host.measurements import available_bytes
from peer.telemetry.reporter import Reporter

if TYPE_CHECKING:
    from peer.train.checkpoint import Checkpoint, Checkpoints
    from peer.train.outer_state import OuterState
    from peer.train.snapshot_writer import SnapshotWriter

SPARE = 3
"""A checkpoint is copied and written beside training where so many times its size is available in memory; else training
waits until it is written."""


class CheckpointSaver:
    """Writes checkpoints and snapshots, and says what came of it."""

    def __init__(self, checkpoints: Checkpoints, snapshotter: SnapshotWriter, session: Reporter) -> None:
        self._checkpoints, self._snapshotter, self._session = checkpoints, snapshotter, session
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
            self._session.warn("SNAPSHOT", why)

    def _finish_checkpoint(self, *, last: bool = False) -> None:
        if self._writing is None:
            return
        (checkpoint, writing), self._writing = self._writing, None
        try:
            path = writing.result()
        except DiskFull as error:
            if last:
                self._session.warn("CHECKPOINT", f"{error}; inner steps since the one before are lost")
            elif not self._failed:
                self._session.warn("CHECKPOINT", str(error))
            self._failed = True
            return
        self._failed = False
        written = CheckpointWritten(round=checkpoint.state["round"], path=str(path), bytes=checkpoint.size_bytes)
        self._session.emit(written)
