"""A polite leave in the middle of a round: the others lose little time, whatever the leaver was about to do."""

from __future__ import annotations

from functools import cache

import pytest

from peer.consensus.rounds.interface import Leaving
from peer.schema.events import RoundAborted
from peer.testing.memory_peer import TRAIN_S, LogicalPeer
from peer.testing.memory_swarm import World

pytestmark = pytest.mark.slow

ROUND = 6
"""The one in whose course somebody leaves."""
GOODBYE_S = 0.2
"""What `peer.network.link.link` gives its last words."""
SEED = 0
PHASES = ("train", "submit", "prepare", "exchange", "reduce", "commit")


def leave(world: World, peer: LogicalPeer, goodbye_s: float) -> None:
    """Say goodbye and be gone for good."""
    peer.driver.deliver(Leaving(world.now))
    peer.later(goodbye_s, peer.crash)


@cache
def story(seed: int, peers: int, phase: str, goodbye_s: float = GOODBYE_S) -> tuple[World, tuple[float, ...]]:
    """Seconds from commit to commit as the quickest of the others sees them; p0 leaves in `phase` of ROUND."""
    world = World(seed, peers)

    def look(peer: LogicalPeer, entered: str, round: int) -> None:
        if (peer.name, entered, round) == ("p0", phase, ROUND):
            world.on_phase = None
            world.scheduler.call_in(0.0, leave, world, peer, goodbye_s)

    world.on_phase = look
    world.scheduler.run_until(80.0)
    world.check()
    others = world.history[1:]
    at = [min(commits[index].at_s for commits in others) for index in range(min(map(len, others)))]
    return world, tuple(after - before for before, after in zip([0.0, *at], at, strict=False))


@pytest.mark.parametrize(
    ("phase", "peers", "goodbye_s"),
    [
        (phase, 3 + (number + turn) % 3, goodbye_s)
        for number, phase in enumerate(PHASES)
        for turn, goodbye_s in enumerate((0.0, GOODBYE_S))
    ],
)
def test_a_leaver_costs_at_most_a_deadline_and_one_more_ballot(phase: str, peers: int, goodbye_s: float) -> None:
    """Whether it coordinates or reduces, and whether its last words are all it still says."""
    _, undisturbed_s = story(SEED, peers, "never")
    world, took_s = story(SEED, peers, phase, goodbye_s)
    rules = world.rules("p1")
    assert took_s[ROUND] <= undisturbed_s[ROUND] + 2 * rules.exchange_s + 2 * rules.ack_s
    assert world.peers[1].disk.blocks[ROUND].update.ballot <= 1
    assert not any(isinstance(event, RoundAborted) for peer in world.peers[1:] for event in peer.reports)


@pytest.mark.parametrize("phase", PHASES)
def test_nobody_waits_for_a_leaver_in_the_rounds_after(phase: str) -> None:
    """It may still be in the electorate of the next round, but is not asked, not waited for, and then not in it."""
    world, took_s = story(SEED, 4, phase)
    assert max(took_s[ROUND + 1 :]) < max(TRAIN_S) + 1.0
    assert "p0" not in world.peers[1].driver.state.head.electorate


def test_a_leaver_that_stays_for_the_exchange_is_in_the_mean() -> None:
    """What it froze and sent counts."""
    world, _ = story(0, 4, "exchange")
    update = world.peers[1].disk.blocks[ROUND].update
    assert all(update.contributed("p0", part) for part in range(len(update.parts)))


@pytest.mark.parametrize("peers", [2, 4])
def test_who_is_left_after_goodbyes_goes_on_within_two_minutes(peers: int) -> None:
    """Half of the voters, between two rounds, so that no update says that they leave; `restart_s` is ten minutes."""
    world = World(SEED, peers, restart_s=600.0)
    world.scheduler.run_until(30.0)
    stays, leavers = world.peers[: peers // 2], world.peers[peers // 2 :]
    for peer in leavers:
        leave(world, peer, GOODBYE_S)
    stood = max(peer.disk.head.round for peer in stays)
    world.scheduler.run_until(150.0)
    assert min(peer.disk.head.round for peer in stays) > stood + 3
    assert stays[0].disk.head.electorate == tuple(peer.name for peer in stays)
    world.check()
