"""Which buffers may be read: only after their producer has finished, and at the version that the reader works with.

Both halves are needed. ZeRO++'s secondary shards were read before the copy into them had ended, and at a version that
the weights had already left behind (arXiv:2407.01614); either gives numbers that belong to no parameters.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StaleVersion(AssertionError):
    """Somebody reads or writes at a version that the buffers have left."""


class BufferVersions:
    """Lets readers and one producer share numbered buffers, which go from version to version together.

    The producer calls `begin`, fills the buffers in any order and calls `publish` for each once it is full; for
    copies that end by themselves, when they have ended. A reader enters `reading`, and calls `wait` before each read.
    """

    def __init__(self, buffers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.version = 0
        """The version that the buffers hold, or are about to."""
        self.waited_s = 0.0
        """Seconds that readers have waited since the newest `begin`."""
        self._ready = [0] * buffers
        """The version that each buffer was last published at."""
        self._readers = 0
        self._error: BaseException | None = None
        self._clock = clock
        self._changed = threading.Condition()

    @property
    def idle(self) -> bool:
        """Whether nobody is `reading`, so that the next version may begin."""
        return self._readers == 0

    def begin(self) -> int:
        """From now on no buffer may be read until it is published; returns the new version."""
        with self._changed:
            assert self.idle, "somebody reads, and would read two versions"
            assert self._whole(), "the version before is not whole"
            self.version += 1
            self.waited_s = 0.0
            return self.version

    def publish(self, buffer: int, version: int) -> None:
        """The producer of this buffer has finished. Raises StaleVersion."""
        with self._changed:
            self._check(version)
            self._ready[buffer] = version
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """The producer gave up: readers that wait, now or later, get `error`."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    @contextmanager
    def reading(self) -> Iterator[int]:
        """Inside, everything is read at the version that this gives: the next one does not begin."""
        with self._changed:
            self._readers += 1
            version = self.version
        try:
            yield version
        finally:
            with self._changed:
                self._readers -= 1

    def is_ready(self, buffer: int, version: int) -> bool:
        """Whether this buffer may be read. Raises StaleVersion, and the producer's error."""
        self._check(version)
        if self._error is not None:
            raise self._error
        return self._ready[buffer] == version

    def wait(self, buffer: int, version: int, timeout_s: float) -> None:
        """Wait until this buffer may be read. Raises the errors of `is_ready`, and TimeoutError."""
        with self._changed:
            if self.is_ready(buffer, version):
                return
            began_at = self._clock()
            try:
                if not self._changed.wait_for(lambda: self.is_ready(buffer, version), timeout_s):
                    raise TimeoutError(f"buffer {buffer} is not at version {version} after {timeout_s:.0f} s")
            finally:
                self.waited_s += self._clock() - began_at

    def _check(self, version: int) -> None:
        if version != self.version:
            raise StaleVersion(f"version {version} is asked for; the buffers are at {self.version}")

    def _whole(self) -> bool:
        return self._error is None and all(ready == self.version for ready in self._ready)
