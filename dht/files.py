"""Small files that must survive a crash."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, payload: bytes) -> None:
    """Replace a file so that after a crash it holds either the old bytes or the new ones; on disk at return."""
    scratch = path.with_name(path.name + ".new")
    with scratch.open("wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
