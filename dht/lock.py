"""One process per run directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dht.errors import DirectoryBusy


@contextmanager
def hold_directory(directory: Path) -> Iterator[None]:
    """Hold `directory`/run/lock; the kernel frees it however this process ends. Raises DirectoryBusy.

    Makes the directory and its folder `run` (0700) if they do not exist.
    """
    folder = directory / "run"
    for path in (directory, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(handle, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = file.read(20).strip() or "unknown"
            raise DirectoryBusy(f"{directory} is in use by process {holder}; stop it or name another folder") from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
