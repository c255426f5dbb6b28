"""A member that keeps back what the others wait for, or declares norms that cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from peer.consensus.protocol import norms
from peer.consensus.protocol.layout import Fragment
from peer.consensus.protocol.messages import Heartbeat, Message, Promise
from peer.consensus.rounds import member
from peer.consensus.rounds.driver import Driver
from peer.consensus.rounds.interface import Effect
from peer.consensus.rounds.transition import Transition
from tests.fields.trust.liars import LIAR, Attack, Stage


def keeps(kinds: tuple[type[Effect], ...]) -> Attack:
    """It gives others nothing of these kinds."""

    def attack(patch: pytest.MonkeyPatch, stage: Stage) -> None:
        perform = Driver._perform

        def withhold(driver: Driver, effect: Effect) -> None:
            if isinstance(effect, kinds) and getattr(effect, "to", "") != LIAR and stage.lies(driver.state.rules.me):
                stage.told["withheld"] += 1
            else:
                perform(driver, effect)

        patch.setattr(Driver, "_perform", withhold)

    return attack


def falls_silent(kind: type[Message]) -> Attack:
    """It leads, and says nothing of this kind."""

    def attack(patch: pytest.MonkeyPatch, stage: Stage) -> None:
        send = Driver._send

        def silent(driver: Driver, to: tuple[str, ...], message: Message) -> None:
            if isinstance(message, kind) and stage.lies(driver.state.rules.me):
                stage.told["silent"] += 1
            else:
                send(driver, to, message)

        patch.setattr(Driver, "_send", silent)

    return attack


def is_never_ready(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """It says so, and answers with nothing."""
    send = Driver._send

    def unready(driver: Driver, to: tuple[str, ...], message: Message) -> None:
        if stage.lies(driver.state.rules.me) and isinstance(message, Heartbeat):
            message = replace(message, ready=False)
        elif stage.lies(driver.state.rules.me) and isinstance(message, Promise):
            empty = replace(message.header, root=b"", norms=b"", tokens=0, steps=0, ranges=())
            message = replace(message, header=empty.signed(driver.state.rules.keys))
            stage.told["not ready"] += 1
        send(driver, to, message)

    patch.setattr(Driver, "_send", unready)


def declares(norm: bytes) -> Attack:
    """This number in place of each (float32, big-endian)."""

    def attack(patch: pytest.MonkeyPatch, stage: Stage) -> None:
        own_measured, declare = member.on_own_measured, norms.declare

        def measured(turn: Transition, event: object) -> None:
            with pytest.MonkeyPatch.context() as within:
                if stage.lies(turn.me):
                    stage.told["declared"] += 1
                    within.setattr(norms, "declare", false)
                own_measured(turn, event)  # type: ignore[arg-type]

        def false(fragment: Fragment, figures: Mapping[int, norms.PartNorms]) -> bytes:
            return norm * (len(declare(fragment, figures)) // len(norm))

        patch.setattr(member, "on_own_measured", measured)

    return attack
