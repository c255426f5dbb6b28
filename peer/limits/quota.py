"""Traffic of the calendar month, remembered in `DIR/traffic.json` over restarts and crashes.

The link says how much it has sent and received since it started, every ten seconds: so much a crash makes it forget.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, tzinfo
from pathlib import Path

from dht.errors import DiskFull
from dht.files import write_whole

FILE = "traffic.json"


class Traffic:
    """Bytes sent and received in this month. `clock` gives Unix time; the month is that of `zone` (None: local)."""

    def __init__(self, directory: Path, clock: Callable[[], float], zone: tzinfo | None = None) -> None:
        self._path, self._clock, self._zone = directory / FILE, clock, zone
        self._counted = _read(self._path)
        """Month and bytes, replaced as a whole: another thread reads them."""
        self._told = 0

    @property
    def month_bytes(self) -> int:
        """Since the first of this month."""
        month, counted = self._counted
        return counted if month == self._this_month() else 0

    def link_began(self) -> None:
        """What it says next counts from 0."""
        self._told = 0

    def note(self, sent: int, received: int) -> None:
        """The link says what it has sent and received in its life. Where the disk is full it is not kept."""
        total, month = sent + received, self._this_month()
        since = max(0, total - self._told)
        self._told = total
        if not since and month == self._counted[0]:
            return
        self._counted = month, self.month_bytes + since
        with suppress(DiskFull):
            row = {"month": month, "bytes": self._counted[1]}
            write_whole(self._path, (json.dumps(row) + "\n").encode(), private=True)

    def _this_month(self) -> str:
        return datetime.fromtimestamp(self._clock(), self._zone).strftime("%Y-%m")


def _read(path: Path) -> tuple[str, int]:
    """Month and bytes; of no month if there is nothing to read: it is counted anew."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        row = json.loads(path.read_text())
        return str(row["month"]), max(0, int(row["bytes"]))
    return "", 0
