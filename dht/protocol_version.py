"""The version of the wire protocol and of the files in a peer's folder, and the refusal of any other version."""

from __future__ import annotations

from pathlib import Path

from dht.errors import BadInput

PROTOCOL_VERSION = 5
"""In invites, protocol names, keys of the DHT, records and frames. It changes when an older program would misread
one of them, or a file of a folder."""
RELEASES = {1: "0.1", 2: "0.2", 3: "0.3", 4: "0.4", 5: "0.5"}
"""The last homefires that speaks each version."""

_GENESIS_START = b"\x96"
"""Of a packed record, before its version: six fields."""
_NAMES_OF_1 = ("x", "chain/undone", "wish.json", "fit.json", "admitted", "ended", "orders", "ports")


def other_version(what: str, version: int) -> str:
    """Why `what` is refused, and what to do."""
    release = f"homefires {RELEASES[version]}" if version in RELEASES else "a newer homefires"
    return (
        f"{what} is of protocol version {version}, this homefires speaks version {PROTOCOL_VERSION}; install {release}"
    )


def require_this_version(directory: Path, *, by_genesis: bool = True) -> None:
    """Requires a folder of a peer or an organiser to be of this version, or new. Raises BadInput, and changes
    nothing. An audit, which doubts the genesis, goes by the names of files alone."""
    version = _version_of(directory, by_genesis)
    if version != PROTOCOL_VERSION:
        text = other_version(str(directory), version)
        raise BadInput(f"{text}, or name a new folder; nothing in this one was changed")


def _version_of(directory: Path, by_genesis: bool) -> int:
    if any((directory / name).exists() for name in _NAMES_OF_1):
        return 1
    genesis = directory / "genesis"
    start = genesis.read_bytes()[:2] if by_genesis and genesis.is_file() else b""
    return start[1] if start.startswith(_GENESIS_START) and len(start) == 2 else PROTOCOL_VERSION
