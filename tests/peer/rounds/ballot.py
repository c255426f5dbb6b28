"""Ballot 0 of the small run of `build.py`, brought to where a test begins."""

from __future__ import annotations

from dataclasses import replace

from peer.rounds import merkle
from peer.rounds.effects import Event, Frozen, Received, Tick
from peer.rounds.machine import step
from peer.rounds.messages import MeanSent, Norms, PartSent, Promise
from peer.rounds.names import digest_of
from peer.rounds.state import Stage, State
from peer.testing.integers import ModelKeys
from tests.peer.rounds.build import NAMES, PAYLOADS, leaves_of, owner, part_of, place, pledge, state_of

LEADER = owner(0)
OTHERS = tuple(name for name in NAMES if name != LEADER)
PLACE = place(0)


def run(state: State, *events: Event) -> tuple[State, list[object]]:
    effects: list[object] = []
    for event in events:
        state, more = step(state, event)
        effects += more
    return state, effects


def gathering(*, audit: float = 0.0, **of_second: int) -> State:
    """The coordinator of ballot 0 after START; `of_second` changes the pledge of one of the others."""
    pledges = [pledge(OTHERS[0]), pledge(OTHERS[1], **of_second)]
    promises = [Received(4.0, item.peer, Promise(PLACE, item)) for item in pledges]
    fresh = state_of(LEADER)
    fresh = replace(fresh, rules=replace(fresh.rules, audit=audit))
    state, _ = run(fresh, Frozen(0.0, pledge(LEADER)), Tick(4.0), *promises)
    assert state.exchange is not None
    assert state.lead is not None
    assert state.lead.stage is Stage.GATHERING
    return state


def mine(state: State, peer: str) -> tuple[int, ...]:
    """The parts that `peer` reduces."""
    assert state.exchange is not None
    return tuple(part for part, reducer in enumerate(state.exchange.reducers) if reducer == peer)


def part_from(peer: str, part: int, attempt: int = 0, now: float = 4.1) -> Received:
    path = merkle.path(leaves_of(peer), part)
    return Received(now, peer, PartSent(PLACE, attempt, part, path, part_of(peer, part)))


def norms_of(peer: str, received: tuple[tuple[int, int], ...], now: float = 4.2) -> Received:
    return Received(now, peer, Norms(PLACE, peer, received).signed(ModelKeys(peer)))


def mean_of(
    state: State, part: int, contributors: int, *, reducer: str = "", attempt: int = 0, now: float = 4.3
) -> Received:
    """A mean from its reducer, or from who repairs it."""
    assert state.exchange is not None
    reducer, payload = reducer or state.exchange.reducers[part], PAYLOADS[part]
    mean = MeanSent(PLACE, attempt, part, reducer, contributors, digest_of(payload), b"", payload)
    return Received(now, reducer, mean.signed(ModelKeys(reducer)))
