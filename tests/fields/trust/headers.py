"""A coordinator that proposes means under other headers than those from which they were computed; and one that says
that it has promised what nobody has asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.consensus.protocol import norms
from peer.consensus.protocol.block import ContributionHeader, Update
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import BallotId, Message, Nack, Reassign, RowDispute, Start
from peer.consensus.rounds import collector
from peer.consensus.rounds.driver import Driver
from peer.consensus.rounds.state import CoordinatorState, MemberState
from peer.consensus.rounds.transition import Transition
from peer.testing.memory_peer import encoded
from tests.fields.trust.liars import LIAR, Stage
from tests.fields.trust.talkers import again_and_again, say


def weightless(header: ContributionHeader, turn: Transition) -> ContributionHeader:
    """The same contribution, of no weight, under a signature that is as good."""
    return replace(header, tokens=0, steps=0, ranges=()).signed(turn.rules.keys)


def under_others(turn: Transition, exchange: MemberState) -> MemberState:
    """The same means, as if the liar had given what weighs nothing."""
    members = tuple(weightless(header, turn) if header.peer == LIAR else header for header in exchange.members)
    return replace(exchange, members=members, judgement=norms.judgement_of(turn.rules, turn.state.head, members))


def proposes_under_others(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """Means that are right, under headers that give other weights: so they look false."""
    make_update = collector.make_update

    def false(turn: Transition, lead: CoordinatorState, exchange: MemberState) -> Update:
        if stage.lies(turn.me):
            stage.told["other headers"] += 1
            exchange = under_others(turn, exchange)
        return make_update(turn, lead, exchange)

    patch.setattr(collector, "make_update", false)


def has_them_checked_before(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """The same once all have compared the means under the right headers, since they are to be reduced again."""
    poll_means, ordered = collector.poll_means, dict[BallotId, tuple[float, MemberState]]()

    def poll(turn: Transition, lead: CoordinatorState) -> None:
        exchange = turn.state.exchange
        if exchange is None or not stage.lies(turn.me) or exchange.place.ballot != lead.ballot:
            poll_means(turn, lead)
            return
        if exchange.place not in ordered:
            if all(part in exchange.means for part in collector.expected_parts(turn, exchange)):
                ordered[exchange.place] = turn.now, exchange
                others = (next(name for name in exchange.names if name != owner) for owner in exchange.reducers)
                turn.send(exchange.names, Reassign(exchange.place, tuple(enumerate(others))))
            return
        at, first = ordered[exchange.place]
        if turn.now >= at + 1.0:
            stage.told["other headers"] += 1
            update = collector.make_update(turn, lead, under_others(turn, first))
            collector.propose(turn, lead, update)

    patch.setattr(collector, "poll_means", poll)


def starts_one_with_others(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """One owner computes its means from other headers than all the others."""
    send = Driver._send

    def start(driver: Driver, to: tuple[str, ...], message: Message) -> None:
        if not isinstance(message, Start) or not stage.lies(driver.state.rules.me):
            send(driver, to, message)
            return
        victim = max(to)
        send(driver, tuple(peer for peer in to if peer != victim), message)
        turn = Transition(driver.state, stage.world.now)
        others = tuple(weightless(item, turn) if item.peer == LIAR else item for item in message.headers)
        send(driver, (victim,), replace(message, headers=others))
        stage.told["other headers"] += 1

    patch.setattr(Driver, "_send", start)


def leaves_one_out(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """It shows bytes of a member that its proposal leaves out; the mean of which it shows them comes later."""
    make_update = collector.make_update

    def without_one(turn: Transition, lead: CoordinatorState, exchange: MemberState) -> Update:
        part = exchange.reducers.index(LIAR) if LIAR in exchange.reducers else -1
        if not stage.lies(turn.me) or part not in exchange.means or len(exchange.members) < 4:
            return make_update(turn, lead, exchange)
        left_out = exchange.names[2]
        shown = next(peer for peer in stage.honest if peer.name == left_out).disk.my_part(exchange.place.anchor, part)
        if shown is None:
            return make_update(turn, lead, exchange)
        members = tuple(header for header in exchange.members if header.peer != left_out)
        disk = stage.world.peers[0].disk
        forged = encoded(16) + 3 * encoded(1)
        disk.objects[digest_of(forged)] = forged
        turn.set(held={**turn.state.held, digest_of(forged): len(forged)})
        turn.send(exchange.names, RowDispute(exchange.place, part, digest_of(forged), 0b111, *shown, left_out))
        means = {at: replace(mean, contributors=0b111) for at, mean in exchange.means.items()}
        means[part] = replace(means[part], digest=digest_of(forged))
        stage.told["shown"] += 1
        judgement = norms.judgement_of(turn.rules, turn.state.head, members)
        return make_update(turn, lead, replace(exchange, members=members, judgement=judgement, means=means))

    patch.setattr(collector, "make_update", without_one)


def refuses_what_nobody_asked(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """It says of all ballots all the time that it has promised later ones."""

    def refuse() -> None:
        state = stage.world.peers[0].driver.state
        for ballot in range(len(state.electorate)):
            say(stage, Nack(BallotId(state.head.anchor, state.instance, ballot), 1_000_000))

    again_and_again(stage, 0.2, refuse)
