"""Whom the organiser has admitted: the book that its node keeps, a line per peer, and what it answers newcomers."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from dht.admission import Admission, admit
from dht.errors import BadInvite
from dht.files import telling_full_disk
from dht.identity import Identity, public_key_of
from dht.invite import Invite, parse
from dht.orders import Orders

ADMITTED_MOST = 4096
"""A run has no more peers. An invite that may be shown by many admits no more keys than that."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An admission, or why there is none."""

    admission: Admission | None = None
    why: str = ""

    def to_bytes(self) -> bytes:
        """msgpack of the admission's bytes, empty for none, and of the reason."""
        shown = b"" if self.admission is None else self.admission.to_bytes()
        packed: bytes = msgpack.packb([shown, self.why])
        return packed


class Book:
    """Which peer was admitted for which token. A line is on disk before anybody hears of the admission."""

    def __init__(self, path: Path, organiser: Identity, run: bytes) -> None:
        self._path, self._organiser, self._run = path, organiser, run
        self._used: dict[str, str] = {}
        """Single-use tokens, in hex, and by whom."""
        self._peers: set[str] = set()
        for row in _read_lines(path):
            self._note(row)

    @property
    def peers(self) -> frozenset[str]:
        """Everybody who was ever admitted."""
        return frozenset(self._peers)

    def answer(self, peer: str, text: str, orders: Orders, now_s: float) -> Answer:
        """Admit the peer that shows this invite; the same again who was admitted before. Raises DiskFull."""
        if peer in orders.quarantined:
            return Answer(why=f"the organiser keeps this peer out: {orders.quarantined[peer]}")
        if peer not in self._peers:
            why = self._why_not(peer, text, now_s)
            if why:
                return Answer(why=why)
        return Answer(admission=admit(self._organiser, self._run, peer))

    def _why_not(self, peer: str, text: str, now_s: float) -> str:
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
        if len(self._peers) >= ADMITTED_MOST:
            return f"the run has admitted {ADMITTED_MOST} peers, and has room for no more"
        self._write(peer, invite, now_s)
        return ""

    def _write(self, peer: str, invite: Invite, now_s: float) -> None:
        assert invite.token is not None
        row = {"peer": peer, "token": invite.token.hex(), "once": invite.once, "at": round(now_s)}
        with telling_full_disk(self._path.parent), self._path.open("ab") as file:
            # The line before may have been cut off by a crash.
            file.write(b"\n" + json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._note(row)

    def _note(self, row: dict[str, Any]) -> None:
        self._peers.add(row["peer"])
        if row["once"]:
            self._used[row["token"]] = row["peer"]


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of the book. The last one may be cut off: nobody heard of that admission."""
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
                rows.append(row)
    return rows
