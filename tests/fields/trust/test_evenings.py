"""People leave in the evening, some of them without a word: who is left goes on, and there is never a second chain."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from peer.consensus.rounds.interface import Leaving
from peer.testing.faults import PHASES
from peer.testing.memory_peer import LogicalPeer
from peer.testing.memory_swarm import World

pytestmark = pytest.mark.slow

VOTERS = 16
BEGINS_S = 30.0
EVENING_S = (60.0, 300.0, 900.0)
"""How long it takes until the last of them is gone."""
RESTART_S = 600.0
"""As the rules have it by default."""
AFTER_S = 300.0
"""Within so long of a restart, or of the last who left, two more rounds are decided."""
GOODBYE_S = 0.2


@dataclass(frozen=True)
class Evening:
    """How one drawn evening ends."""

    goes_on: bool
    left: int
    restarts: int


def evening(seed: int, left: int, restart_s: float = RESTART_S) -> Evening:
    """Of sixteen voters all but `left` go, at drawn moments; every other one without a word."""
    dice, world = Random(f"evening {seed}"), World(seed, VOTERS, restart_s=restart_s)
    lasts_s, last_s = dice.choice(EVENING_S), BEGINS_S
    for place, index in enumerate(dice.sample(range(VOTERS), VOTERS - left)):
        at_s = BEGINS_S + dice.uniform(0.0, lasts_s)
        world.scheduler.call_at(at_s, say_goodbye if place % 2 else vanish, world, world.peers[index])
        last_s = max(last_s, at_s)
    world.scheduler.run_until(last_s + GOODBYE_S)
    goes_on = decides(world, 2, restart_s + AFTER_S)
    world.check()
    assert not world.apart()
    assert sum(peer.alive for peer in world.peers) == left
    return Evening(goes_on, left, len(world.restarts))


def say_goodbye(world: World, peer: LogicalPeer) -> None:
    peer.driver.deliver(Leaving(world.now))
    peer.later(GOODBYE_S, peer.crash)


def vanish(world: World, peer: LogicalPeer) -> None:
    peer.crash()


def decides(world: World, rounds: int, within_s: float) -> bool:
    """Whether those who are there decide as many more."""
    until, before = world.now + within_s, newest(world)
    while world.now < until and newest(world) < before + rounds:
        world.scheduler.run_until(world.now + 5.0)
    return newest(world) >= before + rounds


def newest(world: World) -> int:
    return max(peer.disk.head.round for peer in world.peers)


@pytest.mark.parametrize("seed", [3])
def test_half_of_sixteen_leave_and_the_others_go_on(seed: int) -> None:
    """The organiser has to let them, here after two minutes; most evenings, and ten minutes, are at night."""
    found = evening(seed, 8, restart_s=120.0)
    assert found.goes_on
    assert found.restarts == 1


@pytest.mark.nightly
def test_in_nine_of_ten_drawn_evenings_where_half_still_answer_the_run_goes_on() -> None:
    drawn = [evening(seed, 8) for seed in range(10)]
    assert sum(one.goes_on for one in drawn) >= 9
    assert any(one.restarts for one in drawn), "some of them lose the quorum"


@pytest.mark.nightly
def test_where_fourteen_of_sixteen_leave_the_last_two_go_on_or_wait_for_a_person() -> None:
    """They wait where fewer than half of the voters of some moment are left; those who leave one by one take their
    vote with them."""
    assert {evening(seed, 2).goes_on for seed in range(4, 7)} == {True, False}


# ---- all at once ----


def halved(peers: int, phase: str, *, organiser: bool) -> World:
    """Half of the voters vanish as one of them enters a phase of a round; a minute more."""
    world, gone = World(7, peers, restart_s=60.0), range(peers - peers // 2, peers)
    world.organiser_runs = organiser

    def look(peer: LogicalPeer, entered: str, round: int) -> None:
        if (peer.name, entered, round) == (f"p{peers - 1}", phase, 4):
            world.on_phase = None
            for index in gone:
                world.scheduler.call_in(0.0, vanish, world, world.peers[index])

    world.on_phase = look
    while all(peer.alive for peer in world.peers):
        assert world.now < 120.0, "nobody vanished"
        world.scheduler.run_until(world.now + 1.0)
    world.scheduler.run_until(world.now + 10.0)
    return world


@pytest.mark.parametrize("peers", [2, 4])
@pytest.mark.parametrize("phase", PHASES)
def test_half_of_the_voters_vanish_in_any_phase_and_the_others_go_on_with_the_organiser(peers: int, phase: str) -> None:
    """Who comes back is a member again, of the one chain that there is."""
    world = halved(peers, phase, organiser=True)
    assert decides(world, 3, 240.0)
    assert len(world.restarts) == 1
    for peer in world.peers:
        if not peer.alive:
            peer.boot()
    assert decides(world, 4, 240.0)
    world.check()
    assert not world.apart()
    members = {header.peer for block in world.peers[0].disk.blocks[-2:] for header in block.update.members}
    assert members == {peer.name for peer in world.peers}


@pytest.mark.parametrize("phase", ["train", "exchange", "commit"])
def test_without_the_organiser_they_wait_for_each_other_and_lose_nothing(phase: str) -> None:
    world = halved(2, phase, organiser=False)
    stood = newest(world)
    assert not decides(world, 1, 600.0)
    for peer in world.peers:
        if not peer.alive:
            peer.boot()
    assert decides(world, 3, 120.0)
    assert world.peers[0].disk.heads[stood - 1].round == stood
    world.check()
    assert not world.apart()
