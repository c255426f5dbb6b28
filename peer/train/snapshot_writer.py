"""The trainer's side of snapshots: written beside training, read by whoever goes on from one."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from dht.errors import BadInput, HomefiresError
from peer.spec import RunSpec
from peer.store import snapshots
from peer.store.run_directory import genesis_head, read_base_at, read_genesis
from peer.train.outer_state import OuterState

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


def read_anchor(directory: Path, round: int, name: bytes) -> OuterState:
    """The anchor that the snapshot of this round and name holds. Raises BadInput if that is damaged."""
    path = snapshots.path_of(directory, round, name)
    manifest = snapshots.read_manifest(path)
    theta, momentum = snapshots.read_vectors(path, manifest)
    return OuterState(torch.from_numpy(theta), torch.from_numpy(momentum), round, dict(manifest.cursors))


def become_snapshot(anchor: OuterState, directory: Path, round: int, name: bytes) -> None:
    """Be what the snapshot of this round and name holds. Raises BadInput if that is damaged, or of another model."""
    found = read_anchor(directory, round, name)
    if found.theta.shape != anchor.theta.shape:
        raise BadInput(f"{snapshots.path_of(directory, round, name)} is of another model; remove it")
    anchor.become(found.theta, found.momentum, found.round, found.cursors.items())
