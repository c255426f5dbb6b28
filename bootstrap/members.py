"""The members of a run that asks for an admission, and those whose admission the organiser does not renew.

An admission that is not renewed ends by itself. To exclude a peer at once, use a quarantine (`bootstrap.organiser`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from dht.admission import FOR_EVER, LASTS_S, MAX_REASON, RENEWED_FROM, Admission, QuarantineList, issue_admission
from dht.atomic_files import file_stamp, raising_disk_full, write_atomic
from dht.errors import BadInput, BadInvite
from dht.identity import Identity, public_key_of
from dht.invite import parse

ENDED_FILE = "not_renewed.json"
NAMES_FILE = "member_names.json"
"""What members call themselves, as they said it last: written by the node, read by people alone."""


class NonRenewals:
    """The peers whose admission the organiser does not renew: the file of a folder, as it is now."""

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
    return load_table(directory / ENDED_FILE, _is_text, "move it away, and say again whose admission ends")


def load_names(directory: Path) -> dict[str, str]:
    """Names by peer. Raises BadInput for a damaged file."""
    return load_table(directory / NAMES_FILE, _is_text, "remove it, and the node writes it anew")


def save_names(directory: Path, names: Mapping[str, str]) -> None:
    """Written for `load_names`. Raises DiskFull."""
    _save_table(directory / NAMES_FILE, names)


def end(directory: Path, peer: str, reason: str) -> None:
    """Do not renew a peer's admission any more. Raises BadInput for a reason that nobody could read, DiskFull."""
    if public_key_of(peer) is None:
        raise BadInput(f"{peer[:60]!r} is not a peer id (12D3Koo…); homefires members lists them")
    if not 0 < len(reason) <= MAX_REASON or not reason.isprintable():
        raise BadInput(f"the reason must be 1 to {MAX_REASON} printable characters, for the peer's owner reads it")
    _save_table(directory / ENDED_FILE, {**load_ended(directory), peer: reason})


def renew(directory: Path, peer: str) -> None:
    """Renew it again. Raises BadInput if it was not to end, DiskFull."""
    known = load_ended(directory)
    if peer not in known:
        raise BadInput(f"the admission of {peer[:60]!r} is not to end; homefires members shows whose is")
    _save_table(directory / ENDED_FILE, {other: reason for other, reason in known.items() if other != peer})


def load_table(path: Path, is_value: Callable[[Any], bool], remedy: str) -> dict[str, Any]:
    """A JSON object of such values by name; empty without the file. Raises BadInput that names the remedy."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(map(is_value, found.values())):
        raise BadInput(f"{path} is damaged; {remedy}")
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _save_table(path: Path, table: Mapping[str, str]) -> None:
    write_atomic(path, json.dumps(table, indent=1).encode())


BOOK_FILE = "admissions.jsonl"
ADMITTED_MOST = 4096
"""Members at a time. An invite that may be shown by many admits no more keys than that."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An admission, or the reason of a refusal."""

    admission: Admission | None = None
    why: str = ""
    is_new: bool = False
    """Whether the peer was unknown before."""

    def to_bytes(self) -> bytes:
        """msgpack of the admission's bytes, empty if there is none, and of the reason."""
        shown = b"" if self.admission is None else self.admission.to_bytes()
        packed: bytes = msgpack.packb([shown, self.why])
        return packed


class AdmissionBook:
    """Which peer was admitted for which token, and until when. A line is on disk before it is sent."""

    def __init__(self, directory: Path, organiser: Identity, run: bytes, lasts_s: float = LASTS_S) -> None:
        assert lasts_s > 0
        self._path, self._organiser, self._run, self._lasts_s = directory / BOOK_FILE, organiser, run, lasts_s
        self._ended = NonRenewals(directory)
        self._used: dict[str, str] = {}
        """Single-use tokens, in hex, and the peers that used them."""
        self._until: dict[str, float] = {}
        """When each peer's newest admission ends."""
        for row in read_book(directory):
            self._note(row)

    def has_admitted(self, peer: str, now_s: float) -> bool:
        until = self._until.get(peer)
        return until is not None and (until == FOR_EVER or until > now_s)

    def members(self, now_s: float) -> frozenset[str]:
        return frozenset(peer for peer, until in self._until.items() if until == FOR_EVER or until > now_s)

    def answer(self, peer: str, text: str, orders: QuarantineList, now_s: float) -> Answer:
        """Admit the peer that shows this invite. A peer that was admitted before needs no invite, and gets the next
        admission in time. Raises DiskFull, BadInput for a damaged file."""
        if peer in orders.quarantined:
            return Answer(why=f"the organiser keeps this peer out: {orders.quarantined[peer]}")
        if (reason := self._ended.look().get(peer)) is not None:
            return Answer(why=f"the organiser lets it take part no longer: {reason}")
        is_new = peer not in self._until
        if is_new and (why := self._why_not(peer, text, now_s)):
            return Answer(why=why)
        if not is_new and self._is_due(peer, now_s):
            self._write(peer, "", once=False, now_s=now_s)
        return Answer(admission=issue_admission(self._organiser, self._run, peer, self._until[peer]), is_new=is_new)

    def _is_due(self, peer: str, now_s: float) -> bool:
        """Whether the next admission is due: otherwise a peer that asks every second would fill the book."""
        until = self._until[peer]
        return until != FOR_EVER and until - now_s < RENEWED_FROM * self._lasts_s

    def _why_not(self, peer: str, text: str, now_s: float) -> str:
        """Empty, and written to the book, if the invite admits this newcomer; otherwise the reason."""
        try:
            invite = parse(text, now_s)
        except BadInvite as error:
            return str(error)
        if invite.organiser != self._organiser.peer_id or invite.spec_hash != self._run:
            return "this invite is of another run or organiser; ask this run's organiser for one"
        if invite.token is None:
            return "this invite admits nobody; ask the organiser for one with a token"
        if self._used.get(invite.token.hex(), peer) != peer:
            return "this invite was for one peer, and another has used it; ask the organiser for a new one"
        if len(self.members(now_s)) >= ADMITTED_MOST:
            return f"the run has {ADMITTED_MOST} members, and has room for no more"
        self._write(peer, invite.token.hex(), once=invite.once, now_s=now_s)
        return ""

    def _write(self, peer: str, token: str, *, once: bool, now_s: float) -> None:
        until = round(now_s + self._lasts_s, 3)
        row = {"peer": peer, "token": token, "once": once, "at": round(now_s), "until": until}
        # Nobody else on this machine can read it: the token of an invite for many admits whoever knows it.
        with raising_disk_full(self._path.parent), open(self._path, "ab", opener=_private) as file:
            # The line before may have been cut off by a crash.
            file.write(b"\n" + json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._note(row)

    def _note(self, row: dict[str, Any]) -> None:
        self._until[row["peer"]] = row["until"]
        if row["once"]:
            self._used[row["token"]] = row["peer"]


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def read_book(directory: Path) -> list[dict[str, Any]]:
    """The lines of a folder's book, the oldest first. The last may be cut off: then nobody heard of that admission."""
    path = directory / BOOK_FILE
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        match row:
            case {"peer": str(peer), "token": str(), "once": bool()} if public_key_of(peer) is not None:
                until = row.get("until", FOR_EVER)  # without one it is of an earlier version
                if isinstance(until, int | float) and math.isfinite(until):
                    rows.append(row | {"until": float(until)})
    return rows
