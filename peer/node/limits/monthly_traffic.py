"""Traffic of the calendar month, kept in `DIR/traffic.json` across restarts and crashes.

The link reports every ten seconds how much it has sent and received since it started; a crash loses at most that much.
The report arrives in the trainer's process, which a busy disk must not hold up, so a thread writes it down.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, tzinfo
from pathlib import Path

from dht.atomic_files import write_atomic
from dht.errors import DiskFull

FILE = "traffic.json"
log = logging.getLogger(__name__)

END_S = 2.0
"""A disk that hangs holds the end of this process up no longer."""


class MonthlyTraffic:
    """Bytes sent and received in this month. `clock` gives Unix time; the month is that of `zone` (None: local)."""

    def __init__(self, directory: Path, clock: Callable[[], float], zone: tzinfo | None = None) -> None:
        self._path, self._clock, self._zone = directory / FILE, clock, zone
        self._counted = _read(self._path)
        """Month and bytes, replaced as a whole: other threads read them."""
        self._kept = self._counted
        self._told = 0
        self.is_news = threading.Event()
        """Something is to be written."""

    @property
    def month_bytes(self) -> int:
        """Since the first of this month."""
        month, counted = self._counted
        return counted if month == self._this_month() else 0

    def link_began(self) -> None:
        """The link's next report counts from 0."""
        self._told = 0

    def note(self, sent: int, received: int) -> None:
        """The link reports what it has sent and received since it started."""
        total, month = sent + received, self._this_month()
        since = max(0, total - self._told)
        self._told = total
        if not since and month == self._counted[0]:
            return
        self._counted = month, self.month_bytes + since
        self.is_news.set()

    def keep(self) -> None:
        """Write down what was counted; if that fails it counts in this life alone, until it can be written."""
        self.is_news.clear()
        counted = self._counted
        if counted == self._kept:
            return
        row = {"month": counted[0], "bytes": counted[1]}
        try:
            write_atomic(self._path, (json.dumps(row) + "\n").encode(), private=True)
        except (DiskFull, OSError) as error:
            log.warning("this month's traffic could not be written down: %s", error)
        else:
            self._kept = counted

    def _this_month(self) -> str:
        return datetime.fromtimestamp(self._clock(), self._zone).strftime("%Y-%m")


@contextmanager
def keeping(traffic: MonthlyTraffic) -> Iterator[None]:
    """Write it down whenever it has changed, from a thread of its own, until the block ends."""
    ended = threading.Event()

    def keep() -> None:
        while not ended.is_set():
            traffic.is_news.wait()
            traffic.keep()
        traffic.keep()  # what came during the last one

    thread = threading.Thread(target=keep, name="traffic", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        traffic.is_news.set()
        thread.join(END_S)


def _read(path: Path) -> tuple[str, int]:
    """Month and bytes; no month if there is no readable file: then counting begins anew."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        row = json.loads(path.read_text())
        return str(row["month"]), max(0, int(row["bytes"]))
    return "", 0
