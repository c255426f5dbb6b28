"""A peer that speaks the protocol perfectly and means harm: nothing it sends stops or fills another peer.

Signatures cannot be forged, so a hostile peer signs as itself; here every peer does, and every
message may come from anyone, at any time, with any content that fits its type.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.consensus.protocol.encoding import digest_of, pack
from peer.consensus.protocol.messages import BallotId, Heartbeat, Propose, VoteCast
from peer.consensus.rounds.block_sync import MAX_HEARD
from peer.consensus.rounds.interface import Received, Send, Submitted, Tick
from peer.consensus.rounds.machine import step
from peer.consensus.rounds.state import State
from peer.testing.memory_peer import ModelKeys
from tests.peer.consensus.rounds.ballot import run
from tests.peer.consensus.rounds.build import HEAD, header, state_of, update, vote
from tests.peer.consensus.rounds.hostile import ME, Hostile, check_bounds


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_nothing_that_arrives_stops_or_fills_a_peer(seed: int) -> None:
    """Three hundred events out of a hostile hand: `step` never raises, and the state stays small."""
    Hostile(seed).run(300)


@pytest.mark.slow
def test_the_hostile_hand_reaches_every_corner() -> None:
    """The test above is worth something only if its peers lead, exchange, vote, fetch and commit."""
    corners = {
        "PREPARING", "ADOPTING", "REDUCING", "PROPOSING", "exchange", "mean", "accepted", "fetching",
        "early", "committed", "redo", "checked", "prepared", "stuck", "records", "refused", "shown",
        "lied", "convicted",
    }  # fmt: skip
    seen: set[str] = set()
    for seed in (181, 12, 15, *range(80)):  # three that were enough when it was last looked
        hostile = Hostile(seed)
        for _ in range(300):
            hostile.run(1)
            seen |= corners_of(hostile.state)
        if seen >= corners:
            return
    assert not corners - seen, sorted(corners - seen)


def corners_of(state: State) -> set[str]:
    """What this peer does at the moment."""
    seen = {state.lead.stage.name} if state.lead is not None else set()
    seen |= {"exchange"} if state.exchange is not None else set()
    seen |= {"mean"} if state.exchange is not None and state.exchange.means else set()
    seen |= {"redo"} if state.exchange is not None and state.exchange.again.redo else set()
    seen |= {"checked"} if state.acceptor.checked is not None else set()
    seen |= {"prepared"} if state.prepared else set()
    seen |= {"stuck"} if state.stucks else set()
    seen |= {"accepted"} if state.acceptor.accepted is not None else set()
    seen |= {"fetching"} if state.wanted.digests else set()
    seen |= {"early"} if state.early else set()
    seen |= {"committed"} if state.head.round else set()
    seen |= {"records"} if state.head.records else set()
    seen |= {"refused"} if state.exchange is not None and state.exchange.refused else set()
    seen |= {"shown"} if state.shown else set()
    seen |= {"lied"} if state.seen_lying else set()
    seen |= {"convicted"} if state.head.convicted else set()
    return seen


def test_strangers_cannot_fill_the_memory() -> None:
    """A thousand ids that cost nothing: the electorate is never forgotten for them, and each is answered rarely."""
    state = state_of(ME)
    honest = Heartbeat(HEAD.anchor, 0, 0, b"", True, 1, 1, False)
    away = replace(honest, anchor=digest_of(b"elsewhere"))
    state, _ = step(state, Received(0.0, "p1", honest))
    sent = 0
    for number in range(1000):
        state, effects = step(state, Received(0.001 * number, f"x{number}", away))
        sent += sum(isinstance(effect, Send) for effect in effects)
    assert len(state.heard) == MAX_HEARD
    assert "p1" in state.heard
    assert "x999" in state.heard
    assert sent <= MAX_HEARD


def test_a_flood_of_news_is_not_reported() -> None:
    """Reports go to a person's screen and disk; a peer that changes its mind all the time is not worth it."""
    state, reports = state_of(ME), 0
    for number in range(1000):
        head = Heartbeat(HEAD.anchor, 0, 0, b"", True, number, 1, False)
        state, effects = step(state, Received(0.001 * number, "x0", head))
        reports += len(effects)
    assert reports <= 6


def test_a_flood_of_proposals_and_votes_is_bounded() -> None:
    """A coordinator may sign as many updates as it likes."""
    state = state_of(ME)
    for number in range(200):
        ballot = next(ballot for ballot in range(3) if HEAD.leader(ballot) == "p2") + 3 * number
        item = update(ballot, time=number)
        place = BallotId(HEAD.anchor, HEAD.instance, ballot)
        signature = ModelKeys("p2").sign("propose", pack((place.packed(), item.digest)))
        state, _ = step(state, Received(0.1, "p2", Propose(place, item, signature)))
        state, _ = step(state, Received(0.1, "p2", VoteCast(place, vote("p2", item, ballot))))
    check_bounds(state)


def test_repeating_itself_does_not_hold_the_next_coordinator_back() -> None:
    """A coordinator whose update nobody can vote for says it again and again; patience ends all the same."""
    state = state_of(ME)
    ballot = next(ballot for ballot in range(3) if HEAD.leader(ballot) == "p2")
    place, item = BallotId(HEAD.anchor, HEAD.instance, ballot), update(ballot)
    signature = ModelKeys("p2").sign("propose", pack((place.packed(), item.digest)))
    state, _ = run(state, Submitted(0.0, header(ME)))
    for number in range(300):
        now = 0.1 * number
        state, _ = step(state, Received(now, "p2", Propose(place, item, signature)))
        state, _ = step(state, Received(now, "p2", VoteCast(place, vote("p2", item, ballot))))
        state, _ = step(state, Tick(now))
    assert state.acceptor.promised > ballot
