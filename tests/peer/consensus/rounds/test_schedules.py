"""Random and targeted schedules of faults on the memory streams: the promises of the round hold in all of them.

One update for one anchor, whatever is restarted; equal anchors, equal bits; every peer's books residual to the last
integer; ballots, contributions and votes on disk before anybody hears of them; after the faults one chain that moves on
with everybody in it. See `tests/model_swarm.py`. A few of each kind are run here; hundreds in `test_chaos.py` and
`python -m tests.benchmarks chaos`.
"""

from __future__ import annotations

import pytest

from peer.consensus.aggregation.evidence import AggregationRules
from peer.consensus.protocol.messages import MeanData, ObjectData
from peer.consensus.rounds.interface import Tick
from peer.testing.memory_peer import LogicalPeer
from peer.testing.memory_swarm import World
from tests.model_swarm import CALM_S, RESTART_S, FaultyWorld, run_schedule

pytestmark = pytest.mark.slow

SCHEDULES = 2
FIRST = 1_000_002
"""Other schedules than those of `test_chaos.py`."""
JUDGED = (FIRST + 3, FIRST + 5)
"""In which contributions are refused and layers rolled back."""


@pytest.mark.parametrize("restart_s", [0.0, RESTART_S])
@pytest.mark.parametrize("kind", ["random", "targeted"])
def test_the_round_keeps_its_promises(kind: str, restart_s: float) -> None:
    """Random: crashes at any effect with recovery from disk, stalls, partitions, cut pairs, loss, duplicates, old
    messages. Targeted: an adversary that aims at promises, proposals and votes, first committers and coordinators."""
    worlds = [run_schedule(FIRST + seed, kind, restart_s=restart_s, watched=True) for seed in range(SCHEDULES)]
    assert sum(world.commits for world in worlds) > 10 * SCHEDULES
    assert kind != "random" or sum(world.counts["came back"] for world in worlds) > SCHEDULES / 2


@pytest.mark.parametrize(
    ("reducer", "kind"),
    [("edit", "random"), ("edit", "targeted"), ("edit", "splits"), ("centered-clip", "random")],
)
def test_judged_rounds_keep_their_promises(reducer: str, kind: str) -> None:
    """Integers of random size look like attacks: contributions are refused, layers rolled back, and all of it is
    agreed, through the same faults; records, measurements and disputes go through crashes and splits with the chain."""
    aggregation = AggregationRules(rule=reducer, warmup_rounds=2, deviation_floor=0.1, temperature=1.0)
    restart_s = RESTART_S if kind == "splits" else 0.0
    worlds = [run_schedule(seed, kind, restart_s=restart_s, aggregation=aggregation) for seed in JUDGED]
    assert sum(world.commits for world in worlds) > 10 * len(JUDGED)
    assert sum(world.counts["refused"] for world in worlds) > 2 * len(JUDGED)
    assert any(peer.disk.head.records for world in worlds for peer in world.peers)
    assert kind != "random" or sum(world.counts["rolled back"] for world in worlds) > 0


def test_sides_that_lose_each_other_end_on_one_chain() -> None:
    """Again and again; a side goes on only where it is a quorum, or where the organiser lets it."""
    seeds = range(FIRST + 2, FIRST + 2 + SCHEDULES)  # in half of them the organiser is asked
    worlds = [run_schedule(seed, "splits", restart_s=RESTART_S, watched=True) for seed in seeds]
    assert sum(world.counts["restarted"] for world in worlds) > 0


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
    """A voter holds the bytes it votes for, so a decided update is on the disks of a quorum."""
    run_until_bytes_are_lost(seed)


def test_the_same_seed_gives_the_same_run() -> None:
    """A failing schedule can be replayed by its seed."""
    first, second = (run_schedule(4, "targeted") for _ in range(2))
    assert first.updates == second.updates
    assert first.network.frames_sent == second.network.frames_sent


def test_one_peer_says_nothing_to_nobody() -> None:
    """n = 1: rounds commit without a single frame."""
    world = FaultyWorld(1, 1)
    world.scheduler.run_until(60.0)
    assert world.commits > 5
    assert world.network.frames_sent == 0


def test_rounds_go_on_without_a_minority() -> None:
    """One of four peers dies for good: the others commit, and once they have not heard it for long it votes no more."""
    world = FaultyWorld(2, 4)
    world.scheduler.run_until(20.0)
    world.peers[0].crash()
    before = world.commits
    world.scheduler.run_until(110.0)
    assert world.commits > before + 4
    survivor = world.peers[1].driver.state.head
    assert survivor.electorate == ("p1", "p2", "p3")


def test_rounds_stop_without_a_quorum() -> None:
    """Two of three peers gone and no restart: nothing commits until one returns, and then it goes on."""
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


def test_half_of_the_voters_go_on_with_the_organiser_and_the_others_find_back() -> None:
    """Two of four peers gone at once: the rest seal after `restart_s`, go on alone, and the others return to them."""
    world = FaultyWorld(3, 4, restart_s=RESTART_S)
    world.scheduler.run_until(20.0)
    for peer in world.peers[2:]:
        peer.crash()
    world.scheduler.run_until(30.0)
    left, before = world.peers[0].disk, world.peers[0].disk.head.round
    world.scheduler.run_until(60.0 + 4 * RESTART_S)
    assert left.head.round > before + 2
    assert left.head.electorate == ("p0", "p1")
    for peer in world.peers[2:]:
        peer.boot()
    world.scheduler.run_until(world.now + 4 * CALM_S)
    assert left.head.electorate == ("p0", "p1", "p2", "p3")
    assert not world.apart()
    world.check()


@pytest.mark.parametrize(
    ("apart_s", "side"),
    [
        pytest.param(30.0, ("p0",), marks=pytest.mark.nightly), (30.0, ("p0", "p1")),
        (150.0, ("p0",)), (150.0, ("p0", "p1")),
    ],
)  # fmt: skip
def test_a_divided_swarm_goes_on_as_one_chain(apart_s: float, side: tuple[str, ...]) -> None:
    """The side with a quorum goes on; of two halves the one that hears the organiser; the other waits and returns."""
    world = FaultyWorld(1, 4, restart_s=RESTART_S)
    world.scheduler.run_until(20.0)
    at = world.peers[0].disk.head.round
    world.network.partition(side)
    world.scheduler.run_until(20.0 + apart_s)
    inside, outside = world.peers[0].disk.head, world.peers[3].disk.head
    assert min(inside.round, outside.round) <= at + 1
    assert max(inside.round, outside.round) > at + 2 or (apart_s < 100 and len(side) == 2)
    world.network.heal()
    world.scheduler.run_until(world.now + 4 * CALM_S)
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
