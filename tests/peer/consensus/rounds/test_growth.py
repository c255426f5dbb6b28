"""A run that grows: newcomers contribute at once, earn their votes, and carry it on when those who began it leave."""

from __future__ import annotations

from itertools import pairwise

import pytest

from peer.consensus.protocol.membership import VOTES_AFTER
from peer.consensus.rounds.interface import Leaving
from peer.testing.memory_swarm import World

EIGHT = 8


def voters(world: World) -> set[str]:
    newest = max(world.peers, key=lambda peer: peer.disk.head.round)
    return set(newest.disk.head.electorate)


def until_all_vote(world: World, names: set[str], within_s: float) -> None:
    until = world.now + within_s
    while not names <= voters(world):
        assert world.now < until, f"{names - voters(world)} have no vote after {within_s:g} s"
        world.scheduler.run_until(world.now + 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("politely", [True, False], ids=["they leave", "they are killed"])
def test_a_run_of_two_that_grew_to_eight_survives_its_first_two(politely: bool) -> None:
    """Six join at once; the electorate takes them in by a share at a time. Nobody has to take over."""
    world = World(5, 2)
    world.scheduler.run_until(20.0)
    founders, newcomers = world.peers[:2], [world.join() for _ in range(EIGHT - 2)]
    names = {peer.name for peer in newcomers}
    until_all_vote(world, names, 240.0)
    sizes = [len(head.electorate) for head in founders[0].disk.heads]
    assert all(after - before <= max(1, before // 3) for before, after in pairwise(sizes))
    if politely:
        for peer in founders:
            peer.driver.deliver(Leaving(world.now))
        world.scheduler.run_until(world.now + 30.0)
    for peer in founders:
        peer.crash()
    at = max(peer.disk.head.round for peer in newcomers)
    world.scheduler.run_until(world.now + 60.0)
    world.check()
    assert min(peer.disk.head.round for peer in newcomers) >= at + 3
    assert voters(world) == names
    assert all(block.firm for block in newcomers[0].disk.blocks)


def test_a_newcomer_contributes_at_once_and_votes_after_three_accepted_rounds() -> None:
    """In the rounds of integers everything is accepted."""
    world = World(6, 3)
    world.scheduler.run_until(30.0)
    newcomer = world.join()
    until_all_vote(world, {newcomer.name}, 90.0)
    world.check()
    updates = [block.update for block in world.peers[0].disk.blocks]
    gave = [
        update.round
        for update in updates
        if any(header.peer == newcomer.name and header.root for header in update.members)
    ]
    first_vote = next(update.round for update in updates if newcomer.name in update.elect)
    assert first_vote == gave[VOTES_AFTER - 1]
