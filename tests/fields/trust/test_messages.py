"""What one member sends is a refusal of its message, whatever it holds; it ends nobody."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Any

import pytest

from peer.consensus.protocol.messages import BallotId, Message, Prepare, decode, encode
from peer.consensus.protocol.refusals import MESSAGE
from peer.consensus.rounds import acceptor
from peer.consensus.rounds.interface import Received
from peer.consensus.rounds.machine import step
from peer.schema.events import MessageRefused
from peer.testing.memory_peer import ModelKeys
from tests.fields.trust.liars import LIAR, Stage, honest_rounds

MESSAGES = 1_000


def with_a_wrong_length(item: Any, dice: Random) -> Any:
    """The same with one list in it, however deep, shorter, longer, doubled or empty; signed again where it was."""
    if isinstance(item, tuple):
        if item and dice.random() < 0.5 and any(is_dataclass(each) or isinstance(each, tuple) for each in item):
            at = dice.randrange(len(item))
            return (*item[:at], with_a_wrong_length(item[at], dice), *item[at + 1 :])
        return dice.choice(((), item[:-1], (*item, *item[:1]), item + item))
    lists = [one.name for one in fields(item) if one.init and isinstance(getattr(item, one.name), tuple)]
    nested = [one.name for one in fields(item) if one.init and is_dataclass(getattr(item, one.name))]
    if not lists and not nested:
        return item
    name = dice.choice(lists + nested)
    changed = replace(item, **{name: with_a_wrong_length(getattr(item, name), dice)})
    return _signed(changed)


def _signed(item: Any) -> Any:
    keys = ModelKeys(LIAR)
    author = getattr(item, "peer", getattr(item, "voter", getattr(item, "reducer", None)))
    return item.signed(keys) if author == LIAR and hasattr(item, "signed") else item


@pytest.mark.slow
def test_messages_with_lists_of_wrong_lengths_leave_four_members_alive_and_committing() -> None:
    """A thousand, made from what is really said in a round, at any moment of it."""
    usual, stage = honest_rounds(4, 150.0), Stage.of(4)
    dice, heard, sent = Random(1), list[Message](), 0

    def listen(sender: str, receiver: str, frame: bytes) -> bool:
        if sender == LIAR and len(heard) < 400:
            heard.append(decode(frame))
        return False

    stage.world.network.drops = listen
    stage.run(stage.from_s)
    stage.world.network.drops = None

    def speak() -> None:
        nonlocal sent
        message = with_a_wrong_length(dice.choice(heard), dice)
        place = getattr(message, "place", None)
        state = stage.world.peers[0].driver.state
        if place is not None and dice.random() < 0.8:
            message = replace(message, place=replace(place, anchor=state.head.anchor, instance=state.instance))
        try:
            frame = encode(message)
        except (ValueError, TypeError, OverflowError):
            frame = b""
        for peer in stage.honest:
            peer.on_frame(LIAR, frame)
        sent += 1
        if sent < MESSAGES:
            stage.world.scheduler.call_in(0.1, speak)

    stage.world.scheduler.call_in(0.1, speak)
    rounds = stage.run(150.0)
    assert sent == MESSAGES
    assert all(peer.alive for peer in stage.honest)
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
