"""Events of the bootstrap node, one JSON object per line.

The format is that of `peer/events.py`, which this package cannot import.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

VERSION = 1


class Reporter:
    """Writes event lines. Until the run and the peer are known, their fields are empty."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.run = ""
        self.peer = ""
        self.listener: Callable[[str, Mapping[str, Any]], None] | None = None
        """Told of every event, too."""
        self._out = out or sys.stdout
        self._seq = 0

    def __call__(self, kind: str, **fields: Any) -> None:
        """Print one event, such as `report("InviteIssued", invite=text)`."""
        head = {"v": VERSION, "seq": self._seq, "t": round(time.time(), 3), "run": self.run, "peer": self.peer}
        self._seq += 1
        line = json.dumps(head | {"type": kind} | fields, separators=(",", ":"), allow_nan=False)
        print(line, file=self._out, flush=True)
        if self.listener is not None:
            self.listener(kind, fields)
