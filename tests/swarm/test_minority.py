"""One peer of three is parted from the others for longer than anybody waits: they go on, and it decides nothing."""

from __future__ import annotations

import pytest

from peer.schema.events import AlertRaised, RoundCommitted
from peer.testing.faults import Partition
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

SETS = (
    *LIGHT, "round.gather_s=3.0", "round.exchange_s=4.0", "round.ack_s=1.0", "round.stagger_s=1.0",
    "round.restart_s=4.0", "round.keep_rounds=64", "round.snapshot_rounds=64", "round.max_staleness=64",
    "data.eval_every=1000",
)  # fmt: skip
HURRY = {"peer.consensus.rounds.timeouts.SILENT_S": 12.0}
ALONE, OTHERS = 2, (0, 1)
PARTED = Partition(phase="train", round=2, peers=(ALONE,), seconds=40.0)


def test_a_minority_waits_and_comes_back(swarm: StartSwarm) -> None:
    """It hears the organiser's node and asks it, but is less than half of those whom the organiser knows. Nothing is
    undone anywhere; once it is back it is a member again."""
    run = swarm(peers=3, real=True, sets=SETS, settings=RESTING, hurry=HURRY)
    run.inject(PARTED)
    run.until_struck(PARTED)
    parted_at = max(commit.round for commit in run.committed(0))
    run.wait_for(ALONE, lambda line: isinstance(line.event, AlertRaised) and line.event.code == "STUCK")
    run.until_round(parted_at + 3, by=OTHERS)
    run.until(lambda: ALONE in run.committed(0)[-1].group, "who was parted is no member again")
    run.until_round(run.committed(0)[-1].round + 1)
    run.assert_agreement()
    codes = {line.event.code for peer in range(3) for line in run.lines(peer) if isinstance(line.event, AlertRaised)}
    assert codes.isdisjoint({"FORK", "RESTART", "RESYNC"})
    reported = [line.event for line in run.lines(ALONE) if isinstance(line.event, RoundCommitted)]
    assert all(len(event.group) > 1 for event in reported)
