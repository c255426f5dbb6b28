"""A peer that joins in the middle takes part in the second round after its arrival at the latest."""

from __future__ import annotations

from random import Random

import pytest

from peer.testing.faults import Crash
from peer.testing.memory_swarm import LogicalSwarm

SEEDS = 12


def arrive(run: LogicalSwarm) -> tuple[int, int]:
    """A newcomer joins; returns its index, and the round that is being made when the others first hear of it."""
    before = run.size
    newcomer = run.join()
    name = run.world.peers[newcomer].name
    while not any(name in peer.driver.state.heard for peer in run.world.peers[:before]):
        run.run_for(0.01)
    return newcomer, 1 + max(len(run.committed(peer)) for peer in range(before))


def first_round_of(run: LogicalSwarm, newcomer: int, since: int) -> int:
    """The first round from `since` on with the newcomer among its members; all agree on all of them."""
    run.until_round(since + 2, within_s=120)
    run.assert_agreement()
    return next(round for round in range(since, since + 4) if round == since + 3 or newcomer in run.group(round))


@pytest.mark.slow
@pytest.mark.parametrize("peers", range(2, 7))
def test_a_newcomer_takes_part_in_the_second_round_after_its_arrival(peers: int) -> None:
    """It arrives in any phase of any of the first rounds, and replays the chain first. Each swarm has its own seeds."""
    for seed in range(peers, SEEDS, 5):
        run = LogicalSwarm(peers=peers, seed=seed)
        run.run_for(Random(seed).uniform(1.0, 30.0))
        newcomer, making = arrive(run)
        assert first_round_of(run, newcomer, making) <= making + 2, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("peers", [3])
def test_so_does_one_that_has_a_hundred_rounds_to_replay(peers: int) -> None:
    """More than a source sends at once."""
    run = LogicalSwarm(peers=peers, seed=peers)
    run.until_round(100, within_s=2000)
    newcomer, making = arrive(run)
    assert first_round_of(run, newcomer, making) <= making + 2


def test_several_arrive_at_once_and_all_take_part() -> None:
    """Three newcomers outnumber the two that they find."""
    run = LogicalSwarm(peers=2, seed=5)
    run.until_round(3, within_s=60)
    arrivals = [arrive(run) for _ in range(3)]
    for newcomer, making in arrivals:
        assert first_round_of(run, newcomer, making) <= making + 2
    assert run.group(len(run.committed(0))) == {0, 1, 2, 3, 4}


@pytest.mark.slow
def test_a_newcomer_finds_a_run_that_its_founders_have_left() -> None:
    """Those who came later are on the board, and they are the electorate now: the second founder goes once the first is
    no voter any more, else too few would be left to decide."""
    run = LogicalSwarm(peers=2, seed=6)
    run.until_round(2, within_s=60)
    for _ in range(3):
        run.join()
    run.until_round(16, within_s=300)
    assert len(run.world.peers[4].disk.head.electorate) == 5
    for founder in (0, 1):
        run.inject(Crash(peer=founder, phase="train", round=len(run.committed(4)) + 1))
        while f"p{founder}" in run.world.peers[4].disk.head.electorate:
            assert run.now_s < 600
            run.run_for(1.0)
    newcomer, making = arrive(run)
    assert first_round_of(run, newcomer, making) <= making + 2
    assert run.group(len(run.committed(4))) == {2, 3, 4, newcomer}
