"""Where on this machine a run lies when nobody says so."""

from __future__ import annotations

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
