"""Somebody was away while the others finished the run."""

from __future__ import annotations

import pytest

from dht.errors import RunOver
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = pytest.mark.swarm

ROUNDS = 4
SETS = (*LIGHT, f"run.rounds={ROUNDS}", "round.gather_s=3.0", "round.exchange_s=4.0", "round.ack_s=1.0")

HURRY = {"peer.network.link.participation.ALONE_S": 2.0, "peer.consensus.rounds.timeouts.SILENT_S": 12.0}


def test_who_comes_when_all_are_gone_is_told_so_and_stops(swarm: StartSwarm) -> None:
    """By the certificate of the last round, which the organiser's node has; without the node nobody could know."""
    run = swarm(peers=3, real=True, sets=SETS, settings=RESTING, hurry=HURRY)
    run.until_round(2)
    run.kill(2)
    assert [run.ends(peer) for peer in (0, 1)] == [0, 0]
    run.restart(2)
    assert run.ends(2) == RunOver.exit_code
    assert f"the others have finished the run with round {ROUNDS} while this peer stood at round" in run.log(2)
