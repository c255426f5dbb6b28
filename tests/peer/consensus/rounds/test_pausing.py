"""A peer that sits out: it keeps its vote, holds nobody up, and hurries nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.consensus.protocol.block import NOT_AWAITED, ContributionHeader
from peer.consensus.protocol.messages import Heartbeat, Prepare, Promise
from peer.consensus.protocol.norms import judgement_of
from peer.consensus.rounds.interface import Paused, Received, Resumed, Send, Submitted, Tick, TrainingProgress
from peer.consensus.rounds.state import MemberState
from peer.consensus.rounds.timeouts import asks_at, measure
from peer.node.lifecycle.inputs_effects import OwnerChanged
from peer.node.limits.policy import Hold
from peer.testing.memory_swarm import LogicalSwarm
from tests.peer.consensus.rounds.ballot import run
from tests.peer.consensus.rounds.build import HEAD, NAMES, header, place, state_of

FIRST, SECOND, THIRD = HEAD.order
WAIT_S = 600.0


def nothing(peer: str) -> ContributionHeader:
    """What a peer gives that has made no step."""
    return ContributionHeader(peer, HEAD.anchor, b"", 0, 0, 0, False)


def says(peer: str, at_s: float, *, tokens: int = 0, steps: int = 0, ready: bool = True) -> Received:
    """A HEAD; of a peer that sits out unless it made steps."""
    head = Heartbeat(HEAD.anchor, HEAD.round, HEAD.weight, b"", ready, tokens, steps, False, peer, 0)
    return Received(at_s, peer, head)


def heads(effects: list[object]) -> list[Heartbeat]:
    return [item.message for item in effects if isinstance(item, Send) and isinstance(item.message, Heartbeat)]


def test_it_says_that_it_is_ready_without_steps() -> None:
    """Whatever it gives: ready after 0 steps means that it sits out."""
    for given, tokens in ((nothing(FIRST), 0), (header(FIRST), 100)):
        state, effects = run(state_of(FIRST), Paused(1.0, given))
        (head,) = heads(effects)
        assert (head.ready, head.tokens, head.steps) == (True, tokens, 0)
        assert state.sits_out


def test_it_answers_at_once_with_what_it_has() -> None:
    """Its vote is kept; a peer in training past the half would be asked to freeze first."""
    state, _ = run(
        state_of(SECOND),
        TrainingProgress(0.5, 0.9),
        Paused(1.0, nothing(SECOND)),
        says(FIRST, 1.0, steps=10),
        says(THIRD, 1.0, steps=10),
    )
    _, effects = run(state, Received(4.0, FIRST, Prepare(place(0))))
    promises = [item.message for item in effects if isinstance(item, Send) and isinstance(item.message, Promise)]
    assert [promise.header.root for promise in promises] == [b""]


def test_a_coordinator_that_sits_out_begins_when_the_others_are_ready() -> None:
    """Not `gather_s` after its own pause, which hurries those who train; and not later."""
    state, _ = run(state_of(FIRST), Paused(0.0, nothing(FIRST)), Tick(WAIT_S))
    assert state.lead is None
    state, _ = run(state, says(SECOND, WAIT_S + 1.0, tokens=100, steps=10), Tick(WAIT_S + 2.0))
    assert state.lead is None
    state, _ = run(state, says(THIRD, WAIT_S + 3.0, tokens=100, steps=10))
    assert state.lead is not None


def test_from_the_first_that_trained_the_wait_is_as_ever() -> None:
    """One of the others is lost."""
    state, _ = run(state_of(FIRST), Paused(0.0, nothing(FIRST)), says(SECOND, WAIT_S, tokens=100, steps=10))
    due = WAIT_S + state.rules.gather_s
    assert asks_at(state) == due
    state, _ = run(state, Tick(due - 0.1))
    assert state.lead is None
    state, _ = run(state, Tick(due))
    assert state.lead is not None


def test_the_next_coordinators_do_not_take_over_from_those_who_train() -> None:
    """Nothing is overdue as long as nobody who trains is ready."""
    for me in (SECOND, THIRD):
        state, _ = run(state_of(me), Paused(0.0, nothing(me)), Tick(WAIT_S), Tick(2 * WAIT_S))
        assert state.lead is None
        assert state.acceptor.promised == -1


def test_nobody_waits_for_one_that_sits_out() -> None:
    """The coordinator asks as soon as the others who train are ready."""
    state, _ = run(state_of(FIRST), says(SECOND, 0.0), says(THIRD, 0.0), Submitted(9.0, header(FIRST)))
    assert state.lead is not None


def test_a_run_of_which_all_sit_out_stands_still() -> None:
    """And goes on when one gives what it has."""
    state, _ = run(state_of(FIRST), says(SECOND, 0.0), says(THIRD, 0.0), Paused(1.0, nothing(FIRST)), Tick(WAIT_S))
    assert state.lead is None
    state, _ = run(state, says(SECOND, WAIT_S + 1.0, tokens=50))
    assert state.lead is not None


def test_who_sits_out_is_not_measured() -> None:
    """It was ready before anybody could be: that would stretch what is learned of all others."""
    ready = says(SECOND, 20.0, tokens=100, steps=10)
    state, _ = run(state_of(FIRST), says(THIRD, 0.0), ready, Submitted(21.0, header(FIRST)))
    assert dict(state.ready_at) == {SECOND: 20.0}
    assert state.lead is not None
    exchange = MemberState(
        place=place(), members=tuple(header(peer) for peer in (FIRST, SECOND, THIRD)), reducers=(FIRST,) * 3,
        received={}, closes_at=0.0, judgement=judgement_of(state.rules, HEAD, tuple(map(header, NAMES))),
    )  # fmt: skip
    waits = [row[0] for row in measure(state, state.lead, exchange)[1]]
    assert waits == [1000, 0, NOT_AWAITED]


def test_after_a_pause_without_steps_it_is_not_ready_any_more() -> None:
    """And may freeze what it makes then; the others wait for it as for anybody."""
    state, effects = run(state_of(SECOND), Paused(0.0, nothing(SECOND)), Resumed(5.0))
    assert [head.ready for head in heads(effects)] == [True, False]
    state, effects = run(state, Submitted(9.0, header(SECOND)))
    (head,) = heads(effects)
    assert (head.ready, head.steps > 0) == (True, True)
    assert state.header is not None
    assert state.header.root == header(SECOND).root


def test_what_was_given_before_a_pause_stays_given() -> None:
    """One contribution per anchor; it still hurries nobody."""
    state, effects = run(state_of(SECOND), Paused(0.0, header(SECOND)), Resumed(5.0))
    assert len(heads(effects)) == 1
    assert state.sits_out
    assert state.header is not None


def test_who_trains_again_after_it_gave_waits_like_anybody() -> None:
    """The others may be gone: from the resume on the cap counts, and so does the time until a takeover."""
    first, _ = run(state_of(FIRST), Paused(0.0, header(FIRST)), Tick(WAIT_S), Resumed(WAIT_S))
    due = WAIT_S + first.rules.gather_s
    assert asks_at(first) == due
    assert run(first, Tick(due - 0.1))[0].lead is None
    assert run(first, Tick(due))[0].lead is not None
    second, _ = run(state_of(SECOND), Paused(0.0, header(SECOND)), Resumed(WAIT_S))
    assert [head.stuck_s for head in heads(run(second, Tick(WAIT_S + 50.0))[1])][-1:] == [50]
    again, _ = run(second, Paused(WAIT_S + 60.0, header(SECOND)))
    assert heads(run(again, Tick(2 * WAIT_S))[1])[-1].stuck_s == 0


def test_with_nothing_given_no_ballot_follows_another() -> None:
    """One who had something asked, and is gone: those who sit out do not ask each other again and again."""
    gone = says(FIRST, 1.0, tokens=100, steps=10)
    state, _ = run(state_of(SECOND), says(THIRD, 0.0), Paused(0.0, nothing(SECOND)), gone)
    state, _ = run(state, Received(WAIT_S, FIRST, Prepare(place(0))))
    assert state.acceptor.promised == 0
    for at_s in range(3, 4000):
        state, _ = run(state, says(THIRD, at_s), Tick(at_s + 0.5))
    assert state.acceptor.promised < 10
    stranger = says("stranger", 4000.0, tokens=5)
    assert run(state, stranger, Tick(4001.0))[0].acceptor.promised == state.acceptor.promised


def test_a_ballot_of_somebody_who_just_trains_again_measures_nothing_of_the_pause() -> None:
    state, _ = run(state_of(FIRST), Paused(0.0, nothing(FIRST)), Tick(WAIT_S), Resumed(WAIT_S))
    assert state.submitted_at == WAIT_S


def test_a_pause_after_the_freeze_changes_nothing() -> None:
    """The others heard that it is ready, with its steps."""
    frozen, _ = run(state_of(SECOND), Submitted(1.0, header(SECOND)))
    state, effects = run(frozen, Paused(2.0, header(SECOND)), Resumed(3.0))
    assert (state.sits_out, state.header) == (False, frozen.header)
    assert heads(effects) == []


def test_a_pause_at_another_anchor_is_ignored() -> None:
    """The round was decided meanwhile: the trainer says it again for the next one."""
    state, _ = run(state_of(SECOND), Paused(1.0, replace(nothing(SECOND), anchor=b"x" * 32)))
    assert (state.sits_out, state.header) == (False, None)


# ---- a swarm of which some sit out ----


def pause(swarm: LogicalSwarm, index: int) -> None:
    """Have one peer make no more steps."""
    swarm.world.peers[index].feed(OwnerChanged(swarm.now_s, (Hold("PAUSED", "its owner asks for it"),)))


def duration_s(swarm: LogicalSwarm, first: int, last: int) -> float:
    """Virtual seconds from one anchor to another at a peer that trains."""
    at_s = {commit.round: commit.at_s for commit in swarm.committed(swarm.size - 1)}
    return at_s[last] - at_s[first]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "peers", "paused"), [(0, 2, 1), (1, 3, 1), (0, 3, 2), (1, 5, 2), (0, 5, 4)])
def test_rounds_do_not_get_longer(peers: int, paused: int, seed: int) -> None:
    """Also where most sit out, coordinators among them: rounds last as long as training does, and books residual."""
    swarm = LogicalSwarm(peers=peers, seed=seed, restart_s=60.0)
    swarm.until_round(12, within_s=600)
    for index in range(paused):
        pause(swarm, index)
    swarm.until_round(15, within_s=300)
    swarm.until_round(27, within_s=600)
    swarm.assert_agreement()
    assert duration_s(swarm, 15, 27) < 1.1 * duration_s(swarm, 3, 12) / 9 * 12
    assert swarm.group(27) == set(range(peers)), "who sits out votes"
