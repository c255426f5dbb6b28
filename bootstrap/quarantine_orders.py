"""The organiser's orders on disk: written by `homefires quarantine`, read by its node, which passes them on at once."""

from __future__ import annotations

import time
from pathlib import Path

from bootstrap.report import Reporter
from dht.atomic_files import file_stamp
from dht.errors import BadInput
from dht.identity import Identity
from dht.quarantine import QuarantineList, load_quarantine, save_quarantine, sign_quarantine
from dht.rejections import RejectCode

ORDERS_FILE = "orders"


class OrdersFile:
    """The newest orders of a folder; what changes in them is reported. Raises BadInput for a file that is damaged now.

    One that is damaged, gone, or older while the node runs changes nothing: what was ordered last goes on.
    """

    def __init__(self, directory: Path, run: bytes, organiser: str, report: Reporter) -> None:
        self._path, self._run, self._organiser, self._report = directory / ORDERS_FILE, run, organiser, report
        self._seen = file_stamp(self._path)
        self._newest, self._told = load_quarantine(self._path, run, organiser), QuarantineList()

    def look(self) -> QuarantineList:
        """What they are now."""
        stamp = file_stamp(self._path)
        if stamp != self._seen:
            self._seen = stamp
            self._read()
        if self._newest is not self._told:
            before, self._told = self._told, self._newest
            self._tell(before)
        return self._newest

    def _read(self) -> None:
        try:
            found = load_quarantine(self._path, self._run, self._organiser)
        except BadInput as error:
            self._keep(str(error))
            return
        if found.number < self._newest.number:
            self._keep(f"{self._path} is gone, or holds older orders")
        else:
            self._newest = found

    def _keep(self, why: str) -> None:
        text = f"{why}: what was ordered last goes on as long as this node runs"
        self._report("AlertRaised", level="warning", code=RejectCode.RECORD, text=text)

    async def answer(self, peer: str, request: bytes) -> bytes | None:
        """The orders, if they are newer than the number in the request."""
        orders = self.look()
        return orders.to_bytes() if orders.number > int.from_bytes(request[:8], "big") else None

    def _tell(self, before: QuarantineList) -> None:
        for peer, reason in sorted(self._newest.quarantined.items()):
            if before.quarantined.get(peer) != reason:
                text = f"{peer} is in quarantine: {reason}"
                self._report("AlertRaised", level="warning", code=RejectCode.QUARANTINE, text=text)
        for peer in sorted(before.quarantined.keys() - self._newest.quarantined.keys()):
            text = f"the quarantine of {peer} is lifted"
            self._report("AlertRaised", level="info", code=RejectCode.QUARANTINE, text=text)


def quarantine(directory: Path, organiser: Identity, run: bytes, peer: str, reason: str) -> QuarantineList:
    """Keep a peer out from now on. Raises BadInput for what no peer would read, DiskFull."""
    if peer == organiser.peer_id:
        raise BadInput("this is the organiser's own key; it cannot be put in quarantine")
    known = load_quarantine(directory / ORDERS_FILE, run, organiser.peer_id)
    return _save(directory, sign_quarantine(organiser, run, _next(known), {**known.quarantined, peer: reason}))


def lift(directory: Path, organiser: Identity, run: bytes, peer: str) -> QuarantineList:
    """Let a peer in again. Raises BadInput if it is not kept out, DiskFull."""
    known = load_quarantine(directory / ORDERS_FILE, run, organiser.peer_id)
    if peer not in known.quarantined:
        kept_out = ", ".join(sorted(known.quarantined)) or "nobody"
        raise BadInput(f"{peer[:60]!r} is not in quarantine; {kept_out} is")
    others = {other: reason for other, reason in known.quarantined.items() if other != peer}
    return _save(directory, sign_quarantine(organiser, run, _next(known), others))


def _next(known: QuarantineList) -> int:
    """By the clock: they must count also where this folder was lost, or is an old copy, and others know newer ones."""
    return max(known.number + 1, round(time.time()))


def _save(directory: Path, orders: QuarantineList) -> QuarantineList:
    save_quarantine(directory / ORDERS_FILE, orders)
    return orders
