"""A peer that the organiser keeps out: when it leaves the group, and what its vote is still good for."""

from __future__ import annotations

import pytest

from peer.consensus.protocol.membership import VOTES_AFTER
from peer.consensus.rounds.interface import Quarantined
from peer.testing.faults import Crash
from peer.testing.memory_swarm import LogicalSwarm

KEPT_OUT = 0


def keep_out(swarm: LogicalSwarm, peer: int = KEPT_OUT, *, lift: bool = False) -> None:
    """Everybody has heard the organiser's order, the peer itself too."""
    names = frozenset() if lift else frozenset({swarm.world.peers[peer].name})
    for other in swarm.world.peers:
        if other.alive:
            other.driver.deliver(Quarantined(swarm.now_s, names))


def newest(swarm: LogicalSwarm, peer: int = 1) -> int:
    return len(swarm.committed(peer))


@pytest.mark.slow
@pytest.mark.parametrize(("peers", "seed"), [(3, 0), (3, 1), (4, 2), (4, 3), (5, 0), (5, 1)])
def test_it_is_no_member_from_the_next_ballot_on_and_is_back_when_that_is_lifted(peers: int, seed: int) -> None:
    """Whoever's turn it is to coordinate, and though the peer goes on as if nothing had happened."""
    swarm = LogicalSwarm(peers=peers, seed=seed)
    swarm.until_round(3, within_s=120)
    keep_out(swarm)
    under_way = newest(swarm) + 1
    swarm.until_round(under_way + 4, within_s=240)
    for round in range(under_way + 1, under_way + 5):
        assert KEPT_OUT not in swarm.group(round)
    keep_out(swarm, lift=True)
    back = newest(swarm) + 4
    swarm.until_round(back, within_s=240)
    assert KEPT_OUT in swarm.group(back)
    swarm.assert_agreement()


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["train", "submit", "prepare", "exchange", "reduce", "commit", "apply"])
def test_what_has_begun_with_it_ends_as_it_must(phase: str) -> None:
    """Quarantined in any phase of a round, that round is decided, and in no phase a majority is lost."""
    swarm = LogicalSwarm(peers=3, seed=5)
    swarm.until_round(2, within_s=120)
    round = newest(swarm)
    struck = []

    def on_phase(peer: object, entered: str, at: int) -> None:
        if entered == phase and at == round + 1 and not struck:
            struck.append(at)
            swarm.world.scheduler.call_in(0.0, keep_out, swarm)

    swarm.world.on_phase = on_phase
    swarm.until_round(round + 4, within_s=120)
    assert struck
    assert KEPT_OUT not in swarm.group(round + 4)
    swarm.assert_agreement()


def test_a_run_of_two_goes_on_with_its_vote_and_it_stays_a_member() -> None:
    """No majority of two is left without it: to leave it out would stop the run, so the organiser must find others."""
    swarm = LogicalSwarm(peers=2, seed=1)
    swarm.until_round(2, within_s=120)
    keep_out(swarm)
    swarm.until_round(newest(swarm) + 3, within_s=120)
    assert swarm.group(newest(swarm)) == {0, 1}
    swarm.assert_agreement()


def test_as_soon_as_a_third_peer_is_there_a_run_of_two_is_rid_of_it() -> None:
    swarm = LogicalSwarm(peers=2, seed=1)
    swarm.until_round(2, within_s=120)
    keep_out(swarm)
    swarm.join()
    keep_out(swarm)
    swarm.until_round(newest(swarm) + VOTES_AFTER + 3, within_s=400)
    assert swarm.group(newest(swarm)) == {1, 2}
    swarm.assert_agreement()


def test_where_one_of_three_is_dead_its_vote_is_asked_for() -> None:
    """Of three voters one is kept out and one has died: the third alone is no majority. It is a member once more, and
    then the dead one's place is what matters."""
    swarm = LogicalSwarm(peers=3, seed=2)
    swarm.until_round(3, within_s=120)
    swarm.inject(Crash(peer=2, phase="train", round=newest(swarm)))
    keep_out(swarm)
    swarm.until_round(newest(swarm) + 2, within_s=240)
    swarm.assert_agreement()


def test_what_it_sends_as_a_coordinator_is_answered_by_nobody() -> None:
    """Its ballots are skipped without waiting for a time-out of the whole patience."""
    swarm = LogicalSwarm(peers=4, seed=3)
    swarm.until_round(3, within_s=120)
    keep_out(swarm)
    began_s, round = swarm.now_s, newest(swarm)
    swarm.until_round(round + 8, within_s=240)
    assert (swarm.now_s - began_s) / 8 < 20, "a round takes some 8 s"
    swarm.assert_agreement()
