"""One peer of three is parted from the others: they go on, it waits, and what it learned meanwhile is counted later."""

from __future__ import annotations

import pytest

from peer.schema.events import InnerProgressed, RoundCommitted
from peer.testing.faults import Partition
from peer.testing.pytest_plugin import StartSwarm
from peer.tools.audit.auditor import audit
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

SETS = (
    *LIGHT,
    "round.sync_rounds=1", "round.ramp_rounds=0", "round.gather_s=3.0", "round.exchange_s=4.0",
    "round.ack_s=1.0", "round.stagger_s=1.0", "round.restart_s=0.0", "round.keep_rounds=64",
    "round.snapshot_rounds=64", "round.max_staleness=64", "data.eval_every=1000",
)  # fmt: skip
ALONE = 2
PARTED = Partition(phase="train", round=2, peers=(ALONE,), seconds=20.0)


def test_a_parted_peer_waits_and_comes_back(swarm: StartSwarm) -> None:
    """It trains on and decides nothing; the others do. Nothing is undone, and all three folders stand an audit."""
    run = swarm(peers=3, real=True, sets=SETS, settings=RESTING)
    run.inject(PARTED)
    run.until_struck(PARTED)
    run.until_round(run.committed(0)[-1].round + 4)
    run.assert_agreement()
    for peer in range(3):
        reported = [line.event for line in run.lines(peer) if isinstance(line.event, RoundCommitted)]
        assert [event.round for event in reported] == sorted({event.round for event in reported})
        assert all(len(event.group) > 1 for event in reported)
    assert any(isinstance(line.event, InnerProgressed) for line in run.lines(ALONE))
    for peer in range(3):
        assert audit(run.directory_of(peer)).peers == 3
