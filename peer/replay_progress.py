"""How far a peer has come that applies the chain on its own disk again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from peer.events import Event, PeerStateChanged

SAY_EVERY_S = 1.0


@dataclass
class Replaying:
    """Says at most once a second which round is done. Nothing is transferred, so there are no bytes to count."""

    clock: Callable[[], float] = time.monotonic
    said_at: float | None = None

    def after(self, round: int, last_round: int) -> Iterator[Event]:
        """What to say after `round` was applied; the chain on disk ends at `last_round`."""
        now = self.clock()
        if self.said_at is None:
            self.said_at = now
        if now - self.said_at >= SAY_EVERY_S:
            self.said_at = now
            yield PeerStateChanged(state="SYNCING", why=f"round {round} of {last_round} from its own disk")
