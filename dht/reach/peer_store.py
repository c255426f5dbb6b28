"""A file of the peers that this peer has met. After a restart it dials them besides the invite's addresses."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dht.addresses import can_be_dialled, check_dial, peer_id_in
from dht.atomic_files import write_atomic
from dht.errors import DiskFull
from dht.records import MAX_ADDRESSES

PEERS_MOST = 32
FILE_BYTES_MOST = 1 << 16
VERSION = 1

log = logging.getLogger(__name__)


class PeerStore:
    """At most `PEERS_MOST` peers with `MAX_ADDRESSES` each, the one met last first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._peers = _load(path)

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(address for addresses in self._peers.values() for address in addresses)

    def note_named(self, addresses: Sequence[str]) -> None:
        """Somebody names peers. Raises BadAddress before anything is noted."""
        named: dict[str, list[str]] = {}
        for address in addresses:
            named.setdefault(peer_id_in(check_dial(address)), []).append(address)
        for peer, theirs in named.items():
            known = [address for address in self._peers.get(peer, ()) if address not in theirs]
            self.note(peer, [*theirs, *known])  # what is said may be older than what is known

    def note(self, peer: str, addresses: Sequence[str]) -> None:
        """This peer was met; these are its addresses. They are on disk at return, unless the disk is full."""
        good = tuple(address for address in addresses[:MAX_ADDRESSES] if _belongs(peer, address))
        if not good or next(iter(self._peers.items()), None) == (peer, good):
            return
        others = {other: known for other, known in self._peers.items() if other != peer}
        self._peers = dict(list({peer: good, **others}.items())[:PEERS_MOST])
        try:
            write_atomic(self._path, json.dumps({"v": VERSION, "peers": self._peers}, indent=1).encode())
        except DiskFull as error:
            log.warning("peers that were met are not remembered: %s", error)


def _load(path: Path) -> dict[str, tuple[str, ...]]:
    """The peers in the file that can be dialled. A damaged file counts as empty, since nothing depends on it."""
    if not path.exists():
        return {}
    try:
        found = _read(path)
    except (ValueError, RecursionError) as error:
        log.warning("%s is damaged, peers that were met are forgotten: %s", path, error)
        return {}
    return dict(list(found.items())[:PEERS_MOST])


def _read(path: Path) -> dict[str, tuple[str, ...]]:
    with path.open("rb") as file:
        raw = file.read(FILE_BYTES_MOST + 1)
    if len(raw) > FILE_BYTES_MOST:
        raise ValueError("it is too large")
    match json.loads(raw):
        case {"v": 1, "peers": dict(peers)}:
            return {peer: good for peer, addresses in peers.items() if (good := _good(peer, addresses))}
    raise ValueError("it is not a list of peers")


def _good(peer: str, addresses: Any) -> tuple[str, ...]:
    if not isinstance(addresses, list):
        return ()
    return tuple(item for item in addresses[:MAX_ADDRESSES] if isinstance(item, str) and _belongs(peer, item))


def _belongs(peer: str, address: str) -> bool:
    return can_be_dialled(address) and peer_id_in(address) == peer
