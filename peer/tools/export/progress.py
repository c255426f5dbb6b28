"""Progress lines of an export: a large model on a slow line takes an hour."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S, STILL_S = 1.0, 10.0
"""Between two lines about rounds; and between two about one thing that takes long."""


class ExportProgress:
    """Tells `say` what is being done. It says nothing by itself."""

    def __init__(self, say: Callable[[str], object] = lambda text: None) -> None:
        self._say, self._said_at = say, time.monotonic()

    def round(self, round: int, last: int) -> None:
        """The outer step that leads to this anchor was made again."""
        if time.monotonic() - self._said_at >= EVERY_S:
            self._said_at = time.monotonic()
            self._say(f"round {round} of {last}")

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """What is done inside, said at its beginning and again while it lasts."""
        began, ended = time.monotonic(), threading.Event()

        def go_on() -> None:
            while not ended.wait(STILL_S):
                self._say(f"{what}, for {time.monotonic() - began:.0f} s so far")

        self._say(what)
        telling = threading.Thread(target=go_on, name="progress", daemon=True)
        telling.start()
        try:
            yield
        finally:
            ended.set()
            telling.join()
