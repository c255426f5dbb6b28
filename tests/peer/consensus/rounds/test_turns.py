"""Everybody leads in turn: who asks for ballots of its own in between those of others is not followed."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from peer.consensus.protocol.block import Update
from peer.consensus.protocol.messages import Nack, Prepare, Promise, Propose, VoteCast
from peer.consensus.rounds.acceptor import VOTES_KEPT
from peer.consensus.rounds.interface import Effect, Input, Received, Send, Tick
from peer.consensus.rounds.machine import step
from peer.consensus.rounds.state import BallotPhase, CoordinatorState, Proposal, State
from peer.consensus.rounds.timeouts import patience_s
from tests.fields.restless import Press, prepares, press, proposes, votes
from tests.peer.consensus.rounds.build import NAMES, header, owner, place, proposal_signature, state_of, update, vote
from tests.peer.consensus.rounds.test_votes import HELD

SLOWER = 1.5
BEGAN_S = 100.0
FIRST, SECOND, VOTER = owner(0), owner(1), owner(2)
OWN = len(NAMES)
"""The ballot after the first of the same coordinator."""


@pytest.mark.slow
@pytest.mark.parametrize(("what", "victims"), [(prepares, 3), (proposes, 1), (votes, 3), (votes, 1)])
def test_who_asks_for_ballots_all_the_time_costs_one_turn(what: Press, victims: int) -> None:
    """Before the first ballot, amid those of others and just when their time is over, whether it holds a lead or not:
    all others commit within the usual and one fail-over."""
    found = press(what, victims, led=2)
    assert not found.outcome.failures
    assert found.outcome.slowest_s <= SLOWER * found.usual_s + found.failover_s


def after(state: State, *events: Input) -> tuple[State, list[Effect]]:
    effects: list[Effect] = []
    for event in events:
        state, more = step(state, event)
        effects += more
    return state, effects


def promised(state: State, *events: Input) -> list[int]:
    """The ballots that are promised in answer to these events."""
    sent = [effect.message for effect in after(state, *events)[1] if isinstance(effect, Send)]
    return [message.place.ballot for message in sent if isinstance(message, Promise)]


def asks(ballot: int, at_s: float) -> Received:
    return Received(at_s, owner(ballot), Prepare(place(ballot)))


@pytest.fixture
def state() -> State:
    """A voter that has just promised ballot 0."""
    begun, _ = after(state_of(VOTER, header=header(VOTER), held=HELD), asks(0, BEGAN_S))
    assert begun.acceptor.promised == 0
    return begun


def test_a_ballot_that_moves_is_not_left_for_another(state: State) -> None:
    over_s = BEGAN_S + patience_s(state)
    assert promised(state, asks(1, BEGAN_S + 1.0)) == []
    assert promised(state, asks(1, over_s - 1.0)) == []
    assert promised(state, asks(1, over_s)) == [1]


def test_a_coordinator_does_not_begin_anew_before_the_others_had_their_turn(state: State) -> None:
    """One that asks at the right moment would else be first each time."""
    over_s = BEGAN_S + patience_s(state)
    assert owner(OWN) == FIRST
    assert promised(state, asks(OWN, over_s)) == []
    assert promised(state, asks(OWN, over_s), asks(1, over_s + 0.1)) == [1]
    assert promised(state, asks(OWN, over_s + OWN * state.rules.stagger_s)) == [OWN]


def test_who_is_told_of_a_later_ballot_begins_above_it(state: State) -> None:
    """By a cycle at a time, whatever one voter says; else two could follow each other for ever below a third. What is
    said of a ballot that is not its own, or that it has not begun, makes it wait for nothing."""

    def begun(state: State, seconds: range) -> tuple[State, list[int]]:
        after_all, effects = after(state, *(Tick(BEGAN_S + second) for second in seconds))
        asked = [item.message for item in effects if isinstance(item, Send) and isinstance(item.message, Prepare)]
        return after_all, list(dict.fromkeys(message.place.ballot for message in asked))

    def next_after(said: int) -> int:
        told, _ = after(mine, Received(BEGAN_S + begins + 1.0, SECOND, Nack(place(2), said)))
        return next(ballot for ballot in begun(told, range(begins + 2, begins + 60))[1] if ballot > 2)

    begins = next(second for second in range(1, 60) if begun(state, range(1, second + 1))[1])
    for ballot in (0, 2):
        told, _ = after(state, Received(BEGAN_S + 0.5, SECOND, Nack(place(ballot), 1000)))
        assert begun(told, range(1, begins + 1))[1] == [2]
    mine, _ = begun(state, range(1, begins + 1))
    assert next_after(3) == 2 + OWN
    assert next_after(2 + OWN) == next_after(1000) == 2 + 2 * OWN


def test_ballots_far_ahead_wait_for_each_of_the_others_once(state: State) -> None:
    """A voter that was led far ahead by a liar is followed by the others all the same."""
    turns_s = OWN * state.rules.stagger_s
    assert promised(state, asks(1000 * OWN, BEGAN_S + patience_s(state) + turns_s)) == [1000 * OWN]


def test_who_was_away_follows_at_once(state: State) -> None:
    """What it promised before a crash says nothing about what goes on now."""
    assert promised(replace(state, ballot_at=state_of(VOTER).ballot_at), asks(1, BEGAN_S + 1.0)) == [1]


def test_what_is_proposed_out_of_turn_gets_no_vote(state: State) -> None:
    """It takes no PREPARE to interrupt a ballot."""

    def voted(ballot: int, at_s: float) -> bool:
        item = update(ballot, time=90)
        message = Propose(place(ballot), item, proposal_signature(item, ballot))
        _, effects = after(state, Received(at_s, owner(ballot), message))
        return any(isinstance(effect, Send) and isinstance(effect.message, VoteCast) for effect in effects)

    assert voted(0, BEGAN_S + 1.0)
    assert not voted(1, BEGAN_S + 1.0)
    assert voted(1, BEGAN_S + patience_s(state))


def test_a_vote_of_one_voter_moves_a_ballot_once(state: State) -> None:
    """Not those in ballots that nobody leads, though their owner signs what it likes; nor the same one forgotten."""
    item = update(time=90)
    proposed = Received(BEGAN_S + 1.0, FIRST, Propose(place(0), item, proposal_signature(item)))
    state, _ = after(replace(state, held={}), proposed, cast(item, 0, BEGAN_S + 2.0, SECOND))
    assert state.last_progress_at == BEGAN_S + 2.0
    ballots = range(OWN, (VOTES_KEPT + 2) * OWN, OWN)
    state, _ = after(state, *(cast(item, ballot, BEGAN_S + 3.0, SECOND) for ballot in ballots))
    state, _ = after(state, cast(item, 0, BEGAN_S + 4.0, SECOND))
    assert state.last_progress_at == BEGAN_S + 2.0


def test_the_votes_of_its_coordinator_move_a_ballot_no_more(state: State) -> None:
    """Of a proposal that nobody else votes for it would have the others wait for each of the three."""
    item = update(time=90)
    proposed = Received(BEGAN_S + 1.0, FIRST, Propose(place(0), item, proposal_signature(item)))
    votes = [cast(item, 0, BEGAN_S + 2.0 + phase, FIRST, phase) for phase in range(3)]
    state, _ = after(replace(state, held={}), proposed, *votes)
    assert state.last_progress_at == BEGAN_S + 1.0


def cast(item: Update, ballot: int, at_s: float, voter: str, phase: int = 2) -> Received:
    return Received(at_s, voter, VoteCast(place(ballot), vote(voter, item, ballot, phase=phase)))


def test_what_a_guest_says_it_accepted_ends_no_coordinator() -> None:
    """It can show a certificate that no voter of the promises knows; what they accepted is proposed again."""
    theirs, others = update(), update(1, time=9)
    leader, guest = owner(OWN), "x0"
    proofs = {
        item.digest: tuple(vote(name, item, item.ballot, phase=1) for name in NAMES[:2]) for item in (theirs, others)
    }
    said = {SECOND: (0, theirs.digest), guest: (1, others.digest)}
    promises = {peer: Promise(place(OWN), header(peer), known, proofs[known[1]]) for peer, known in said.items()}
    lead = CoordinatorState(
        ballot=OWN, stage=BallotPhase.ADOPTING, asked=(*NAMES, guest), until=inf, repeat_at=inf, promises=promises,
        update=theirs.digest,
    )  # fmt: skip
    known = {theirs.digest: Proposal(0, theirs, b"s" * 64)}
    state = state_of(leader, header=header(leader), held=HELD, lead=lead, proposals=known)
    state = replace(state, acceptor=replace(state.acceptor, promised=OWN))
    _, effects = after(state, Tick(BEGAN_S))
    sent = [item.message for item in effects if isinstance(item, Send) and isinstance(item.message, Propose)]
    assert [(item.update, item.certificate) for item in sent[:1]] == [(theirs, proofs[theirs.digest])]
