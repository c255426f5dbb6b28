"""Asks my peer for its status: its last answer, and until when it is snoozed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peer.node.control.client import Reply, note_of
from tui.text.event_text import PeerStatus, clock, next_snooze_h, read_status

ASK_EVERY_S = 2.0
"""The interval between two requests for the status."""
SNOOZED_S = 5.0
"""The time in which a snoozed peer reports it."""

UNANSWERED = 2
"""The number of consecutive failures after which they are reported: a single one may be due to the peer's start or
end."""

DONE = {
    "pause": "paused: what was trained in this round still counts",
    "resume": "training goes on",
    "finish": "the round is finished, then training pauses",
}
"""What a command means once it was obeyed."""


class StatusPoller:
    """Keeps the newest answer of a peer, and sends nothing itself. Times are Unix seconds."""

    def __init__(self) -> None:
        self.status: PeerStatus | None = None
        """None if the peer never answered, or not the last time."""
        self.silence = ""
        """Why the peer does not answer; empty while it does."""
        self._failures = 0
        self._asking = False
        self._asked_s = float("-inf")
        self._snoozed = (float("-inf"), 0.0)
        """The time of the last snooze from here, and its end."""

    def asks(self, now_s: float) -> bool:
        """Whether to ask for the status now; if so, it counts as asked."""
        if self._asking or abs(now_s - self._asked_s) < ASK_EVERY_S:
            return False
        self._asking, self._asked_s = True, now_s
        return True

    def take(self, cmd: str, reply: Reply, now_s: float) -> None:
        """Process an answer. Every answer except a refusal contains the status."""
        if cmd == "status":
            self._asking = False
            self.status = read_status(reply.fields) if reply.ok else None
            self._failures = 0 if reply.ok else self._failures + 1
            self.silence = reply.error if self._failures >= UNANSWERED else ""
            return
        if reply.ok and "holds" in reply.fields:
            self.status = read_status(reply.fields)
        self._asked_s = float("-inf")  # it may have changed: ask at once
        if not reply.ok or cmd in ("pause", "resume"):
            self._snoozed = (float("-inf"), 0.0)

    def snooze_h(self, now_s: float) -> int:
        """The hours for the next snooze: longer than the present one, or than one that was requested just before."""
        hold = self.status.hold("SNOOZED") if self.status is not None else None
        told_s, until = self._snoozed
        known = until if now_s - told_s < SNOOZED_S else 0.0
        hours = next_snooze_h(max(known, (hold.until or 0.0) if hold is not None else 0.0) - now_s)
        self._snoozed = (now_s, now_s + 3600 * hours)
        return hours


def done_words(cmd: str, asked: Mapping[str, Any], reply: Reply, now_s: float) -> str:
    """What a command means once it was obeyed; for a setting only a note, since its value is visible."""
    if cmd == "snooze":
        return f"snoozed until {clock(now_s + 60 * asked['minutes'], now_s)}; z again: longer; p resumes"
    if cmd == "set":
        return note_of(reply)  # its new value is in sight
    return DONE[cmd]
