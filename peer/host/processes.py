"""How much the trainer stands back for other programs, while the link and whoever answers the owner do not."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from peer.settings import PeerSettings

SPARED = ("control", "limits", "measuring", "link")
"""How the names of threads begin that answer the owner, or start the link."""


def stand_back(settings: PeerSettings) -> str:
    """Give the trainer its niceness; what else that takes, in words. It takes what `set_niceness` says."""
    spared = {
        thread.native_id for thread in threading.enumerate() if thread.name.startswith(SPARED) and thread.native_id
    }
    return "" if set_niceness(settings.nice, spared) else "a lower nice takes effect when the peer starts again"


def set_niceness(value: int, spared: Collection[int] = (), tasks: Path = Path("/proc/self/task")) -> bool:
    """Give all threads of this process but those `spared` (by native id) this niceness; whether all took it.

    Linux keeps it by thread, and a new thread or process has that of the thread which starts it. A lower value than
    now takes a privilege.
    """
    took = True
    for thread in sorted(int(path.name) for path in tasks.glob("[0-9]*")) or [0]:
        if thread in spared:
            continue
        with suppress(ProcessLookupError):
            try:
                os.setpriority(os.PRIO_PROCESS, thread, value)
            except PermissionError:
                took = False
    return took
