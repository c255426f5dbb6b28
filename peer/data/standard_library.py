"""The embedded default: the source text of the Python standard library that runs this peer.

Every machine that can run a peer has it, so a demo downloads nothing. Peers with different Python
versions hold slightly different text, which is no more than different data.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from peer.data.source import Document

LEFT_OUT = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
"""Folders that are not read: tests are long and odd, the others are not the standard library."""


def standard_library(root: Path | None = None) -> Iterator[Document]:
    """Every Python file of the standard library, sorted by its path, which is its name."""
    root = root or Path(sysconfig.get_path("stdlib"))
    for name in sorted(_python_files(root)):
        yield Document(name, (root / name).read_text(encoding="utf-8", errors="replace"))


def _python_files(root: Path) -> Iterator[str]:
    # Nine of ten files below a usual root lie in folders that are left out: those are never looked into.
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        where = Path(folder).relative_to(root)
        yield from ((where / name).as_posix() for name in files if name.endswith(".py"))
