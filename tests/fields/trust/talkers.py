"""A member that says what is not so: when it is its turn, what it accepted, whom it misses, what it votes for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from peer.consensus.protocol.block import Stuck, Vote
from peer.consensus.protocol.encoding import digest_of, pack
from peer.consensus.protocol.messages import (
    BallotId,
    Message,
    Objection,
    Prepare,
    Promise,
    RowDispute,
    StuckSaid,
    VoteCast,
)
from peer.consensus.rounds import acceptor, coordinator, timeouts
from peer.consensus.rounds.transition import Transition
from peer.testing.memory_peer import LogicalPeer
from tests.fields.trust.liars import LIAR, Attack, Stage


def say(stage: Stage, message: Message) -> None:
    """The liar sends this to all others."""
    driver = stage.world.peers[0].driver
    driver._send(tuple(peer for peer in driver.state.electorate if peer != LIAR), message)


def again_and_again(stage: Stage, every_s: float, what: Callable[[], None]) -> None:
    """As long as the liar is there."""

    def tick() -> None:
        liar = stage.world.peers[0]
        if stage.lies(LIAR) and liar.alive:
            liar.later(0.0, what)
            stage.told["said"] += 1
        stage.world.scheduler.call_in(every_s, tick)

    stage.world.scheduler.call_in(every_s, tick)


def hasty(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """It asks first, at once, for a ballot of its own."""
    due = coordinator._begin_if_due

    def begin(turn: Transition) -> None:
        state, ranked = turn.state, turn.state.head.order
        may = turn.me in ranked and state.lead is None and state.header is not None and state.decided is None
        if not stage.lies(turn.me) or not may:
            due(turn)
            return
        ballot = state.acceptor.promised + 1
        ballot += (ranked.index(turn.me) - ballot) % len(ranked)
        stage.told["asked"] += 1
        coordinator._begin(turn, ballot)

    patch.setattr(coordinator, "_begin_if_due", begin)


def invents_an_acceptance(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """It tells the next coordinator that it has accepted what nobody proposed."""
    on_prepare = acceptor.on_prepare

    def inventive(turn: Transition, sender: str, message: Prepare, **more: bool) -> None:
        on_prepare(turn, sender, message, **more)
        if not stage.lies(turn.me):
            return
        for at, effect in enumerate(turn.effects):
            said = getattr(effect, "message", None)
            if isinstance(said, Promise):
                stage.told["invented"] += 1
                lie = replace(said, accepted=(0, digest_of(b"poison")))
                turn.effects[at] = replace(effect, message=lie)  # type: ignore[call-arg]

    patch.setattr(acceptor, "on_prepare", inventive)


def votes_for_nothing(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """Ten invented digests a second."""

    def flood() -> None:
        state, number = stage.world.peers[0].driver.state, stage.told["said"]
        own = [ballot for ballot in range(200) if state.head.leader(ballot) == LIAR]
        if not own:
            return  # it has no vote
        ballot, update = own[number % len(own)], digest_of(b"%d" % number)
        place = BallotId(state.head.anchor, state.instance, ballot)
        signature = state.rules.keys.sign("propose", pack((place.packed(), update)))
        vote = Vote(LIAR, state.instance, ballot, update, signature, phase=0).signed(state.rules.keys)
        say(stage, VoteCast(place, vote))

    again_and_again(stage, 0.1, flood)


def misses_everybody(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """It signs that all the others are away."""
    away = timeouts.away
    others = tuple(sorted(peer.name for peer in stage.honest))
    patch.setattr(timeouts, "away", lambda state, now: others if stage.lies(state.rules.me) else away(state, now))
    again_and_again(stage, 0.2, lambda: None)


def floods(what: str) -> Attack:
    """Five a second: `objections` without proof, `disputes` that are none, or lone `stuck`s."""

    def attack(patch: pytest.MonkeyPatch, stage: Stage) -> None:
        again_and_again(stage, 0.2, lambda: _speak(stage, what, stage.world.peers[0]))

    return attack


def _speak(stage: Stage, what: str, liar: LogicalPeer) -> None:
    state = liar.driver.state
    place = BallotId(state.head.anchor, state.instance, max(0, state.acceptor.promised))
    if what == "stuck":
        plain = Stuck(LIAR, state.head.anchor, state.head.electorate, state.head.number + 1)
        say(stage, StuckSaid(plain.signed(state.rules.keys)))
        return
    proposal: Any = next(iter(state.proposals.values()), None)
    if proposal is None:
        return
    update = proposal.update
    part = stage.told["said"] % len(update.parts)
    name, bits = update.parts[part], update.contributors[part]
    found = liar.disk.my_part(update.parent, part)
    if what == "objections":
        say(stage, Objection(place, part, name, bits))
    elif found is not None:
        say(stage, RowDispute(place, part, name, bits, *found))
