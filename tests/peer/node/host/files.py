"""Files of a kernel that is not there."""

from __future__ import annotations

from pathlib import Path


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
