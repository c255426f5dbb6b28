"""A coordinator that proposes two updates in one ballot convicts itself, to everybody."""

from __future__ import annotations

import pytest

from peer.consensus.protocol.block import Update
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import EquivocationProof, Prepare, Propose, VoteCast
from peer.consensus.rounds.interface import CommitBlock, Effect, ObjectStored, Received, Send, Tell
from peer.consensus.rounds.machine import step
from peer.consensus.rounds.state import State
from peer.schema.events import AlertRaised
from tests.peer.consensus.rounds.build import NAMES, PAYLOADS, owner, place, proposal_signature, state_of, update, vote

COORDINATOR = owner()
VOTER = next(name for name in NAMES if name != COORDINATOR)
FIRST, SECOND = update(), update(time=1)


def propose(item: Update) -> Propose:
    return Propose(place(), item, proposal_signature(item))


def messages(effects: tuple[Effect, ...], kind: type) -> list[object]:
    return [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)]


def alerts(effects: tuple[Effect, ...]) -> list[str]:
    events = [effect.event for effect in effects if isinstance(effect, Tell)]
    return [event.code for event in events if isinstance(event, AlertRaised)]


def holding() -> State:
    return state_of(VOTER, held={digest_of(payload): len(payload) for payload in PAYLOADS})


def convicted() -> tuple[State, tuple[Effect, ...]]:
    state, _ = step(holding(), Received(4.0, COORDINATOR, propose(FIRST)))
    return step(state, Received(4.1, COORDINATOR, propose(SECOND)))


def test_two_proposals_are_a_proof_that_everybody_gets() -> None:
    """It names the ballot and both signatures, and whoever gets it believes it without having seen either."""
    state, effects = convicted()
    assert alerts(effects) == ["EQUIVOCATION"]
    (proof,) = messages(effects, EquivocationProof)
    other, told = step(holding(), Received(2.0, VOTER, proof))  # type: ignore[arg-type]
    assert alerts(told) == ["EQUIVOCATION"]
    assert state.equivocators == other.equivocators == {COORDINATOR}


def test_a_vote_for_another_update_than_was_proposed_here_is_the_same_proof() -> None:
    """Each voter may have seen one proposal only: the votes carry the coordinator's signature."""
    state, _ = step(holding(), Received(4.0, COORDINATOR, propose(FIRST)))
    third = next(name for name in NAMES if name not in (VOTER, COORDINATOR))
    _, effects = step(state, Received(4.1, third, VoteCast(place(), vote(third, SECOND))))
    assert alerts(effects) == ["EQUIVOCATION"]
    assert messages(effects, EquivocationProof)


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_votes_for_two_updates_are_the_same_proof_to_who_has_seen_neither(phase: int) -> None:
    state, others = holding(), [name for name in NAMES if name != VOTER]
    for name, item in zip(others, (FIRST, SECOND), strict=True):
        state, effects = step(state, Received(4.1, name, VoteCast(place(), vote(name, item, phase=phase))))
    assert alerts(effects) == ["EQUIVOCATION"]
    assert messages(effects, EquivocationProof)


def test_nothing_is_decided_in_that_ballot() -> None:
    """The votes of a quorum for either update come too late."""
    state, _ = convicted()
    for name in NAMES:
        state, effects = step(state, Received(2.0, name, VoteCast(place(), vote(name, FIRST))))
        assert not any(isinstance(effect, CommitBlock) for effect in effects)
    state, effects = step(state, ObjectStored(2.1, FIRST.parts[0], 8))
    assert not messages(effects, VoteCast)


def test_its_author_is_asked_for_nothing_and_followed_no_more() -> None:
    """A PREPARE of it for a later ballot goes unanswered."""
    state, _ = convicted()
    later = next(ballot for ballot in range(1, 9) if owner(ballot) == COORDINATOR)
    _, effects = step(state, Received(3.0, COORDINATOR, Prepare(place(later))))
    assert not effects


@pytest.mark.parametrize(
    "forged",
    [
        EquivocationProof(place(), (FIRST.digest, proposal_signature(FIRST)), (SECOND.digest, b"s" * 64)),
        EquivocationProof(
            place(), (FIRST.digest, proposal_signature(FIRST)), (FIRST.digest, proposal_signature(FIRST))
        ),
        EquivocationProof(
            place(), (FIRST.digest, proposal_signature(FIRST)), (SECOND.digest, proposal_signature(SECOND, 1))
        ),
    ],
    ids=["a forged signature", "one update twice", "two ballots"],
)
def test_what_proves_nothing_convicts_nobody(forged: EquivocationProof) -> None:
    state, effects = step(holding(), Received(1.0, VOTER, forged))
    assert not effects
    assert not state.equivocators


def test_the_same_proposal_again_is_no_crime() -> None:
    """Proposals are repeated until they are answered."""
    state, _ = step(holding(), Received(4.0, COORDINATOR, propose(FIRST)))
    state, effects = step(state, Received(5.0, COORDINATOR, propose(FIRST)))
    assert messages(effects, VoteCast)
    assert not state.equivocators
