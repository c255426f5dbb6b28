"""One step of the machine in the making: the state so far, and the effects in the order they must happen."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from peer.events import AlertRaised, PhaseEntered
from peer.rounds.messages import FETCH_BYTES, FETCH_MOST, Fetch, HeadSent, Message, Place
from peer.rounds.names import coordinator
from peer.rounds.state import Effect, Report, Rules, Send, State, Wanted
from peer.rounds.update import Pledge

FETCH_RETRY_S = 2.0
FORGET_S = 120.0
"""A stranger that was silent for this long is told nothing any more."""


class Turn:
    """Collects what one event changes. Messages to myself are handled within the same step.

    `state` is a copy that belongs to this turn until the step ends: nobody else sees it change,
    and setting its fields in place spares a copy per change.
    """

    def __init__(self, state: State, now: float) -> None:
        self.state = replace(state)
        self.now = now
        self.effects: list[Effect] = []
        self.to_self: deque[Message] = deque()

    @property
    def rules(self) -> Rules:
        return self.state.rules

    @property
    def me(self) -> str:
        return self.state.rules.me

    def set(self, **changes: Any) -> None:
        for name, value in changes.items():
            object.__setattr__(self.state, name, value)

    def do(self, effect: Effect) -> None:
        self.effects.append(effect)

    def send(self, to: Iterable[str], message: Message) -> None:
        """Send to each peer once; a copy for me is handled before the step ends."""
        receivers = dict.fromkeys(to)
        if self.me in receivers:
            del receivers[self.me]
            self.to_self.append(message)
        if receivers:
            self.do(Send(tuple(receivers), message))

    def place(self, ballot: int) -> Place:
        return Place(self.state.head.anchor, self.state.head.instance, ballot)

    def owner(self, ballot: int) -> str:
        """The only peer that may lead `ballot` of my head's instance."""
        return coordinator(self.state.head.anchor, self.state.head.electorate, ballot)

    def moved(self) -> None:
        """Something of this instance went on: the next coordinator's patience starts anew."""
        self.set(moved_at=self.now)

    def my_pledge(self) -> Pledge:
        """What I froze, or a pledge that gives nothing but keeps my vote."""
        if self.state.pledge is not None:
            return self.state.pledge
        empty = Pledge(self.me, self.state.head.anchor, b"", 0, 0, 0, self.state.leaving)
        return empty.signed(self.rules.keys)

    def fetch(self, digests: Iterable[bytes], sources: Iterable[str]) -> None:
        """Keep asking `sources` in turn for these digests until they are held."""
        missing, wanted = frozenset(digests), self.state.wanted
        others = tuple(dict.fromkeys(peer for peer in sources if peer != self.me))
        if missing == wanted.digests:
            self.set(wanted=replace(wanted, sources=others))
        elif missing:
            self.set(wanted=Wanted(missing, sources=others))
            self.ask()

    def ask(self) -> None:
        """Ask the current source for the next of what is missing, no more than it will answer at once."""
        wanted = self.state.wanted
        if not wanted.digests or not wanted.sources:
            return
        source = wanted.sources[wanted.turn % len(wanted.sources)]
        most = min(FETCH_MOST, max(1, FETCH_BYTES // max(self.rules.part_bytes)))
        asked = tuple(sorted(wanted.digests)[:most])
        self.set(wanted=replace(wanted, asked=frozenset(asked), next_at=self.now + FETCH_RETRY_S))
        self.send((source,), Fetch(asked))

    def ask_another(self) -> None:
        """Nothing came for a while: ask the next source."""
        wanted = self.state.wanted
        self.set(wanted=replace(wanted, turn=wanted.turn + 1, next_at=self.now + FETCH_RETRY_S))
        self.ask()

    def arrived(self, digest: bytes) -> None:
        """One of the bytes that are fetched is here: the source is alive, and goes on when it has given all."""
        wanted = self.state.wanted
        if digest not in wanted.digests:
            return
        asked = wanted.asked - {digest}
        left = replace(wanted, digests=wanted.digests - {digest}, asked=asked, next_at=self.now + FETCH_RETRY_S)
        self.set(wanted=left)
        if wanted.asked and not asked:
            self.ask()

    def say_head(self) -> None:
        """Tell the electorate, and whoever was heard lately, where I am and whether I am ready."""
        state, pledge = self.state, self.state.pledge
        head = HeadSent(
            anchor=state.head.anchor, round=state.head.round, weight=state.head.weight, state=state.state_digest,
            ready=pledge is not None, tokens=pledge.tokens if pledge else 0, steps=pledge.steps if pledge else 0,
            leaving=state.leaving, name=self.rules.name,
        )  # fmt: skip
        lately = (peer for peer, (_, at) in state.heard.items() if self.now - at < FORGET_S)
        to = dict.fromkeys((*state.head.electorate, *lately))
        to.pop(self.me, None)
        self.set(said_at=self.now)
        self.do(Send(tuple(to), head))

    def phase(self, name: str, ballot: int, until: float | None = None) -> None:
        deadline = None if until is None else until + self.rules.wall_offset_s
        self.do(
            Report(
                PhaseEntered(
                    round=self.state.head.round, phase=name, deadline=deadline, ballot=ballot,
                    coordinator=self.owner(ballot),
                )
            )
        )  # fmt: skip

    def alert(self, level: str, code: str, text: str) -> None:
        self.do(Report(AlertRaised(level=level, code=code, text=text)))
