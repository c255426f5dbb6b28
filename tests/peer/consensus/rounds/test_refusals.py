"""What was refused is told once, with its rule and its author; a round that stands still says why."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from peer.consensus.protocol.block import ContributionHeader
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.head import ChainEntry
from peer.consensus.protocol.messages import Blocks, Message, Prepare, Promise, Propose, Start, VoteCast
from peer.consensus.protocol.refusals import BLOCK, HEADER, MEMBERS, NORMS, PLACE, RANGES, TABLES, TIME, VOTES
from peer.consensus.rounds.interface import Input, Received, Submitted, Tell, Tick
from peer.consensus.rounds.state import Attempts, State
from peer.consensus.rounds.transition import REFUSALS_MOST
from peer.schema.events import AlertRaised, Event, MessageRefused, RoundStalled
from peer.testing.memory_peer import LogicalPeer
from peer.testing.memory_swarm import World
from tests.peer.consensus.rounds.ballot import LEADER, OTHERS, run
from tests.peer.consensus.rounds.ballot import PLACE as AT
from tests.peer.consensus.rounds.build import (
    HEAD,
    NAMES,
    block,
    header,
    owner,
    place,
    proposal_signature,
    rules,
    state_of,
    update,
    vote,
)

VOTER = OTHERS[0]
FORGED = b"\x01" * 64
LIAR = "p1"
HOUR_S = 3600
TURN_S = 10.0
"""Longer than a voter waits for the coordinator of a ballot."""


def told(state: State, *events: Input) -> tuple[State, list[Event]]:
    """What people are told of these events."""
    found: list[Event] = []
    for event in events:
        state, effects = run(state, event)
        found += [effect.event for effect in effects if isinstance(effect, Tell)]
    return state, found


def refusals(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.about, event.rule) for event in events if isinstance(event, MessageRefused)]


def alerts(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, AlertRaised) and event.code == "STANDS_STILL"]


def promised(me: str = VOTER) -> State:
    """A voter that has promised ballot 0."""
    state = state_of(me, header=header(me))
    return replace(state, rules=replace(state.rules, min_round_s=1), acceptor=replace(state.acceptor, promised=0))


# ---- what is refused ----


def refused_by_a_voter() -> dict[str, tuple[str, Message, tuple[str, str]]]:
    """For each name the sender, what it sends, and whom and what the voter is to tell."""
    honest = update(time=100)
    late, misplaced = update(time=100 + HOUR_S), update(time=100, weight=9)
    odd = update(time=100, weights=())
    forged = replace(header(OTHERS[1]), tokens=99)
    without_me = (header(LEADER), header(OTHERS[1]))
    mine_changed = tuple(sorted((header(VOTER, root=digest_of(b"x")), header(LEADER)), key=lambda item: item.peer))
    with_forged = tuple(sorted((header(VOTER), header(LEADER), forged), key=lambda item: item.peer))
    return {
        "dated ahead": (LEADER, Propose(place(), late, proposal_signature(late)), (LEADER, TIME)),
        "of another place": (LEADER, Propose(place(), misplaced, proposal_signature(misplaced)), (LEADER, PLACE)),
        "not signed": (LEADER, Propose(place(), honest, FORGED), (LEADER, PLACE)),
        "tables that cannot be": (LEADER, Propose(place(), odd, proposal_signature(odd)), (LEADER, TABLES)),
        "a forged vote": (
            OTHERS[1], VoteCast(place(), replace(vote(OTHERS[1], honest), signature=FORGED)), (OTHERS[1], VOTES),
        ),
        "a start without me": (LEADER, Start(place(), without_me), (LEADER, MEMBERS)),
        "a start with what I did not sign": (LEADER, Start(place(), mine_changed), (LEADER, MEMBERS)),
        "a start with a forged header": (LEADER, Start(place(), with_forged), (LEADER, HEADER)),
        "a block with a vote too few": ("elsewhere", Blocks((block(voters=NAMES[:1]),)), ("elsewhere", BLOCK)),
    }  # fmt: skip


@pytest.mark.parametrize("what", refused_by_a_voter())
def test_what_a_voter_refuses_is_told_once_with_its_rule_and_its_author(what: str) -> None:
    sender, message, expected = refused_by_a_voter()[what]
    state, events = told(promised(), Received(100.0, sender, message))
    assert refusals(events) == [expected]
    _, again = told(state, Received(101.0, sender, message))
    assert refusals(again) == []


def test_a_header_that_is_not_valid_is_told_by_the_coordinator() -> None:
    state, _ = told(state_of(LEADER), Submitted(0.0, header(LEADER)), Tick(4.0))
    forged = replace(header(VOTER), tokens=99)
    state, events = told(state, Received(4.0, VOTER, Promise(AT, forged)))
    assert refusals(events) == [(VOTER, HEADER)]
    assert state.lead is not None
    assert VOTER not in state.lead.promises


def test_whose_header_is_refused_is_not_waited_for() -> None:
    """A lie makes no round later: once the others have answered it begins, in the same instant."""
    state, _ = told(state_of(LEADER), Submitted(0.0, header(LEADER)), Tick(4.0))
    state, _ = told(state, Received(4.0, OTHERS[1], Promise(AT, header(OTHERS[1]))))
    assert state.exchange is None
    state, _ = told(state, Received(4.0, VOTER, Promise(AT, replace(header(VOTER), tokens=99))))
    assert state.exchange is not None
    assert VOTER not in state.exchange.names


def test_norms_that_cannot_be_are_told_by_the_coordinator() -> None:
    """Of another number of layers than the round averages."""
    state, _ = told(state_of(LEADER), Submitted(0.0, header(LEADER)), Tick(4.0))
    _, events = told(state, Received(4.0, VOTER, Promise(AT, header(VOTER, norms=bytes(24)))))
    assert refusals(events) == [(VOTER, NORMS)]


def test_a_block_that_breaks_a_rule_is_told() -> None:
    """Of who sends it; of one whose date lies ahead of my clock its coordinator."""
    state = replace(state_of(VOTER), rules=replace(rules(VOTER), min_round_s=1, wall_offset_s=100.0))
    late = block(update(time=HOUR_S))
    for other, expected in (
        (block(update(time=60), voters=NAMES[:1]), ("elsewhere", BLOCK)),
        (late, (late.update.coordinator, TIME)),
    ):
        _, events = told(state, Received(1.0, "elsewhere", Blocks((other,))))
        assert refusals(events) == [expected]


def test_an_honest_round_refuses_nothing() -> None:
    """Four peers and a bad network: what is lost, late or told twice breaks no rule."""
    world = World(3, 4)
    world.scheduler.run_until(60.0)
    assert world.commits > 8
    assert [event for peer in world.peers for event in peer.reports if isinstance(event, MessageRefused)] == []


def test_strangers_are_told_of_a_few_times_and_voters_always() -> None:
    bad = VoteCast(place(), replace(vote(OTHERS[1], update()), signature=FORGED))
    strangers = [Received(100.0, f"stranger-{number}", bad) for number in range(3 * REFUSALS_MOST)]
    state, events = told(promised(), *strangers)
    assert len(refusals(events)) == REFUSALS_MOST
    state, events = told(state, Received(100.0, OTHERS[1], bad), *strangers)
    assert refusals(events) == [(OTHERS[1], VOTES)]
    assert len(state.attempts.refusals) == REFUSALS_MOST


# ---- what stands still ----


def tries(count: int) -> list[Received]:
    """PREPARE of so many ballots, each when it is its coordinator's turn, less those of the voter itself."""
    theirs = islice((ballot for ballot in range(1, 100) if owner(ballot) != VOTER), count)
    return [Received(101.0 + TURN_S * ballot, owner(ballot), Prepare(place(ballot))) for ballot in theirs]


