"""A Restart outranks a certificate that it does not carry; who hid that it had accepted something is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.consensus.protocol.block import Block, Restart, Stuck, Update
from peer.consensus.protocol.head import ChainEntry
from peer.consensus.protocol.messages import Blocks, Restarted
from peer.consensus.rounds.interface import Effect, NeedSnapshot, Received, Tell
from peer.consensus.rounds.machine import step
from peer.consensus.rounds.state import State
from peer.schema.events import AlertRaised, PenaltyImposed
from peer.testing.memory_peer import ModelKeys
from tests.peer.consensus.rounds.build import HEAD, NAMES, block, state_of, update, vote

ORGANISER = "organiser"


def beyond(taken: Block) -> State:
    """A peer one round further, by a block with the votes of two of three."""
    state = state_of("p0", head=HEAD.after(taken.update), trail=(ChainEntry(HEAD, taken),))
    return replace(state, rules=replace(state.rules, organiser=ORGANISER), ancestors={HEAD.anchor: 0})


def sealed(name: str, item: Update | None = None, ballot: int = 0) -> Stuck:
    if item is None:
        return Stuck(name, HEAD.anchor, HEAD.electorate, 1).signed(ModelKeys(name))
    certificate = tuple(vote(voter, item, ballot, phase=1) for voter in NAMES[:2])
    return Stuck(name, HEAD.anchor, HEAD.electorate, 1, (ballot, item.digest), certificate).signed(ModelKeys(name))


def restart_of(*stucks: Stuck) -> Restart:
    return Restart(HEAD.anchor, 1, stucks, forced=True).signed(ModelKeys(ORGANISER))


def caught(effects: tuple[Effect, ...]) -> list[str]:
    return [item.event.about for item in effects if isinstance(item, Tell) and isinstance(item.event, PenaltyImposed)]


def test_a_restart_of_those_who_did_not_know_outranks_what_was_decided() -> None:
    """The peer gives its rounds up, not its work, and names who had voted for them and said nothing."""
    taken = block(update(), voters=("p0", "p1"))
    _, effects = step(beyond(taken), Received(9.0, "p2", Restarted(restart_of(sealed("p1"), sealed("p2")))))
    assert [type(item) for item in effects if isinstance(item, NeedSnapshot)] == [NeedSnapshot]
    assert caught(effects) == ["p1"]


def test_a_restart_that_is_shown_again_and_again_is_looked_into_once_a_minute() -> None:
    """Nobody went on by it; one that sealed would have people warned ten times a second."""
    shown = Restarted(restart_of(sealed("p1"), sealed("p2")))
    state, looked = beyond(block(update(), voters=("p0", "p1"))), list[float]()
    for at_s in range(9, 159):
        state, effects = step(state, Received(float(at_s), "p2", shown))
        looked += [at_s for item in effects if isinstance(item, NeedSnapshot)]
        assert bool(effects) == (at_s in looked)
    assert looked == [9, 69, 129]


def test_a_restart_that_carries_what_was_decided_changes_nothing() -> None:
    taken = block(update(), voters=("p0", "p1"))
    told = Restarted(restart_of(sealed("p1", taken.update), sealed("p2")))
    _, effects = step(beyond(taken), Received(9.0, "p2", told))
    assert effects == ()


def test_what_was_said_of_the_agreement_before_holds_no_more() -> None:
    """Its ballots count from 0 again: else who was proved false in one of them would be passed on in none of these."""
    state = state_of("p0", forwarded=frozenset({(0, "p2")}), objections={"p1": ((b"d" * 32, 0, 7), 5.0)})
    state = replace(state, rules=replace(state.rules, organiser=ORGANISER))
    state, _ = step(state, Received(9.0, "p1", Restarted(restart_of(sealed("p0"), sealed("p1")))))
    assert state.head.electorate == ("p0", "p1")
    assert (state.forwarded, state.objections, state.acceptor.promised) == (frozenset(), {}, -1)


@pytest.mark.parametrize("forged", ["signature", "voter", "anchor"])
def test_a_restart_that_is_none_outranks_nothing(forged: str) -> None:
    taken = block(update(), voters=("p0", "p1"))
    restart = restart_of(sealed("p1"), sealed("p2"))
    if forged == "signature":
        restart = replace(restart, signature=b"s" * 64)
    elif forged == "voter":
        restart = restart_of(replace(sealed("p1"), voter="x"), sealed("p2"))
    else:
        restart = replace(restart, anchor=b"e" * 32).signed(ModelKeys(ORGANISER))
    _, effects = step(beyond(taken), Received(9.0, "p2", Restarted(restart)))
    assert not [item for item in effects if isinstance(item, NeedSnapshot)]


def test_two_certificates_at_one_anchor_are_told_with_those_who_signed_both() -> None:
    """Of three voters one that lies can do that; nobody leaves its chain for it."""
    taken, other = block(update(), voters=("p0", "p1")), block(update(time=5), voters=("p1", "p2"))
    state, effects = step(beyond(taken), Received(9.0, "p2", Blocks((other,))))
    alerts = [item.event for item in effects if isinstance(item, Tell) and isinstance(item.event, AlertRaised)]
    assert [(alert.code, "both: p1" in alert.text) for alert in alerts] == [("TWO_DECISIONS", True)]
    assert state.head == HEAD.after(taken.update)
