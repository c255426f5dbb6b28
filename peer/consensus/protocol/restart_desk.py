"""What the organiser's node does when a run has lost its quorum: it lets those who are left go on.

Voters that saw no quorum for long seal what they have (`Stuck`) and show it to the node. Once all of those whom the
organiser knows have come, or `wait_s` after the first, the node signs one `Restart`. It needs no chain for that: a
`Stuck` names the electorate that it is about, and peers check all of it against their own head, so that a Restart for
an electorate that never was means nothing to anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from peer.consensus.protocol.block import Restart, Roster, Stuck
from peer.consensus.protocol.electorate import may_restart, named
from peer.consensus.protocol.encoding import Keys
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.validation import fault_of_stuck

WAIT_S = 45.0
"""So long after the first that is stuck others may still come."""
INSTANCES_MOST = 64
"""Agreements of which something is kept; the one heard of longest ago makes room."""


class RestartDesk:
    """Collects `Stuck`s and signs Restarts, one for an anchor, electorate and number.

    `save` has to have a Restart on disk when it returns; `signed` are those that it saved in earlier lives.
    """

    def __init__(
        self, keys: Keys, save: Callable[[Restart], None], signed: Iterable[Restart] = (), *, wait_s: float = WAIT_S
    ) -> None:
        self.roster = Roster()
        self._keys, self._save, self._wait_s = keys, save, wait_s
        self._signed = {restart.stuck[0].about: restart for restart in signed}
        self._came: dict[bytes, dict[str, Stuck]] = {}
        self._first_at: dict[bytes, float] = {}

    def show(self, stuck: Stuck, now: float) -> Restart | None:
        """Take note of one that is stuck; returns the Restart by which it goes on, once there is one.

        Raises ValueError for one that cannot be.
        """
        about = stuck.about
        if about in self._signed:
            return self._signed[about]
        head = ChainHead(
            anchor=stuck.anchor, round=0, weight=0, electorate=stuck.electorate, members=(), number=stuck.number - 1
        )
        fault = fault_of_stuck(self._keys, head, stuck)
        if fault:
            raise ValueError(fault)
        if about not in self._came and len(self._came) >= INSTANCES_MOST:
            oldest = min(self._first_at, key=self._first_at.__getitem__)
            del self._came[oldest], self._first_at[oldest]
        self._came.setdefault(about, {})[stuck.voter] = stuck
        self._first_at.setdefault(about, now)
        return self._sign_if_due(about, now)

    def waiting(self) -> dict[str, tuple[str, ...]]:
        """For each round that stands still, by its anchor in hex, which voters have come of which electorate."""
        return {
            stucks[voter].anchor.hex(): tuple(sorted(stucks))
            for stucks in self._came.values()
            for voter in list(stucks)[:1]
        }

    def force(self) -> list[Restart]:
        """Let those who have come go on though they are too few: a person says so."""
        return [self._sign(about, sorted(stucks), forced=True) for about, stucks in list(self._came.items())]

    def _sign_if_due(self, about: bytes, now: float) -> Restart | None:
        came = self._came[about]
        voters = next(iter(came.values())).electorate
        trusted = named(voters, self.roster.known)
        left = sorted(came.keys() & set(trusted))
        if not left or not may_restart(voters, self.roster.known, left):
            return None
        if len(left) < len(trusted) and now - self._first_at[about] < self._wait_s:
            return None
        return self._sign(about, left, forced=False)

    def _sign(self, about: bytes, left: list[str], *, forced: bool) -> Restart:
        came = self._came.pop(about)
        del self._first_at[about]
        first = came[left[0]]
        restart = Restart(first.anchor, first.number, tuple(came[peer] for peer in left), forced).signed(self._keys)
        self._save(restart)
        self._signed[about] = restart
        return restart