def test_the_alert_comes_once_after_three_ballots_and_names_rule_and_author() -> None:
    late = update(time=100 + HOUR_S)
    refused = Received(100.0, LEADER, Propose(place(), late, proposal_signature(late)))
    begun = replace(promised(), attempts=Attempts(under_way=True))
    state, events = told(begun, refused, *tries(2))
    assert alerts(events) == []
    state, events = told(state, *tries(4)[2:])
    (alert,) = alerts(events)
    assert "round 1 stands still after 3 ballots: TIME refuses what" in alert
    assert f"{LEADER} sent: it is dated 3600 s ahead of this machine's clock" in alert
    stalled = [event for event in events if isinstance(event, RoundStalled)]
    assert [(item.ballots, item.rule, item.about) for item in stalled] == [(3, TIME, LEADER), (4, TIME, LEADER)]


def test_what_a_stranger_sends_is_not_why_a_round_stands_still() -> None:
    bad = VoteCast(place(), replace(vote(OTHERS[1], update()), signature=FORGED))
    begun = replace(promised(), attempts=Attempts(under_way=True))
    _, events = told(begun, Received(100.0, "stranger", bad), *tries(3))
    (alert,) = alerts(events)
    assert "stranger" not in alert
    assert "1 of 3 voters are heard; not heard: " in alert


