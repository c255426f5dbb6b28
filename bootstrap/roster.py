"""The organiser's signed list of known peers: founders, admitted and promoted peers, without those in quarantine.

All other peers are strangers. Together they hold less than a third of the votes, however many they are and however
long they stay. Each change raises the list's number, and the list is written to disk before it is sent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from bootstrap.members import load_table
from dht.atomic_files import file_stamp, write_atomic
from dht.errors import BadInput, DiskFull
from dht.identity import Identity, RunKeys, public_key_of
from peer.consensus.organiser.rosters import NUMBER_BYTES, unsigned
from peer.consensus.protocol.block import MAX_MEMBERS, Roster
from peer.consensus.protocol.encoding import pack, unpack
from peer.schema.events import AlertRaised, Event

ROSTER_FILE, PROMOTED_FILE = "roster", "promoted.json"


class RosterFile:
    """The newest list of a folder. Raises BadInput for a damaged file."""

    def __init__(self, directory: Path, identity: Identity, run: bytes, report: Callable[[Event], None]) -> None:
        self._directory, self._keys, self._report = directory, RunKeys(identity, run), report
        self.newest = _load(directory / ROSTER_FILE, self._keys)
        self._promoted: Mapping[str, str] = {}
        self._seen: tuple[int, int] | None = None
        self._trouble = ""

    def look(self, founders: tuple[str, ...], admitted: Collection[str], out: Iterable[str]) -> Roster:
        """The list as it must be now, signed anew if it has changed; the old one if it cannot be written."""
        try:
            return self._look(founders, admitted, out)
        except (DiskFull, BadInput) as error:
            if str(error) != self._trouble:
                text = f"the organiser's list stays as it was: {error}"
                self._report(AlertRaised(level="error", code="ROSTER", text=text))
            self._trouble = str(error)
            return self.newest if self.newest.number else Roster(0, founders)

    def _look(self, founders: tuple[str, ...], admitted: Collection[str], out: Iterable[str]) -> Roster:
        stamp = file_stamp(self._directory / PROMOTED_FILE)
        if stamp != self._seen:
            self._promoted = load_promoted(self._directory)
            self._seen = stamp
        known = (*founders, *self._promoted, *sorted(admitted))
        # By the clock: it must count also where this folder was lost, and others know a newer list.
        number = max(self.newest.number + 1, round(time.time()))
        wanted = unsigned(number, known, _those_who_vote_first(out, known))
        before = self.newest if self.newest.number else Roster(0, founders)
        if (wanted.known, wanted.out) == (before.known, before.out):
            return before
        signed = wanted.signed(self._keys)
        write_atomic(self._directory / ROSTER_FILE, pack(signed.packed()))
        self.newest = signed
        text = f"the organiser's list names {len(signed.known)} peers now, and keeps {len(signed.out)} out"
        left = len(set(known) - set(out)) - len(signed.known)
        more = f"; {left} more are strangers, for it has room for {MAX_MEMBERS}" if left else ""
        self._report(AlertRaised(level="info", code="ROSTER", text=text + more))
        return signed

    async def answer(self, peer: str, request: bytes) -> bytes | None:
        """The list, if it is newer than the number in the request."""
        is_newer = self.newest.number > int.from_bytes(request[:NUMBER_BYTES], "big")
        return pack(self.newest.packed()) if is_newer else None


def _those_who_vote_first(out: Iterable[str], known: Collection[str]) -> list[str]:
    return sorted(out, key=lambda peer: (peer not in known, peer))


def _load(path: Path, keys: RunKeys) -> Roster:
    if not path.exists():
        return Roster()
    try:
        roster = Roster.unpacked(unpack(path.read_bytes()))
        if not keys.verify(keys.identity.peer_id, "roster", roster.payload(), roster.signature):
            raise ValueError("this key has not signed it for this run")
    except ValueError as error:
        raise BadInput(f"{path} is damaged ({error}); move it away, and the node signs a newer one") from error
    return roster


# ---- whom the organiser promotes ----


def load_promoted(directory: Path) -> dict[str, str]:
    """How each peer came to be known. Raises BadInput for a damaged file."""
    return load_table(
        directory / PROMOTED_FILE, lambda how: isinstance(how, str), "move it away, and promote them again"
    )


def promote(directory: Path, peer: str, how: str) -> None:
    """Make a peer a known one from now on. Raises BadInput for a text that is no peer id, DiskFull."""
    if public_key_of(peer) is None:
        raise BadInput(f"{peer[:60]!r} is not a peer id (12D3Koo…); the Peers screen shows it")
    _save(directory, {**load_promoted(directory), peer: how})


def demote(directory: Path, peer: str) -> None:
    """Undo `promote`. Raises BadInput if the peer was not promoted, DiskFull."""
    known = load_promoted(directory)
    if peer not in known:
        raise BadInput(f"{peer[:60]!r} was not promoted; homefires members shows who was")
    _save(directory, {other: how for other, how in known.items() if other != peer})


def _save(directory: Path, promoted: Mapping[str, str]) -> None:
    write_atomic(directory / PROMOTED_FILE, json.dumps(promoted, indent=1).encode())
