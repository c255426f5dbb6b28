"""Whom a peer works with: everybody with an invite, or those whom the organiser has admitted; nobody in quarantine.

It knows what was shown to it and asks nobody. All of it follows from what the organiser has signed, so peers that know
the same come to the same, whether the organiser's node is there or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from dht.admission import Admission, read_admission
from dht.quarantine import QuarantineList
from dht.rejections import RejectCode

REMEMBERED_MOST = 4096
"""Admissions. Those shown last; they are checked again when they are shown again."""


class AccessList:
    """What the organiser has signed of other peers. `clock` is Unix time in seconds."""

    def __init__(
        self, run: bytes, organiser: str, *, asks_admission: bool, clock: Callable[[], float] = time.time
    ) -> None:
        self.orders = QuarantineList()
        self.needed: Callable[[], Collection[str]] = lambda: ()
        """Who votes or is a member in the round that is being made: such peers finish it, kept out or not."""
        self.asks_admission = asks_admission
        self._run, self._organiser, self._clock = run, organiser, clock
        self._admitted: dict[str, Admission] = {}

    def learn(self, peer: str, shown: bytes) -> None:
        """A peer shows its admission; of two the one that lasts longer counts.

        Raises Malformed if it is none of the organiser's for this peer.
        """
        known = self._admitted.get(peer)
        if known is None or known.to_bytes() != shown:
            read = read_admission(shown, self._run, self._organiser, peer)
            known = read if known is None or read.outlasts(known) else known
        self._admitted.pop(peer, None)
        self._admitted[peer] = known
        if len(self._admitted) > REMEMBERED_MOST:
            del self._admitted[next(iter(self._admitted))]

    def obey(self, orders: QuarantineList) -> bool:
        """Whether these are newer than those that were known; then they count."""
        if orders.number <= self.orders.number:
            return False
        self.orders = orders
        return True

    def kept_out(self) -> frozenset[str]:
        """Those in quarantine, and those whose admission has ended: with them nothing new begins."""
        now_s = self._clock()
        ended = (peer for peer, admission in self._admitted.items() if admission.is_over(now_s))
        return frozenset((*self.orders.quarantined, *(ended if self.asks_admission else ())))

    def why_not(self, peer: str) -> tuple[RejectCode, str] | None:
        """Why this peer does not work with another; None if it does."""
        reason = self.orders.quarantined.get(peer)
        if reason is not None and peer not in self.needed():
            return RejectCode.QUARANTINE, f"the organiser keeps it out: {reason}"
        if not self.asks_admission or peer == self._organiser:
            return None
        admission = self._admitted.get(peer)
        if admission is None:
            return RejectCode.STRANGER, "it shows no admission of the organiser"
        if admission.is_over(self._clock()) and peer not in self.needed():
            return RejectCode.STRANGER, "its admission is over"
        return None
