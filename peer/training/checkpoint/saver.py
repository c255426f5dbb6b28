"""Writes a peer's state to disk while it goes on: checkpoints for itself, snapshots for newcomers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dht.errors import HomefiresError
from peer.node.store import snapshots
from peer.node.store.run_directory import ChainBase, genesis_head, read_base_at, read_genesis
from peer.schema.spec import RunSpec

if TYPE_CHECKING:
    from peer.training.checkpoint.capture import Capture
    from peer.training.checkpoint.checkpoint import Checkpoints
    from peer.training.outer.outer_state import OuterState


class CheckpointSaver:
    """Writes checkpoints, one after the other, in a thread."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")

    def save(self, capture: Capture, *, beside: bool) -> Future[Path]:
        """Write a peer's state to disk: the future ends with the folder, or with DiskFull. Unless `beside`, all is
        written when this returns. Otherwise code that changes a tensor tells the capture before."""
        writing = self._executor.submit(self._checkpoints.write, capture)
        if not beside:
            wait([writing])
        return writing

    def close(self) -> None:
        """Returns once the present write has ended."""
        self._executor.shutdown()


SHARE = 0.05
"""Writing takes at most this share of the time, however slow the disk is."""
PACE_ROUNDS = 8
"""How many of the newest rounds say how long a round takes."""
MOST_ROUNDS = 1 << 16


ShareChunks = Callable[[bytes, Sequence[bytes], Callable[[Sequence[bytes]], None]], None]
"""See `peer.training.train.engine.Homes.share_chunks`."""


@dataclass(frozen=True)
class WithHomes:
    """The homes that write the other layers of a snapshot."""

    sizes: Sequence[int]
    """Elements of each layer of the model."""
    share: ShareChunks


class SnapshotWriter:
    """Writes a snapshot every `snapshot_rounds` rounds in a thread. The anchor must not change before `wait`. A home
    of a cluster writes its layers, and publishes them once the others have told their chunks: later, or never if one
    of them is gone."""

    def __init__(
        self, directory: Path, spec: RunSpec, homes: WithHomes | None, warn: Callable[[str, str], None]
    ) -> None:
        """`warn` is called with a code and a text if a snapshot of a cluster failed."""
        self._directory, self._spec, self._homes, self._warn = directory, spec, homes, warn
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshot")
        self._writing: Future[None] | None = None
        self._cost_s = 0.0
        self._rounds: deque[tuple[int, float]] = deque(maxlen=PACE_ROUNDS)
        """The newest rounds, and their times."""

    def due(self, round: int) -> bool:
        """Whether all peers write a snapshot in this round; true once per round. A peer whose disk is too slow
        writes every second one, or every fourth, so that peers of different speed still have some in common."""
        now = time.monotonic()
        if self._rounds and round <= self._rounds[-1][0]:
            self._rounds.clear()  # it stands at an earlier snapshot
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
        """Returns when it is on disk; the reason, in words, if it is not."""
        if self._writing is None:
            return ""
        writing, self._writing = self._writing, None
        try:
            writing.result()
        except HomefiresError as error:
            return str(error)
        return ""

    def close(self) -> None:
        """Once what is being written is written."""
        self._executor.shutdown()

    def _write(self, anchor: OuterState, name: bytes, state: bytes) -> None:
        began_at = time.monotonic()
        try:
            genesis = genesis_head(read_genesis(self._directory))
            base = read_base_at(self._directory, genesis, name, anchor.round, self._spec.round.keep_rounds + 1)
            if self._homes is not None:
                self._draft(anchor, self._homes, base, state)
                return
            snapshots.write(
                self._directory, anchor.sizes, anchor.chunks, run=self._spec.digest(), base=base,
                cursors=anchor.cursors, state=state,
            )  # fmt: skip
        finally:
            self._cost_s = time.monotonic() - began_at

    def _draft(self, anchor: OuterState, homes: WithHomes, base: ChainBase, state: bytes) -> None:
        """Its layers, to be published when the others have written theirs."""
        made = snapshots.draft(
            self._directory, homes.sizes, lambda layer: anchor.chunks(layer - anchor.layers.start),
            run=self._spec.digest(), base=base, cursors=anchor.cursors, layers=anchor.layers,
        )  # fmt: skip
        homes.share(base.head.anchor, made.chunks, lambda chunks: self._complete(made, chunks, state))

    def _complete(self, made: snapshots.Draft, chunks: Sequence[bytes], state: bytes) -> None:
        """Called by the thread that learned the other homes' chunks."""
        with suppress(RuntimeError):  # closed meanwhile
            self._executor.submit(self._publish, made, tuple(chunks), state)

    def _publish(self, made: snapshots.Draft, chunks: tuple[bytes, ...], state: bytes) -> None:
        if not made.scratch.exists():
            return  # a newer one is written already
        try:
            made.publish(chunks, state)
        except (HomefiresError, ValueError) as error:
            self._warn("SNAPSHOT", str(error))
