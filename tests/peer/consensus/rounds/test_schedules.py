"""Random and targeted schedules of faults on the memory streams: the promises of the round hold in all of them.

At most one firm update for one anchor, and without takeover one at all; equal anchors, equal bits; every
peer's books residual to the last integer; ballots, contributions and votes on disk before anybody hears of them; after
the faults one chain that moves on with everybody in it. See `tests/model_swarm.py`. A few of each kind are run here;
hundreds are in `test_chaos.py` and in `python -m tests.benchmarks chaos`.
"""

from __future__ import annotations

import pytest

from peer.consensus.aggregation.evidence import AggregationRules
from peer.consensus.protocol.messages import MeanData, ObjectData
from peer.consensus.rounds.interface import Tick
from peer.testing.memory_peer import LogicalPeer
from peer.testing.memory_swarm import World
from tests.model_swarm import CALM_S, TAKEOVER_S, FaultyWorld, run_schedule

pytestmark = pytest.mark.slow

SCHEDULES, JUDGED = 4, 3
FIRST = 1_000_000
"""Other schedules than those of `test_chaos.py`."""


@pytest.mark.parametrize("takeover_s", [0.0, TAKEOVER_S])
@pytest.mark.parametrize("kind", ["random", "targeted"])
def test_the_round_keeps_its_promises(kind: str, takeover_s: float) -> None:
    """Random: crashes at any effect with recovery from disk, stalls, partitions, cut pairs, loss, duplicates, old
    messages. Targeted: an adversary that aims at promises, proposals and votes, first committers and coordinators."""
    worlds = [run_schedule(FIRST + seed, kind, takeover_s=takeover_s, watched=True) for seed in range(SCHEDULES)]
    assert sum(world.commits for world in worlds) > 10 * SCHEDULES
    assert kind != "random" or sum(world.counts["came back"] for world in worlds) > SCHEDULES
    assert sum(world.forked for world in worlds) == 0 or takeover_s


@pytest.mark.parametrize(
    ("reducer", "kind"),
    [("edit", "random"), ("edit", "targeted"), ("edit", "forks"), ("centered-clip", "random")],
)
def test_judged_rounds_keep_their_promises(reducer: str, kind: str) -> None:
    """Integers of random size look like attacks: contributions are refused, layers rolled back, and all of it is
    agreed, through the same faults; records, measurements and disputes go through crashes and forks with the chain."""
    aggregation = AggregationRules(rule=reducer, warmup_rounds=2, deviation_floor=0.1, temperature=1.0)
    takeover_s = TAKEOVER_S if kind == "forks" else 0.0
    worlds = [
        run_schedule(FIRST + seed, kind, takeover_s=takeover_s, aggregation=aggregation) for seed in range(JUDGED)
    ]
    assert sum(world.commits for world in worlds) > 10 * JUDGED
    assert sum(world.counts["refused"] for world in worlds) > 2 * JUDGED
    assert any(peer.disk.head.records for world in worlds for peer in world.peers)
    assert kind != "random" or sum(world.counts["rolled back"] for world in worlds) > 0


def test_forks_heal() -> None:
    """Sides that go on apart, again and again, end on one branch."""
    worlds = [run_schedule(FIRST + seed, "forks", takeover_s=TAKEOVER_S, watched=True) for seed in range(SCHEDULES)]
    assert sum(world.forked for world in worlds) > SCHEDULES / 4
    assert sum(world.counts["undone"] for world in worlds) > SCHEDULES / 2


def run_until_bytes_are_lost(seed: int) -> None:
    """Three peers; no bytes of means arrive for a while, and the first that commits all the same dies for good."""
    world = FaultyWorld(seed, 3)
    means = {MeanData.code, ObjectData.code}
    world.network.drops = lambda sender, receiver, frame: frame[1] in means

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


@pytest.mark.parametrize("takeover_s", [0.0, TAKEOVER_S])
def test_the_same_seed_gives_the_same_run(takeover_s: float) -> None:
    """A failing schedule can be replayed by its seed."""
    first, second = (run_schedule(4, "targeted", takeover_s=takeover_s) for _ in range(2))
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
    """Two of three peers gone and no takeover: nothing commits until one returns, and then it goes on."""
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


def test_with_takeover_the_last_one_goes_on_and_the_others_find_back() -> None:
    """Two of three peers gone: the third waits for `takeover_s`, then commits alone; they return to its chain."""
    world = FaultyWorld(3, 3, takeover_s=TAKEOVER_S)
    world.scheduler.run_until(20.0)
    for peer in world.peers[:2]:
        peer.crash()
    world.scheduler.run_until(30.0)
    alone, before = world.peers[2].disk, world.peers[2].disk.head.round
    world.scheduler.run_until(20.0 + 4 * TAKEOVER_S)
    assert alone.head.round > before + 2
    assert alone.head.electorate == ("p2",)
    for peer in world.peers[:2]:
        peer.boot()
    world.scheduler.run_until(world.now + CALM_S)
    assert alone.head.electorate == ("p0", "p1", "p2")
    assert not world.apart()
    world.check()


@pytest.mark.parametrize("side", [("p0",), ("p0", "p1")])
@pytest.mark.parametrize("apart_s", [30.0, 150.0])
def test_a_divided_swarm_heals(apart_s: float, side: tuple[str, ...]) -> None:
    """Both sides go on for longer than they can undo, or forget each other for a while; all end on one branch."""
    world = FaultyWorld(1, 4, takeover_s=TAKEOVER_S)
    world.scheduler.run_until(20.0)
    world.network.partition(side)
    world.scheduler.run_until(20.0 + apart_s)
    inside, outside = world.peers[0].disk.head, world.peers[3].disk.head
    assert inside.round > 3
    assert outside.round > 3
    assert inside.anchor != outside.anchor
    world.network.heal()
    world.scheduler.run_until(world.now + 2 * CALM_S)
    assert not world.apart(), world.apart()
    assert world.peers[0].disk.head.electorate == ("p0", "p1", "p2", "p3")
    world.check()


def test_what_the_round_machine_says_before_a_peer_has_joined_is_said_again() -> None:
    """After a stall its first tick may come before its life begins."""
    world = World(1, 1)
    peer = world.peers[0]
    peer.deliver(Tick(world.now))
    world.scheduler.run_until(30.0)
    assert peer.disk.head.round > 2
