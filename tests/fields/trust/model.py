"""Ballots, locks, `Stuck` and `Restart` of one anchor by explicit states: can two updates be decided, or none ever?

What decides is the product's own: `quorum`, the rule by which a voter that is locked follows another update,
`may_restart`, and what a `Restart` decides. The network delivers anything, at any time, in any order, or never. Liars
sign anything, lead any ballot, propose two updates in it, and show or hide any certificate that exists.

The states are few for these reasons, of which each keeps all behaviours that matter:

- Honest voters are alike: a state is how many are in which state of their own, and the same with A and B changed over.
- Of votes only their number is kept; from a quorum on it is all the same, and so is what can never become a quorum.
- Two updates are enough. Let A be one that is decided, and B stand for all others together: that only allows more.
- Promises only forbid, so a voter's newest vote stands for what it promised; votes of the first phase lock nobody.
- Of those who come to the organiser only what the newest of them has accepted matters, and whether they are enough.
  Those who go on with nothing accepted can decide anything, so nothing may be decided without them, before or after.
  What they then do among themselves is this model again, of fewer voters.

It is cut at so many ballots (`Model.ballots`), and within these all states are seen; nothing is said of what more of
them could do. Left out: how updates are checked, clocks, how the next electorate follows from an update, what a person
forces; and a liar whom the organiser knows, who among those who go on seals again and again and never votes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, cast

from peer.consensus.protocol.block import Restart, Stuck, Vote
from peer.consensus.protocol.electorate import may_restart, quorum
from peer.consensus.rounds import acceptor
from peer.consensus.rounds.state import Acceptor, Proposal

A, B = 0, 1
UPDATES = (A, B)
Lock = tuple[int, int]
"""The ballot in which an update was accepted, and the update."""
NONE: Lock = (-1, -1)
FRESH = 2
"""In place of an update: a Restart after which those who sealed begin anew."""
NAMES = tuple("abcdefghij")


@dataclass(frozen=True, slots=True)
class _Named:
    """As much of an update as the lock rule looks at."""

    digest: bytes


def _digest(update: int) -> bytes:
    return bytes([update]) * 32


def _certificate(ballot: int, update: int) -> tuple[Vote, ...]:
    return (Vote(NAMES[0], b"", ballot, _digest(update), b"", phase=1),) if ballot >= 0 else ()


@cache
def follows(lock: Lock, update: int, newest: int) -> bool:
    """Whether a voter with that lock checks an update of which a quorum was seen in ballot `newest`."""
    accepted = None if lock == NONE else (lock[0], _digest(lock[1]))
    proposal = Proposal(newest + 1, cast(Any, _Named(_digest(update))), b"", _certificate(newest, update))
    return acceptor._may_follow(Acceptor(b"", b"", accepted=accepted), proposal)


@cache
def decided_by(locks: tuple[Lock, ...]) -> Lock:
    """What a Restart of voters that have accepted these decides."""
    stuck = (Stuck("", b"", (), 1, None if lock == NONE else (lock[0], _digest(lock[1]))) for lock in locks)
    value = Restart(b"", 1, tuple(stuck)).value
    return NONE if value is None else (value[0], value[1][0])


@dataclass(frozen=True, slots=True)
class Law:
    """What the product goes by. A mutant has one of these otherwise."""

    quorum: Callable[[Sequence[object]], int] = quorum
    follows: Callable[[Lock, int, int], bool] = follows
    may_restart: Callable[[Sequence[str], Collection[str], Collection[str]], bool] = may_restart
    asks_prepared: bool = True
    """Whether nobody accepts before a quorum has prepared."""
    seals: bool = True
    """Whether a Stuck is on disk before it is said, so that its voter votes no more after it comes back."""


class Voter(NamedTuple):
    """An honest one."""

    shown: Lock | tuple[()] = ()
    """What it showed the organiser when it sealed; () before."""
    ballot: int = -1
    """The newest in which it prepared something."""
    prepared: int = -1
    """What, as long as it may still accept it there."""
    lock: Lock = NONE


class State(NamedTuple):
    """`prepared` and `accepted`: how many honest voters did, for each ballot and update."""

    voters: tuple[Voter, ...]
    prepared: tuple[int, ...]
    accepted: tuple[int, ...]
    restarted: int = -1
    """What a Restart has decided, or `FRESH`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one exploration came to."""

    states: int
    broken: str = ""
    """What does not hold in some state; empty if all holds in all."""
    path: tuple[str, ...] = ()
    """How it comes to that."""
    whole: bool = True
    """Whether all states were seen."""


@dataclass
class Model:
    """An electorate of `honest` voters and `liars`; of the liars `strangers` are not on the organiser's list."""

    honest: int
    liars: int
    strangers: int = 0
    ballots: int = 2
    law: Law = field(default_factory=Law)
    restarts: bool = True

    def __post_init__(self) -> None:
        self.electorate = NAMES[: self.honest + self.liars]
        self.known = NAMES[: self.honest + self.liars - self.strangers]
        self.quorum = self.law.quorum(self.electorate)
        self.need = self.quorum - self.liars
        """Honest votes that make a quorum with those of the liars."""
        assert self.need > 0
        self.enough = [self._may_go_on(left) for left in range(len(self.electorate) + 1)]

    def _may_go_on(self, left: int) -> bool:
        """So many whom the organiser knows."""
        return left <= len(self.known) and self.law.may_restart(self.electorate, self.known, self.known[:left])

    @property
    def start(self) -> State:
        none = (0,) * (2 * self.ballots)
        return State((Voter(),) * self.honest, none, none)

    # ---- what has been said ----

    def certified(self, state: State, ballot: int, update: int) -> bool:
        """Whether a quorum, liars among them, has prepared it there."""
        return state.prepared[2 * ballot + update] >= self.need

    def newest(self, state: State, update: int, upto: int) -> int:
        """The newest ballot in which a quorum has prepared an update; -1 for none."""
        return next((ballot for ballot in range(upto, -1, -1) if self.certified(state, ballot, update)), -1)

    def decided(self, state: State) -> set[int]:
        found = {place % 2 for place, votes in enumerate(state.accepted) if votes >= self.need}
        return found if state.restarted < 0 else found | {state.restarted}

    def shown_by_liars(self, state: State) -> list[Lock]:
        """Any certificate that exists."""
        return [(place // 2, place % 2) for place, votes in enumerate(state.prepared) if votes >= self.need]

    # ---- what may happen next ----

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        for at, voter in enumerate(state.voters):
            if at and voter == state.voters[at - 1]:
                continue  # they are alike
            if not voter.shown or not self.law.seals:
                yield from self._votes(state, at)
            if self.restarts and not voter.shown and state.restarted < 0:
                yield f"one with {said(voter.lock)} seals", self._with(state, at, voter._replace(shown=voter.lock))
        if self.restarts and state.restarted < 0:
            yield from self._goings_on(state)

    def _votes(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        voter = state.voters[at]
        for ballot in range(voter.ballot + 1, self.ballots):
            for update in UPDATES:
                if self.law.follows(voter.lock, update, self.newest(state, update, ballot)):
                    after = voter._replace(ballot=ballot, prepared=update)
                    what = f"one with {said(voter.lock)} prepares {said((ballot, update))}"
                    yield what, self._with(state, at, after, prepared=2 * ballot + update)
        if voter.prepared >= 0:
            lock = (voter.ballot, voter.prepared)
            if self.certified(state, *lock) or not self.law.asks_prepared:
                after = voter._replace(prepared=-1, lock=lock)
                yield f"one accepts {said(lock)}", self._with(state, at, after, accepted=2 * lock[0] + lock[1])

    def _goings_on(self, state: State) -> Iterator[tuple[str, State]]:
        """Those whom the organiser lets go on: of any who have sealed, the most whose newest lock is this one."""
        sealed = [voter.shown for voter in state.voters if voter.shown]
        liars = self.liars - self.strangers
        newest = {NONE, *sealed} | ({*self.shown_by_liars(state)} if liars else set())
        for lock in sorted(newest):
            among = (*(shown for shown in sealed if shown <= lock), *((lock,) * liars))
            if among and self.enough[len(among)]:
                value = decided_by(among)
                after = state._replace(restarted=FRESH if value == NONE else value[1])
                yield f"{len(among)} go on with {said(value)}, {liars} of them lying", after

    def _with(self, state: State, at: int, voter: Voter, prepared: int = -1, accepted: int = -1) -> State:
        voters = (*state.voters[:at], voter, *state.voters[at + 1 :])
        return State(voters, _more(state.prepared, prepared), _more(state.accepted, accepted), state.restarted)

    # ---- which states are the same ----

    def canonical(self, state: State) -> State:
        plain = self._plain(state)
        return min(plain, _changed_over(plain))

    def _plain(self, state: State) -> State:
        """Without what can make no difference any more."""
        voters = list(state.voters)
        if self.law.seals:
            over = state.restarted >= 0
            voters = [Voter(NONE if over else voter.shown) if voter.shown else voter for voter in voters]
        voting = [voter for voter in voters if not (voter.shown and self.law.seals)]
        prepared, accepted = list(state.prepared), list(state.accepted)
        for ballot in range(self.ballots):
            coming = sum(voter.ballot < ballot for voter in voting)
            for place in (2 * ballot, 2 * ballot + 1):
                there = sum((voter.ballot, voter.prepared) == (ballot, place % 2) for voter in voting)
                prepared[place] = self._kept(prepared[place], coming)
                accepted[place] = self._kept(accepted[place], coming + there)
        if self.law.asks_prepared:
            voters = [
                voter
                if voter.prepared < 0 or prepared[2 * voter.ballot + voter.prepared]
                else voter._replace(prepared=-1)
                for voter in voters
            ]
        return State(tuple(sorted(voters)), tuple(prepared), tuple(accepted), state.restarted)

    def _kept(self, votes: int, more: int) -> int:
        """A number of votes, if it is not known what becomes of it."""
        if votes >= self.need:
            return self.need
        return votes if votes + more >= self.need else 0

    # ---- what must hold ----

    def two_decisions(self, state: State) -> str:
        found = self.decided(state)
        if len(found) < 2:
            return ""
        return f"decided: {', '.join(sorted('AB?'[update] for update in found))}"

    def dead_end(self, state: State) -> str:
        """From here an honest coordinator that all honest voters hear decides, or the organiser lets them go on,
        whatever the liars show. The liars vote for nothing more."""
        if self.decided(state):
            return ""
        voting = [voter for voter in state.voters if not voter.shown]
        if len(voting) < self.quorum:
            return "" if self._all_seal() else "all honest voters have sealed, and are too few"
        for lie in (NONE, *(self.shown_by_liars(state) if self.liars else ())):
            newest = max((lie, *(voter.lock for voter in voting)))
            update = newest[1] if newest != NONE else A
            follow = sum(self.law.follows(voter.lock, update, newest[0]) for voter in voting)
            if follow < self.quorum:
                return f"of {len(voting)} only {follow} follow {said(newest)}"
        return ""

    def _all_seal(self) -> bool:
        """Those who go on then are a quorum of themselves without the liars among them, however many come."""
        liars = self.liars - self.strangers
        honest = len(self.known) - liars
        return all(
            self.enough[honest + came] and honest >= self.law.quorum(NAMES[: honest + came])
            for came in range(liars + 1)
        )

    def explore(self, most: int = 10_000_000, *, live: bool = True) -> Finding:
        """All states, the nearest first; up to `most`."""
        start = self.canonical(self.start)
        before: dict[State, State | None] = {start: None}
        newest = [start]
        while newest:
            found: list[State] = []
            for state in newest:
                broken = self.two_decisions(state) or (self.dead_end(state) if live else "")
                if broken:
                    return Finding(len(before), broken, self._path(before, state))
                for _, after in self.successors(state):
                    after = self.canonical(after)
                    if after not in before:
                        before[after] = state
                        found.append(after)
                if len(before) > most:
                    return Finding(len(before), whole=False)
            newest = found
        return Finding(len(before))

    def _path(self, before: dict[State, State | None], state: State) -> tuple[str, ...]:
        """A and B may change places on the way."""
        steps: list[str] = []
        while (earlier := before[state]) is not None:
            steps.append(next(what for what, after in self.successors(earlier) if self.canonical(after) == state))
            state = earlier
        return tuple(reversed(steps))


def said(lock: Lock) -> str:
    """A lock in words."""
    return "nothing" if lock == NONE else f"{'AB'[lock[1]]} of ballot {lock[0]}"


def _more(votes: tuple[int, ...], place: int) -> tuple[int, ...]:
    return votes if place < 0 else (*votes[:place], votes[place] + 1, *votes[place + 1 :])


def _other(lock: Lock) -> Lock:
    return lock if lock == NONE else (lock[0], 1 - lock[1])


def _changed_over(state: State) -> State:
    """The same with A for B and B for A."""
    voters = tuple(
        Voter(
            voter.shown and _other(voter.shown), voter.ballot,
            voter.prepared if voter.prepared < 0 else 1 - voter.prepared, _other(voter.lock),
        )
        for voter in state.voters
    )  # fmt: skip
    restarted = 1 - state.restarted if state.restarted in UPDATES else state.restarted
    return State(tuple(sorted(voters)), _swapped(state.prepared), _swapped(state.accepted), restarted)


def _swapped(votes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(votes[place ^ 1] for place in range(len(votes)))
