"""The size of folders on their disks, and the free space there."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SHARE = 0.02
"""Of the time that looking at the run folder may take: ten thousands of files are looked at less often."""


class Spared:
    """A reading that may be costly: it is repeated only while all readings take at most SHARE of the time."""

    def __init__(self, look: Callable[[], int | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._look, self._clock = look, clock
        self._says: int | None = None
        self._due_at = -math.inf

    def __call__(self) -> int | None:
        began_at = self._clock()
        if began_at >= self._due_at:
            self._says = self._look()
            self._due_at = began_at + (self._clock() - began_at) / SHARE
        return self._says


def folder_bytes(folder: Path) -> int | None:
    """The size of all files below on disk; None if the folder cannot be read. A file that is removed meanwhile is
    left out."""
    total, waiting = 0, [str(folder)]
    try:
        while waiting:
            place = waiting.pop()
            with suppress(FileNotFoundError), os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        with suppress(FileNotFoundError):
                            total += entry.stat(follow_symlinks=False).st_blocks * 512
    except OSError:
        return None
    return total


def free_disk_bytes(folder: Path) -> int:
    """The space that a user may still take on the disk of `folder`, or of the nearest folder above it that exists."""
    while not folder.exists():
        folder = folder.parent
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
