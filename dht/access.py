"""Decides whom a peer works with: everybody with an invite, or only admitted peers; never a peer in quarantine.

It looks only at what the organiser has signed and asks nobody. So peers that know the same documents decide alike,
whether the organiser's node runs or not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from enum import StrEnum

from dht.admission import Admission, QuarantineList, read_admission

REMEMBERED_MOST = 4096
"""Admissions. Those shown last; they are checked again when they are shown again."""


class AccessList:
    """Admissions and orders that the organiser has signed about other peers. `clock` is Unix time in seconds."""

    def __init__(
        self, run: bytes, organiser: str, *, asks_admission: bool, clock: Callable[[], float] = time.time
    ) -> None:
        self.orders = QuarantineList()
        self.needed: Callable[[], Collection[str]] = lambda: ()
        """The voters and members of the present round: such peers finish it, in quarantine or not."""
        self.asks_admission = asks_admission
        self._run, self._organiser, self._clock = run, organiser, clock
        self._admitted: dict[str, Admission] = {}

    def learn(self, peer: str, shown: bytes) -> None:
        """A peer shows its admission; of two the one that lasts longer counts. Raises Malformed if the organiser has
        not signed it for this peer."""
        known = self._admitted.get(peer)
        if known is None or known.to_bytes() != shown:
            read = read_admission(shown, self._run, self._organiser, peer)
            known = read if known is None or read.outlasts(known) else known
        self._admitted.pop(peer, None)
        self._admitted[peer] = known
        if len(self._admitted) > REMEMBERED_MOST:
            del self._admitted[next(iter(self._admitted))]

    def has_admitted(self, peer: str) -> bool:
        """Whether this peer has shown an admission that has not expired."""
        admission = self._admitted.get(peer)
        return admission is not None and not admission.is_over(self._clock())

    def obey(self, orders: QuarantineList) -> bool:
        """Whether these orders are newer than the known ones; then they count."""
        if orders.number <= self.orders.number:
            return False
        self.orders = orders
        return True

    def kept_out(self) -> frozenset[str]:
        """Peers in quarantine, and peers whose admission has ended: nothing new begins with them."""
        now_s = self._clock()
        ended = (peer for peer, admission in self._admitted.items() if admission.is_over(now_s))
        return frozenset((*self.orders.quarantined, *(ended if self.asks_admission else ())))

    def why_not(self, peer: str) -> tuple[RejectCode, str] | None:
        """The reason why this peer does not work with another one; None if it does."""
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


SAY_AGAIN_S = 60.0
SAY_MOST = 32
"""Of a code within SAY_AGAIN_S, whomever it concerns."""

log = logging.getLogger(__name__)


class RejectCode(StrEnum):
    """Why something was refused."""

    SPEC = "SPEC"
    """A spec whose hash is not the one in the invite."""
    RECORD = "RECORD"
    """A record of the board that its author has not signed for this run, that is too large, or that lives too long."""
    REPLAY = "REPLAY"
    """An expired record that is put up again."""
    ORGANISER = "ORGANISER"
    """A peer that is not the run's organiser speaks in its name."""
    TOKEN = "TOKEN"
    """An invite that no longer admits: expired, used up, or of another run or organiser."""
    STRANGER = "STRANGER"
    """A peer without an admission, in a run that asks for one."""
    QUARANTINE = "QUARANTINE"
    """A peer in quarantine."""
    CLOCK = "CLOCK"
    """A clock that is further off than the network tolerates."""


class RejectionLog:
    """Writes refusals to the log, and calls `hear` (code, who, why) if it is set."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.hear: Callable[[RejectCode, str, str], None] = lambda code, who, why: None
        self._clock = clock
        self._said: dict[tuple[RejectCode, str], float] = {}
        """When each refusal was last reported within SAY_AGAIN_S, oldest first."""

    def __call__(self, code: RejectCode, who: str, why: str) -> None:
        """Report that something of `who` was refused, unless the same, or much of the kind, was just reported."""
        now = self._clock()
        while self._said and now - next(iter(self._said.values())) >= SAY_AGAIN_S:
            del self._said[next(iter(self._said))]
        if (code, who) in self._said or sum(said is code for said, _ in self._said) >= SAY_MOST:
            return
        self._said[code, who] = now
        log.warning("refused %s of %s: %s", code, who, why)
        self.hear(code, who, why)
