"""The log of a process stays small, however long it runs, and whoever else writes into it.

What libraries, the link and the network daemon say goes to one file that all of them have open for appending, so a
file cannot be renamed away from under them: its content is copied to `NAME.1`, and the file made empty.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dht.atomic_files import raising_disk_full
from dht.errors import DiskFull

MOST_BYTES = 8 << 20
"""Of the file, and once more of the copy."""
EVERY_S = 30.0
END_S = 5.0


def bound(path: Path, most_bytes: int = MOST_BYTES) -> bool:
    """Make a file that has grown beyond this many bytes empty, and keep what it held as `NAME.1`; whether it had.

    Lines that come between copying and emptying are lost. On a full disk so is the copy, which makes room.
    """
    if not path.is_file() or path.stat().st_size <= most_bytes:
        return False
    copy = path.with_name(f"{path.name}.1")
    scratch = path.with_name(f"{path.name}.1.new")
    try:
        with raising_disk_full(path.parent):
            shutil.copyfile(path, scratch)
            scratch.chmod(path.stat().st_mode & 0o777)
            scratch.replace(copy)
    except DiskFull:
        scratch.unlink(missing_ok=True)
    os.truncate(path, 0)
    return True


@contextmanager
def bounding(path: Path, most_bytes: int = MOST_BYTES, every_s: float = EVERY_S) -> Iterator[None]:
    """Look at the file now and every so often, from another thread, until the block ends."""
    ended = threading.Event()

    def watch() -> None:
        bound(path, most_bytes)
        while not ended.wait(every_s):
            bound(path, most_bytes)

    thread = threading.Thread(target=watch, name="log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(END_S)
