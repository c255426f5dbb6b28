"""Who is a member of a run that asks for an admission, and whose admission the organiser does not renew.

An admission that is not renewed ends by itself; a quarantine (`bootstrap.quarantine_orders`) is for peers that must go
at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dht.atomic_files import file_stamp, write_atomic
from dht.errors import BadInput
from dht.identity import public_key_of
from dht.quarantine import MAX_REASON

ENDED_FILE = "ended"
NAMES_FILE = "names"
"""What members call themselves, as they said it last: written by the node, read by people alone."""


class NonRenewals:
    """Whom the organiser lets take part no longer than their admissions last: the file of a folder, as it is now."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: tuple[int, int] | None = None
        self._reasons: dict[str, str] = {}

    def look(self) -> dict[str, str]:
        """Reasons by peer. Raises BadInput for a damaged file."""
        stamp = file_stamp(self._directory / ENDED_FILE)
        if stamp != self._seen:
            self._reasons, self._seen = load_ended(self._directory), stamp
        return self._reasons


def load_ended(directory: Path) -> dict[str, str]:
    """Reasons by peer. Raises BadInput for a damaged file."""
    return _load(directory / ENDED_FILE, "move it away, and say again whose admission ends")


def load_names(directory: Path) -> dict[str, str]:
    """Names by peer. Raises BadInput for a damaged file."""
    return _load(directory / NAMES_FILE, "remove it, and the node writes it anew")


def save_names(directory: Path, names: Mapping[str, str]) -> None:
    """For `load_names`. Raises DiskFull."""
    write_atomic(directory / NAMES_FILE, json.dumps(names, indent=1).encode())


def end(directory: Path, peer: str, reason: str) -> None:
    """Renew a peer's admission no more. Raises BadInput for what nobody could read, DiskFull."""
    if public_key_of(peer) is None:
        raise BadInput(f"{peer[:60]!r} is not a peer id (12D3Koo…); homefires members lists them")
    if not 0 < len(reason) <= MAX_REASON or not reason.isprintable():
        raise BadInput(f"the reason must be 1 to {MAX_REASON} printable characters, for the peer's owner reads it")
    _save(directory, {**load_ended(directory), peer: reason})


def renew(directory: Path, peer: str) -> None:
    """Renew it again. Raises BadInput if it was not to end, DiskFull."""
    known = load_ended(directory)
    if peer not in known:
        raise BadInput(f"the admission of {peer[:60]!r} is not to end; homefires members shows whose is")
    _save(directory, {other: reason for other, reason in known.items() if other != peer})


def _save(directory: Path, reasons: dict[str, str]) -> None:
    write_atomic(directory / ENDED_FILE, json.dumps(reasons, indent=1).encode())


def _load(path: Path, remedy: str) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise BadInput(f"{path} is damaged; {remedy}")
    return found