def test_who_stands_behind_a_date_ahead_of_its_clock_says_whose_it_is() -> None:
    """No ballot can begin: the alert needs none."""
    taken = block(update(time=HOUR_S))
    state = replace(state_of(VOTER), head=HEAD.after(taken.update), trail=(ChainEntry(HEAD, taken),))
    mine_ = header(VOTER, anchor=state.head.anchor)
    state = replace(state, acceptor=replace(state.acceptor, anchor=state.head.anchor, instance=state.head.instance))
    state, events = told(state, Submitted(10.0, mine_), Tick(11.0), Tick(12.0))
    (alert,) = alerts(events)
    assert alert.startswith("round 2 cannot begin: TIME refuses what ")
    assert "it is dated 3590 s ahead of this machine's clock" in alert
    assert refusals(events) == [(taken.update.coordinator, TIME)]


def test_a_round_that_only_lasts_its_least_time_is_no_fault() -> None:
    taken = block(update(time=5))
    state = replace(state_of(VOTER), head=HEAD.after(taken.update), trail=(ChainEntry(HEAD, taken),))
    state = replace(state, rules=replace(rules(VOTER), min_round_s=60))
    _, events = told(state, Submitted(10.0, header(VOTER, anchor=state.head.anchor)), Tick(11.0))
    assert events == [] or alerts(events) == []


def stalled_by(peer: LogicalPeer) -> set[tuple[str, str]]:
    return {(event.about, event.rule) for event in peer.reports if isinstance(event, RoundStalled)}


def test_every_peer_names_the_header_that_was_refused_in_each_ballot(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three is gone, and of the other two one names data that the run has not: no majority is left."""

    def with_ranges(peer: str, *rest: Any, **more: Any) -> ContributionHeader:
        ranges = ((1 << 20, 0, 5),) if peer == LIAR else ()
        return ContributionHeader(peer, *rest, **{"ranges": ranges} | more)

    monkeypatch.setattr("peer.testing.memory_peer.ContributionHeader", with_ranges)
    world = World(5, 3)
    world.peers[2].crash()
    world.scheduler.run_until(100.0)
    assert world.commits == 0
    for peer in world.peers[:2]:
        ((about, rule),) = stalled_by(peer)
        (alert,) = alerts(peer.reports)
        assert about == LIAR
        assert rule == RANGES
        assert f"{rule} refuses what {LIAR} sent" in alert
        assert "not heard: p2" in alert
    world.peers[2].boot()
    world.scheduler.run_until(160.0)
    assert world.commits
    assert all(peer.driver.state.attempts.over <= 1 for peer in world.peers)


def test_a_peer_that_is_alone_says_who_is_missing() -> None:
    world = World(5, 3)
    world.scheduler.run_until(20.0)
    for peer in world.peers[1:]:
        peer.crash()
    world.scheduler.run_until(120.0)
    (alert,) = alerts(world.peers[0].reports)
    assert "stands still after 3 ballots: 1 of 3 voters answered; 1 of 3 voters are heard" in alert
    assert "not heard: p1, p2" in alert
