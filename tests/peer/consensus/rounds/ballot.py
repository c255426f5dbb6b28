"""Ballot 0 of the small run of `build.py`, brought to where a test begins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from peer.consensus.protocol import merkle
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import MeanData, PartData, Promise
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.rounds.interface import (
    Input,
    MeasureOwn,
    MeasurePart,
    OwnMeasured,
    PartMeasured,
    Received,
    Submitted,
    Tick,
)
from peer.consensus.rounds.machine import step
from peer.consensus.rounds.state import BallotPhase, State
from peer.testing.memory_peer import ModelKeys
from tests.peer.consensus.rounds.build import (
    NAMES,
    PAYLOADS,
    header,
    leaves_of,
    owner,
    part_of,
    place,
    state_of,
)

LEADER = owner(0)
OTHERS = tuple(name for name in NAMES if name != LEADER)
PLACE = place(0)
FIGURES = PartNorms(1.0)


def run(state: State, *events: Input) -> tuple[State, list[Any]]:
    """What comes of these events. What the machine asks to be measured of its own contribution is measured at once."""
    effects: list[Any] = []
    for event in events:
        state, more = step(state, event)
        effects += more
        own = [OwnMeasured(event.now, item.anchor, item.part, FIGURES) for item in more if isinstance(item, MeasureOwn)]
        if own:
            state, more = run(state, *own)
            effects += more
    return state, effects


def figures_for(effects: Iterable[object], figures: PartNorms = FIGURES) -> list[Input]:
    """The answers to what the machine asked to be measured."""
    answers: list[Input] = []
    for effect in effects:
        if isinstance(effect, MeasurePart):
            answers.append(PartMeasured(4.05, effect.place, effect.giver, effect.part, figures.square))
    return answers


def measuring(state: State, *events: Input) -> tuple[State, list[object]]:
    """As `run`; after each event whatever the machine asked to be measured is measured."""
    effects: list[object] = []
    for event in events:
        state, more = run(state, event)
        while more:
            effects += more
            state, more = run(state, *figures_for(more))
    return state, effects


def reducing(**of_second: int) -> State:
    """The coordinator of ballot 0 after START; `of_second` changes the header of one of the others."""
    headers = [header(OTHERS[0]), header(OTHERS[1], **of_second)]
    promises = [Received(4.0, item.peer, Promise(PLACE, item)) for item in headers]
    fresh = state_of(LEADER)
    state, _ = measuring(fresh, Submitted(0.0, header(LEADER)), Tick(4.0), *promises)
    assert state.exchange is not None
    assert state.lead is not None
    assert state.lead.stage is BallotPhase.REDUCING
    return state


def mine(state: State, peer: str) -> tuple[int, ...]:
    """The parts that `peer` reduces."""
    assert state.exchange is not None
    return tuple(part for part, reducer in enumerate(state.exchange.reducers) if reducer == peer)


def part_from(peer: str, part: int, attempt: int = 0, now: float = 4.1) -> Received:
    path = merkle.path(leaves_of(peer), part)
    return Received(now, peer, PartData(PLACE, attempt, part, path, part_of(peer, part)))


def mean_of(
    state: State, part: int, contributors: int, *, reducer: str = "", attempt: int = 0, now: float = 4.3
) -> Received:
    """A mean from its reducer, or from who repairs it."""
    assert state.exchange is not None
    reducer, payload = reducer or state.exchange.reducers[part], PAYLOADS[part]
    mean = MeanData(PLACE, attempt, part, reducer, contributors, digest_of(payload), b"", payload, state.exchange.basis)
    return Received(now, reducer, mean.signed(ModelKeys(reducer)))
