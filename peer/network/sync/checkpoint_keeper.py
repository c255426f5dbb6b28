"""The organiser's newest checkpoint: how a peer learns of it, keeps it in its folder, and gives it to others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path

from dht.access import RejectCode
from dht.atomic_files import raising_damaged, write_atomic
from dht.errors import DiskFull, Unreachable
from dht.streams.base import Asking
from peer.consensus.organiser.checkpoints import (
    MAX_CHECKPOINT_BYTES,
    QUESTION,
    ChainCheckpoint,
    answer_to,
    packed_question,
)
from peer.consensus.protocol.encoding import Keys

FILE = "checkpoint"
"""In the folder of a peer."""
ASK_S = 5.0
HEAR_S = 600.0

log = logging.getLogger(__name__)

Refuse = Callable[[RejectCode, str, str], None]


class CheckpointKeeper:
    """`oldest` is the checkpoint in the invite, by round and anchor: no older one counts. Raises BadInput for a
    damaged file."""

    def __init__(
        self, asker: Asking, keys: Keys, organiser: str, directory: Path | None, refuse: Refuse,
        oldest: tuple[int, bytes] = (0, b""),
    ) -> None:  # fmt: skip
        self._asker, self._keys, self._organiser, self._refuse = asker, keys, organiser, refuse
        self._path = None if directory is None else directory / FILE
        self.oldest = oldest
        self.newest: ChainCheckpoint | None = None
        if self._path is not None and self._path.exists():
            with raising_damaged(self._path):
                kept = self._signed(self._path.read_bytes())
            # It may be older than an invite that was asked for since.
            self.newest = kept if self._is_new_enough(kept) else None

    @property
    def is_due(self) -> bool:
        """Whether the invite names one, and none as new as that is here."""
        round, _ = self.oldest
        return self.newest is None and round > 0

    async def hear(self, peers: Iterable[str]) -> None:
        """Ask these peers, and the organiser's node."""
        asked = dict.fromkeys((self._organiser, *peers))
        given = await asyncio.gather(*(self._ask(peer) for peer in asked))
        before = self.newest
        for peer, packed in zip(asked, given, strict=True):
            if packed is not None:
                self._take(peer, packed)
        if self._path is not None and self.newest is not None and self.newest != before:
            try:
                write_atomic(self._path, self.newest.to_bytes())
            except DiskFull as error:
                log.warning("the organiser's checkpoint is not on disk: %s", error)

    async def follow(self, connected: Callable[[], Awaitable[Iterable[str]]]) -> None:
        """Ask again and again, so that others can get it from here when the organiser's node is away."""
        while True:
            with suppress(Unreachable):
                await self.hear(list(await connected())[:3])
            await asyncio.sleep(HEAR_S)

    async def answer(self, peer: str, request: bytes) -> bytes | None:
        return answer_to(request, self.newest)

    async def _ask(self, peer: str) -> bytes | None:
        try:
            return await self._asker.ask(
                peer, QUESTION, ASK_S, MAX_CHECKPOINT_BYTES, packed_question(self._known_round)
            )
        except Unreachable:
            return None

    def _take(self, peer: str, packed: bytes) -> None:
        try:
            checkpoint = self._signed(packed)
            if not self._is_new_enough(checkpoint):
                raise ValueError(f"the invite names another one, of round {self.oldest[0]}")
        except ValueError as error:
            self._refuse(RejectCode.ORGANISER, peer, f"it gives what is no checkpoint: {error}")
            return
        if self.newest is None or checkpoint.round > self.newest.round:
            self.newest = checkpoint

    def _signed(self, packed: bytes) -> ChainCheckpoint:
        """Raises ValueError."""
        checkpoint = ChainCheckpoint.from_bytes(packed)
        if not checkpoint.genuine(self._keys, self._organiser):
            raise ValueError("the organiser has not signed it")
        return checkpoint

    def _is_new_enough(self, checkpoint: ChainCheckpoint) -> bool:
        round, _ = self.oldest
        return checkpoint.round > round or (checkpoint.round, checkpoint.anchor) == self.oldest

    @property
    def _known_round(self) -> int:
        """The round in the request, so that nobody answers with an older one: a peer with an older invite has
        nothing newer, and does not lie."""
        round, _ = self.oldest
        return self.newest.round if self.newest is not None else max(0, round - 1)
