"""The organiser's node signs a checkpoint once an hour: a round, some snapshots in the past, and its anchor.

A newcomer follows certificates from a checkpoint to a snapshot that is newer than it. So the node signs a new one only
after at least one more snapshot was due.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from dht.atomic_files import raising_damaged, write_atomic
from dht.errors import DiskFull
from dht.identity import Identity, RunKeys
from peer.consensus.organiser.checkpoints import ChainCheckpoint, answer_to
from peer.consensus.protocol.head import ChainHead

FILE = "checkpoint"
EVERY_S = 3600.0
SNAPSHOTS = 2
"""So many must have been due since the round of a checkpoint."""

log = logging.getLogger(__name__)


class CheckpointBook:
    """The newest checkpoint of a folder. Raises BadInput for a damaged file."""

    def __init__(
        self, directory: Path, identity: Identity, run: bytes, snapshot_rounds: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._path, self._keys = directory / FILE, RunKeys(identity, run)
        self._apart, self._clock = SNAPSHOTS * snapshot_rounds, clock
        self.newest = read_checkpoint(directory)
        self._next: ChainHead | None = None
        """What is signed next, once it lies far enough in the past."""
        self._signed_at = clock() - EVERY_S

    def look(self, head: ChainHead | None) -> None:
        """The node has followed the chain to here: sign a checkpoint if one is due."""
        if head is None or not head.round:
            return
        if self._next is None:
            self._next = head
        if head.round < self._next.round + self._apart or self._clock() - self._signed_at < EVERY_S:
            return
        signed, self._next = ChainCheckpoint.of(self._next).signed(self._keys), head
        if self.newest is not None and signed.round <= self.newest.round:
            return
        try:
            write_atomic(self._path, signed.to_bytes())
        except DiskFull as error:
            log.warning("no checkpoint is signed: %s", error)
            return
        self.newest, self._signed_at = signed, self._clock()

    async def answer(self, peer: str, request: bytes) -> bytes | None:
        return answer_to(request, self.newest)


def read_checkpoint(directory: Path) -> ChainCheckpoint | None:
    """The newest checkpoint that the node of this folder signed. Raises BadInput for a damaged file."""
    path = directory / FILE
    if not path.exists():
        return None
    with raising_damaged(path):
        return ChainCheckpoint.from_bytes(path.read_bytes())
