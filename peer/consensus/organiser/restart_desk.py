"""The organiser's node lets the remaining voters go on when a run has lost its quorum.

Voters that saw no quorum for long sign what they have (`Stuck`) and show it to the node. The node signs one `Restart`
once all peers that the organiser knows have come, or `wait_s` after the first. It needs no chain for that: a `Stuck`
names its electorate, and peers check all of it against their own head, so that a Restart of an electorate that never
existed has no effect. Peers in quarantine are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from peer.consensus.protocol.block import Restart, Roster, Stuck
from peer.consensus.protocol.electorate import may_restart, named
from peer.consensus.protocol.encoding import Keys, pack, row, unpack
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.validation import fault_of_stuck

QUESTION = "restart"
"""Under this name the node is asked whether it is there, with nothing, or shown a `Stuck`. It answers with nothing, or
with the Restart by which that voter goes on."""
MAX_RESTART_BYTES = 1 << 21
WAIT_S = 45.0
"""So long after the first that is stuck others may still come."""
DOUBLINGS = 10
HEARD_S = 30.0
"""Who waits asks six times as often."""
STRANGERS_MOST = 64
"""Voters of which something is kept though the organiser does not know them; who asked longest ago makes room. They
never go on unless a person says so."""
RESTARTS_MOST = 4096
"""Signed for those who ask, over all. A run loses its quorum now and then; only a liar makes agreements up."""
RESTARTS_EACH = 256
"""Of a voter, of which none is signed any more but with somebody who has had fewer: a liar that is known could else use
all of them up alone, and the run would wait for a person each time. Those by which the chain went on do not count:
nobody makes up one of these, and two friends may part each evening."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """An agreement that has lost its quorum: which of its voters have come to the node, and which have not."""

    about: bytes
    came: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Came:
    stuck: Stuck
    roster: Roster
    since: float
    """When the first voter came for this agreement."""
    heard_at: float


class RestartDesk:
    """Collects `Stuck`s and signs Restarts, one for an anchor, electorate and number. A voter counts for one
    agreement. `save` must have a Restart on disk when it returns; `signed` are those that earlier lives saved. A
    Restart is not signed while it `is_passed`, that is, while peers are here that have decided what follows its
    anchor, unless a person orders it."""

    def __init__(
        self, keys: Keys, save: Callable[[Restart], None], signed: Iterable[Restart] = (), *, wait_s: float = WAIT_S,
        is_passed: Callable[[Restart], bool] = lambda _: False, in_chain: Callable[[], Iterable[Restart]] = tuple,
    ) -> None:  # fmt: skip
        """`in_chain` gives the Restarts of the certified chain."""
        self.roster = Roster()
        """The newest list; an agreement is judged by the one that its own chain has."""
        self._keys, self._save, self._wait_s, self._is_passed = keys, save, wait_s, is_passed
        self._signed = {restart.stuck[0].about: restart for restart in signed}
        self._in_chain = in_chain
        self._counted = self._signed.copy()
        """Those that led to nothing, as far as is known."""
        self._came: dict[str, _Came] = {}
        """By voter; the one heard longest ago comes first."""

    def show(self, stuck: Stuck, now: float, roster: Roster | None = None) -> Restart | None:
        """Take note of a stuck voter; returns the Restart by which it goes on, once there is one. `roster` is that
        of its chain, if it is not the newest. Raises ValueError for a claim that cannot be true, and whatever `save`
        raises: then nothing is signed."""
        about = stuck.about
        if about in self._signed:
            return self._signed[about]
        head = ChainHead(
            anchor=stuck.anchor, round=0, weight=0, electorate=stuck.electorate, members=(), number=stuck.number - 1
        )
        fault = fault_of_stuck(self._keys, head, stuck)
        if fault:
            raise ValueError(fault)
        self._note(stuck, self.roster if roster is None else roster, now)
        return self._sign_if_due(about, now)

    def standing(self, now: float) -> list[Standstill]:
        """The agreements for which a voter has asked lately."""
        heard = {came.stuck.about: came.stuck for came in self._came.values() if now - came.heard_at < HEARD_S}
        return [
            Standstill(about, came, tuple(sorted({*stuck.electorate} - {*came})))
            for about, stuck in heard.items()
            for came in [tuple(sorted(self._stuck_in(about)))]
        ]

    def force(self, about: bytes) -> Restart | None:
        """Let the voters that have come go on although they are too few, since a person says so. None if only peers
        in quarantine have come."""
        left = sorted(set(self._stuck_in(about)) - set(self.roster.out))
        return self._sign(self._restart_of(about, left, forced=True)) if left else None

    def _note(self, stuck: Stuck, roster: Roster, now: float) -> None:
        before = self._came.pop(stuck.voter, None)
        since = before.since if before is not None and before.stuck.about == stuck.about else now
        self._came[stuck.voter] = _Came(stuck, roster, since, now)
        strangers = [voter for voter in self._came if voter not in self.roster.known]
        for voter in strangers[: max(0, len(strangers) - STRANGERS_MOST)]:
            del self._came[voter]

    def _stuck_in(self, about: bytes) -> dict[str, _Came]:
        return {voter: came for voter, came in self._came.items() if came.stuck.about == about}

    def _sign_if_due(self, about: bytes, now: float) -> Restart | None:
        came = self._stuck_in(about)
        voters = next(iter(came.values())).stuck.electorate
        # Of the list of their chain there is one word each: what is right by all of them their peers will not refuse.
        lists = {tuple(came[peer].roster.known) for peer in named(tuple(came), self.roster.known)}
        trusted = [peer for peer in voters if all(peer in named(voters, known) for known in lists)]
        out = set(self.roster.out)  # known or not: that a peer of theirs lies nobody else can take into account here
        left = sorted(came.keys() & set(trusted) - out)
        if not lists or not left or not self._may_sign_for(left):
            return None
        if not all(may_restart(voters, known, left) for known in lists):
            return None
        waits_s = self._patience_s(came[left[0]].stuck.number, len(left) == len(set(trusted) - out))
        if now - min(came[peer].since for peer in left) < waits_s or self._is_passed(self._restart_of(about, left)):
            return None
        return self._sign(self._restart_of(about, left))

    def _may_sign_for(self, voters: list[str]) -> bool:
        if self._is_used_up(voters):
            real = {restart.stuck[0].about: restart for restart in self._in_chain()}
            self._counted = {about: one for about, one in self._counted.items() if real.get(about) != one}
        return not self._is_used_up(voters)

    def _is_used_up(self, voters: list[str]) -> bool:
        times = Counter(voter for restart in self._counted.values() for voter in restart.electorate)
        return len(self._counted) >= RESTARTS_MOST or all(times[voter] >= RESTARTS_EACH for voter in voters)

    def _patience_s(self, number: int, all_came: bool) -> float:
        """Where a Restart did not help, the next one waits longer: otherwise a liar among the few that are left
        could use up all of them (`MAX_RESTARTS`), by sealing each at once, before a person can put it into
        quarantine."""
        again_s = self._wait_s * 2 ** min(number - 2, DOUBLINGS) if number > 1 else 0.0
        return again_s if all_came else max(self._wait_s, again_s)

    def _restart_of(self, about: bytes, left: list[str], *, forced: bool = False) -> Restart:
        """Not signed yet."""
        came = self._stuck_in(about)
        first = came[left[0]].stuck
        return Restart(first.anchor, first.number, tuple(came[peer].stuck for peer in left), forced)

    def _sign(self, restart: Restart) -> Restart:
        about, signed = restart.stuck[0].about, restart.signed(self._keys)
        self._save(signed)
        self._signed[about] = self._counted[about] = signed
        for voter in self._stuck_in(about):
            del self._came[voter]
        return signed


def packed_question(stuck: Stuck | None, roster: Roster) -> bytes:
    """`roster` is that of the asker's chain."""
    return b"" if stuck is None else pack((stuck.packed(), roster.packed()))


def read_question(packed: bytes) -> tuple[Stuck, Roster]:
    """Raises ValueError."""
    stuck, roster = row(unpack(packed), 2)
    return Stuck.unpacked(stuck), Roster.unpacked(roster)


def read_restart(packed: bytes) -> Restart:
    """Raises ValueError."""
    return Restart.unpacked(unpack(packed))
