"""Random and targeted schedules of faults on the memory streams: the promises of the round hold in all of them.

Never two updates for one anchor; equal anchors, equal bits; every peer's books balance to the last
integer; after the faults one chain that moves on with everybody in it. See `tests/model_swarm.py`.
"""

from __future__ import annotations

from random import Random

import pytest

from dht.memory import LinkModel
from peer.rounds.messages import BytesSent, MeanSent
from peer.testing.logical_peer import LogicalPeer
from tests.model_swarm import FaultyWorld, random_faults, targeted_faults

FAULT_S = CALM_S = 40.0
SCHEDULES = 100


def run_schedule(seed: int, *, targeted: bool, peers: int | None = None) -> FaultyWorld:
    """One schedule: 1 to 5 peers (or as many as asked), a network that loses, repeats and delays frames,
    40 s of faults, 40 s of calm."""
    dice = Random(seed)
    link = LinkModel(
        delay_s=(0.01, 0.3), loss=dice.choice((0.0, 0.05, 0.2)), duplication=0.05, old=0.03, old_s=20.0
    )  # fmt: skip
    world = FaultyWorld(seed, peers or dice.randrange(1, 6), link)
    faults = targeted_faults(dice.uniform(0.2, 0.8)) if targeted else random_faults(FAULT_S)
    world.run(faults, fault_s=FAULT_S, calm_s=CALM_S)
    return world


@pytest.mark.parametrize("hundred", range(5))
def test_random_faults(hundred: int) -> None:
    """Crashes at any effect with recovery from disk, stalls, partitions, cut pairs, loss, duplicates, old messages."""
    commits = sum(run_schedule(hundred * SCHEDULES + i, targeted=False).commits for i in range(SCHEDULES))
    assert commits > 10 * SCHEDULES


@pytest.mark.parametrize("hundred", range(5))
def test_targeted_adversary(hundred: int) -> None:
    """An adversary that aims at promises, proposals and votes, first committers and coordinators."""
    commits = sum(run_schedule(10_000 + hundred * SCHEDULES + i, targeted=True).commits for i in range(SCHEDULES))
    assert commits > 10 * SCHEDULES


def run_until_bytes_are_lost(seed: int) -> None:
    """Three peers; no bytes of means arrive for a while, and the first that commits all the same dies for good."""
    world = FaultyWorld(seed, 3)
    means = {MeanSent.code, BytesSent.code}
    world.network.drops = lambda sender, receiver, frame: frame[0] in means

    def bury(peer: LogicalPeer) -> None:
        world.on_commit, world.network.drops, peer.fuse = None, None, 1

    world.on_commit = bury
    world.scheduler.call_at(30.0, world.network.heal)
    world.scheduler.run_until(120.0)
    rounds = [peer.disk.head.round for peer in world.peers if peer.alive]
    assert len(rounds) == 2
    assert min(rounds) > 2, f"the bytes of a decided update died with one peer: {rounds}"


@pytest.mark.parametrize("seed", range(5))
def test_the_bytes_of_a_decided_update_outlive_any_one_peer(seed: int) -> None:
    """A voter holds the bytes it votes for, so a decided update is on a majority of disks."""
    run_until_bytes_are_lost(seed)


def test_the_same_seed_gives_the_same_run() -> None:
    """A failing schedule can be replayed by its seed."""
    first, second = run_schedule(4, targeted=True), run_schedule(4, targeted=True)
    assert first.updates == second.updates
    assert first.network.frames_sent == second.network.frames_sent


def test_one_peer_says_nothing_to_nobody() -> None:
    """n = 1: rounds commit without a single frame."""
    world = FaultyWorld(1, 1)
    world.scheduler.run_until(60.0)
    assert world.commits > 5
    assert world.network.frames_sent == 0


def test_rounds_go_on_without_a_minority() -> None:
    """One of four peers dies for good: the others commit, and after two rounds it is no longer counted."""
    world = FaultyWorld(2, 4)
    world.scheduler.run_until(20.0)
    world.peers[0].crash()
    before = world.commits
    world.scheduler.run_until(80.0)
    assert world.commits > before + 4
    survivor = world.peers[1].driver.state.head
    assert survivor.electorate == ("p1", "p2", "p3")


def test_rounds_stop_without_a_majority() -> None:
    """Two of three peers gone: nothing commits until one returns, and then it goes on."""
    world = FaultyWorld(3, 3)
    world.scheduler.run_until(20.0)
    for peer in world.peers[:2]:
        peer.crash()
    world.scheduler.run_until(30.0)
    before = world.commits
    world.scheduler.run_until(90.0)
    assert world.commits == before
    world.peers[0].boot()
    world.scheduler.run_until(150.0)
    assert world.commits > before + 2
    world.check()
