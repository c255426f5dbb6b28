"""One process per run directory."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from dht.errors import DirectoryBusy

TRIES = 5
BETWEEN_TRIES_S = 0.05


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Hold `directory`/run/lock; the kernel frees it however this process ends. Raises DirectoryBusy.

    Makes the directory and its folder `run` (0700) if they do not exist.
    """
    folder = directory / "run"
    for path in (directory, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(handle, "r+") as file:
        if not _take(file):
            holder = file.read(20).strip() or "unknown"
            raise DirectoryBusy(f"{directory} is in use by process {holder}; stop it or name another folder")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _take(file: TextIO) -> bool:
    """Whether the lock is ours now. Whoever asks if it is held takes it for an instant: that one is waited for."""
    for _ in range(TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(BETWEEN_TRIES_S)
        else:
            return True
    return False
