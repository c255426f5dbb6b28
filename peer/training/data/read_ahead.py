"""Reads windows before they are asked for, beside the step that computes.

Windows that were read ahead are part of no state: a sampler says what comes next, and what it does not take is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from dht.errors import Unreachable
from peer.training.data.source import Source
from peer.training.data.tokenizer import Tokens

Place = tuple[int, int]
"""A shard and a position."""
PATIENCE_S = 10.0
"""Who waits longer for a window gives up; it is read on all the same."""
LINGER_S = 5.0
"""So long the thread waits for more: to start one for each step would hold the step up."""


class ReadAhead:
    """Reads windows of a source in a thread of its own, which ends when nothing is expected for a while. So nothing
    must be closed, and a source that hangs delays no process at its end."""

    def __init__(self, source: Source, patience_s: float = PATIENCE_S) -> None:
        self._source, self._patience_s = source, patience_s
        self._changed = threading.Condition()
        self._expected: tuple[Place, ...] = ()
        self._here: dict[Place, Tokens] = {}
        self._failure: Exception | None = None
        self._reads = self._waits = False
        self.waited_s = 0.0
        """All of the time spent waiting for windows."""

    def expect(self, places: Sequence[Place]) -> None:
        """These come next, in this order; nothing else is kept."""
        with self._changed:
            self._expected = tuple(places)
            for place in self._here.keys() - set(places):
                del self._here[place]
            self._begin()

    def windows(self, places: Sequence[Place]) -> list[Tokens]:
        """These windows, which are expected. Raises the source's errors, and Unreachable if it takes too long: each
        only once, since then it is read again."""
        if not self._are_here(places):
            self._wait(places)
        return [self._here[place] for place in places]

    def _are_here(self, places: Sequence[Place]) -> bool:
        return all(place in self._here for place in places)

    def _wait(self, places: Sequence[Place]) -> None:
        began = time.monotonic()
        with self._changed:
            self._begin()
            self._waits = True
            self._changed.wait_for(lambda: self._failure is not None or self._are_here(places), self._patience_s)
            self._waits = False
            failure, self._failure = self._failure, None
        self.waited_s += time.monotonic() - began
        if not self._are_here(places):
            raise failure or Unreachable(f"the data have not come for {self._patience_s:.0f} s")

    def _begin(self) -> None:
        if self._failure is not None or not self._missing():
            return
        self._changed.notify_all()
        if not self._reads:
            self._reads = True
            threading.Thread(target=self._read, name="read-ahead", daemon=True).start()

    def _missing(self) -> list[Place]:
        return [place for place in self._expected if place not in self._here]

    def _read(self) -> None:
        """In the thread. It takes the lock as rarely as it can, since the computing thread would wait for it."""
        while True:
            with self._changed:
                self._reads = self._changed.wait_for(self._missing, LINGER_S) != []
                if not self._reads:
                    return
                expected, missing = self._expected, self._missing()
            for place in missing:
                if expected is not self._expected and place not in self._expected:
                    break
                try:
                    self._here[place] = self._source.window(*place)
                except Exception as error:
                    with self._changed:
                        self._failure, self._reads = error, False
                        self._changed.notify_all()
                    return
                if self._waits:
                    with self._changed:
                        self._changed.notify_all()
