"""What this node refuses: a code that people can look up, whom it concerns, and why, as one line in the log.

What is refused costs an attacker nothing, nor does another name: the same thing is said once a minute at most, of each
code no more than `SAY_MOST` lines a minute, and nothing is remembered for longer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import StrEnum

SAY_AGAIN_S = 60.0
SAY_MOST = 32
"""Of a code within SAY_AGAIN_S, whomever it concerns."""

log = logging.getLogger(__name__)


class RejectCode(StrEnum):
    """Why something was refused."""

    SPEC = "SPEC"
    """A spec that does not hash to what the invite names."""
    RECORD = "RECORD"
    """A record of the board that is not what its author signed for this run, or too large, or to live too long."""
    REPLAY = "REPLAY"
    """A record whose time is over, put up again."""
    ORGANISER = "ORGANISER"
    """Somebody who is not the run's organiser speaks for it."""
    TOKEN = "TOKEN"
    """An invite that does not admit any more: expired, used up, or of another run or organiser."""
    STRANGER = "STRANGER"
    """A peer that the organiser has not admitted, in a run that asks for that."""
    QUARANTINE = "QUARANTINE"
    """A peer that the organiser keeps out."""
    CLOCK = "CLOCK"
    """A clock that is further off than the network bears."""


class RejectionLog:
    """Writes them to the log, and tells `hear` (code, who, why) if it is set."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.hear: Callable[[RejectCode, str, str], None] = lambda code, who, why: None
        self._clock = clock
        self._said: dict[tuple[RejectCode, str], float] = {}
        """When each was said within SAY_AGAIN_S, oldest first."""

    def __call__(self, code: RejectCode, who: str, why: str) -> None:
        """Say that something of `who` was refused, unless that, or much of the kind, has just been said."""
        now = self._clock()
        while self._said and now - next(iter(self._said.values())) >= SAY_AGAIN_S:
            del self._said[next(iter(self._said))]
        if (code, who) in self._said or sum(said is code for said, _ in self._said) >= SAY_MOST:
            return
        self._said[code, who] = now
        log.warning("refused %s of %s: %s", code, who, why)
        self.hear(code, who, why)
