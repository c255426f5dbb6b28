"""Where on this machine a run lies when nobody says so."""

from __future__ import annotations

import re
from pathlib import Path

from platformdirs import user_data_path

ERROR_LOG = "error.log"
"""Below `data_root`: the traceback of the last bug that a command met."""


def data_root() -> Path:
    """The folder of everything of ours that outlives a process."""
    return user_data_path("homefires", appauthor=False)


def default_directory(kind: str, run: str, spec_hash: bytes) -> Path:
    """The folder of a run; `kind` is `runs` for a peer, `bootstrap` for the organiser's node."""
    return data_root() / kind / f"{run}-{spec_hash.hex()[:8]}"


def namesakes(directory: Path) -> list[Path]:
    """Folders with a key beside a `default_directory`: of other runs of the same name."""
    name = directory.name.rpartition("-")[0]
    pattern = re.compile(rf"{re.escape(name)}-[0-9a-f]{{8}}")
    found = directory.parent.iterdir() if directory.parent.is_dir() else ()
    return sorted(
        path
        for path in found
        if path != directory and pattern.fullmatch(path.name) and (path / "identity.key").exists()
    )
