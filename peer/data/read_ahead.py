"""Windows are read before they are asked for, beside the step that computes.

What is read ahead is no part of anybody's state: a sampler says what comes next, and what it does not take is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from dht.errors import Unreachable
from peer.data.source import Source
from peer.data.tokenizer import Tokens

Place = tuple[int, int]
"""A shard and a position."""
PATIENCE_S = 10.0
"""Who waits longer for a window gives up; it is read on all the same."""


class ReadAhead:
    """Windows of a source by a thread of its own, which ends as soon as all that is expected is here.

    So nothing is left to close, and a source that hangs holds nobody at the end of a process.
    """

    def __init__(self, source: Source, patience_s: float = PATIENCE_S) -> None:
        self._source, self._patience_s = source, patience_s
        self._changed = threading.Condition()
        self._expected: tuple[Place, ...] = ()
        self._here: dict[Place, Tokens] = {}
        self._failure: Exception | None = None
        self._reads = False
        self.waited_s = 0.0
        """All that was waited for windows."""

    def expect(self, places: Sequence[Place]) -> None:
        """These come next, in this order; nothing else is kept."""
        with self._changed:
            self._expected = tuple(places)
            wanted = set(places)
            self._here = {place: window for place, window in self._here.items() if place in wanted}
            self._begin()

    def windows(self, places: Sequence[Place]) -> list[Tokens]:
        """These, which are expected. Raises what the source does, and Unreachable where it takes too long: both only
        once, for then it is read again."""
        began = time.monotonic()
        with self._changed:
            self._begin()
            self._changed.wait_for(
                lambda: self._failure is not None or all(place in self._here for place in places), self._patience_s
            )
            self.waited_s += time.monotonic() - began
            failure, self._failure = self._failure, None
            found = [self._here[place] for place in places if place in self._here]
        if len(found) == len(places):
            return found
        raise failure or Unreachable(f"the data have not come for {self._patience_s:.0f} s")

    def _begin(self) -> None:
        if not self._reads and self._failure is None and self._next() is not None:
            self._reads = True
            threading.Thread(target=self._read, name="read-ahead", daemon=True).start()

    def _next(self) -> Place | None:
        return next((place for place in self._expected if place not in self._here), None)

    def _read(self) -> None:
        """In the thread."""
        while True:
            with self._changed:
                place = self._next()
                if place is None:
                    self._reads = False
                    return
            try:
                window = self._source.window(*place)
            except Exception as error:
                with self._changed:
                    self._failure, self._reads = error, False
                    self._changed.notify_all()
                return
            with self._changed:
                self._here[place] = window
                self._changed.notify_all()
