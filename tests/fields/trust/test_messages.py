"""What one member sends is a refusal of its message, whatever it holds; it ends nobody."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from peer.consensus.protocol.messages import (
    _TYPES,
    BallotId,
    Message,
    Prepare,
    Promise,
    Restarted,
    StuckSaid,
    VoteCast,
    decode,
    encode,
)
from peer.consensus.protocol.refusals import MESSAGE
from peer.consensus.rounds import acceptor
from peer.consensus.rounds.interface import Received
from peer.consensus.rounds.machine import step
from peer.consensus.rounds.state import State
from peer.schema.events import MessageRefused
from peer.testing.memory_peer import ModelKeys
from tests.fields.extremes import NotSaid
from tests.fields.trust.liars import LIAR, Stage, honest_rounds
from tests.fields.unasked import UNASKED
from tests.fields.wrong_lengths import LENGTHS, WrongLengths, lists_of

MESSAGES = 1_000


HOLDS = {Promise: "header", VoteCast: "vote", StuckSaid: "stuck", Restarted: "restart"}
"""In which messages there are structures that lists elsewhere may have."""


class WrongTalk:
    """What the liar said last of each kind, or might have said beside it, in wrong lengths."""

    def __init__(self, dice: Random) -> None:
        self._dice, self._last, self.told = dice, dict[type[Message], Message](), Counter[type[Message]]()

    def hear(self, state: State, message: Message) -> None:
        self._last[type(message)] = message
        for kind, unasked in UNASKED.items():
            made = unasked.make(state, ModelKeys(LIAR), message) if isinstance(message, unasked.beside) else None
            if made is not None:
                self._last[kind] = made

    def frame(self) -> bytes:
        """Of a kind that is drawn, with one list of a wrong length."""
        held = [getattr(self._last[kind], name) for kind, name in HOLDS.items() if kind in self._last]
        wrong = WrongLengths({LIAR: ModelKeys(LIAR)}.get, {type(structure): structure for structure in held})
        while True:
            message = self._dice.choice([*self._last.values()])
            path, length = self._dice.choice(lists_of(type(message))), self._dice.choice([*LENGTHS])
            with suppress(NotSaid):
                said = wrong.said(message, path, length)
                self.told[type(message)] += 1
                return encode(said)


@pytest.mark.slow
def test_messages_with_lists_of_wrong_lengths_leave_four_members_alive_and_committing() -> None:
    """A thousand of all kinds from a fifth, made from what is really said in a round, at any moment of it."""
    usual, stage = honest_rounds(5, 150.0), Stage.of(5)
    talk = WrongTalk(Random(1))

    def listen(sender: str, receiver: str, frame: bytes) -> bool:
        if sender == LIAR:
            talk.hear(stage.world.peers[0].driver.state, decode(frame))
        return False

    def speak() -> None:
        frame = talk.frame()
        for peer in stage.honest:
            peer.on_frame(LIAR, frame)
        if talk.told.total() < MESSAGES:
            stage.world.scheduler.call_in(0.1, speak)

    stage.world.network.drops = listen
    stage.run(stage.from_s)
    stage.world.scheduler.call_in(0.1, speak)
    rounds = stage.run(150.0)
    assert talk.told.total() == MESSAGES
    assert set(talk.told) == set(_TYPES.values())
    assert [peer.alive for peer in stage.honest] == [True] * 4
    assert 1.5 * rounds >= usual
    assert stage.accused() <= {LIAR}


def test_what_a_message_raises_is_told_once_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is as before; a fault of this machine's own is raised all the same."""
    stage = Stage.of(3)
    stage.run(10.0)
    state = stage.honest[0].driver.state
    message = Prepare(BallotId(state.head.anchor, state.instance, state.acceptor.promised + 1))

    def broken(*args: object) -> None:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(acceptor, "on_prepare", broken)
    after, effects = step(state, Received(stage.world.now, LIAR, message))
    told = [effect.event for effect in effects if isinstance(getattr(effect, "event", None), MessageRefused)]
    assert [(event.about, event.rule) for event in told] == [(LIAR, MESSAGE)]
    assert replace(after, attempts=state.attempts) == state
    _, effects = step(after, Received(stage.world.now, LIAR, message))
    assert not [effect for effect in effects if isinstance(getattr(effect, "event", None), MessageRefused)]
    with pytest.raises(IndexError):
        step(state, Received(stage.world.now, state.rules.me, message))
