"""Real peers that make inner steps while their round is agreed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from peer.schema.events import EventLine, PeerStateChanged, RoundCommitted
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

ROUNDS = 3
PEERS = 3
SETS = (*LIGHT, "round.ramp_rounds=0", "round.sync_rounds=0", "data.eval_every=100")
PACED = ("min_step_s=0.4",)
"""So that the peers do not wait for the cores of the one machine."""
DELAY_S = 0.1


def start(swarm: StartSwarm, *sets: str) -> RealSwarm:
    run = swarm(peers=PEERS, real=True, sets=(*SETS, *sets), settings=PACED, paced=True, delay_s=DELAY_S)
    run.until_round(ROUNDS)
    return run


def exposed_share(run: RealSwarm) -> float:
    """Of the time of all rounds but the first, in which peers found each other, the part in which none could train."""
    commits = [line.event for peer in range(PEERS) for line in run.lines(peer)]
    told = [event for event in commits if isinstance(event, RoundCommitted) and 1 < event.round <= ROUNDS]
    return sum(commit.exposed_s for commit in told) / sum(commit.round_s for commit in told)


def trains_meanwhile(after: int) -> Callable[[EventLine], bool]:
    """It makes steps while a later round than `after` is being agreed."""
    words = [f"while round {round} is being agreed" for round in range(after + 1, after + 50)]
    return lambda line: isinstance(line.event, PeerStateChanged) and any(each in line.event.why for each in words)


def counts_after(round: int, peer_id: str) -> Callable[[EventLine], bool]:
    """A later round counts what this peer gave. How many pass until it is back depends on the machine."""
    return lambda line: (
        isinstance(line.event, RoundCommitted) and line.event.round > round and peer_id in line.event.group
    )


def test_far_less_time_is_lost_and_a_crash_meanwhile_loses_nobody(swarm: StartSwarm) -> None:
    """The same run with peers that wait and with peers that do not: one state per round in both. One of the latter is
    killed with steps on top of what it has offered: it comes back, takes part again, and the states agree."""
    waiting = start(swarm)
    waiting.assert_agreement()
    for peer in range(PEERS):
        waiting.stop(peer)

    run = start(swarm, 'round.overlap="streaming"')
    run.assert_agreement()
    shares = exposed_share(waiting), exposed_share(run)
    assert shares[1] < shares[0] / 3, shares

    run.wait_for(0, trains_meanwhile(run.committed(0)[-1].round + 1))
    run.kill(0)
    run.restart(0)
    before = run.committed(0)[-1].round
    run.wait_for(0, counts_after(before, run.id_of(0)))
    run.assert_agreement()
