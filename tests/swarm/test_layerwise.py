"""Real peers that apply each update layer by layer, beside their next inner step."""

from __future__ import annotations

import pytest

from peer.schema.events import EventLine, RoundCommitted, RoundStarted
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

ROUNDS = 4
PEERS = 3
SETS = (*LIGHT, 'round.overlap="layerwise"', "round.ramp_rounds=0", "round.sync_rounds=0")


def test_every_round_has_one_state(swarm: StartSwarm) -> None:
    """Peers agree to the bit, and tell each round once, in order; one that is killed comes back to the same states."""
    run = swarm(peers=PEERS, real=True, sets=SETS, settings=RESTING)
    run.until_round(ROUNDS)
    run.kill(0)
    run.restart(0)
    run.until_round(ROUNDS + 2)
    for round in range(1, ROUNDS + 3):
        states = {commit.state for peer in range(PEERS) for commit in run.committed(peer) if commit.round == round}
        assert len(states) == 1, f"round {round}"
    for peer in range(1, PEERS):
        told = [line.event.round for line in run.lines(peer) if isinstance(line.event, RoundCommitted)]
        assert told == list(range(1, told[-1] + 1))
        assert any(begins_before_it_is_told(run.lines(peer), round) for round in told)


def begins_before_it_is_told(lines: list[EventLine], round: int) -> bool:
    """Whether the inner steps on an anchor began before the peer could tell the anchor's state."""
    kinds = [
        type(line.event)
        for line in lines
        if isinstance(line.event, RoundStarted | RoundCommitted) and line.event.round == round
    ]
    return kinds[:1] == [RoundStarted]
