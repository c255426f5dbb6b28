"""One peer of three is parted from the others for longer than they wait: two branches, then one."""

from __future__ import annotations

import pytest

from peer.schema.events import AlertRaised, RoundCommitted
from peer.testing.faults import Partition
from peer.testing.pytest_plugin import StartSwarm
from peer.tools.audit.auditor import audit
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

SETS = (
    *LIGHT,
    "round.sync_rounds=1", "round.ramp_rounds=0", "round.gather_s=3.0", "round.exchange_s=4.0",
    "round.ack_s=1.0", "round.stagger_s=1.0", "round.restart_s=12.0", "round.keep_rounds=64",
    "round.snapshot_rounds=64", "round.max_staleness=64", "data.eval_every=1000",
)  # fmt: skip
ALONE = 2
PARTED = Partition(phase="train", round=2, peers=(ALONE,), seconds=20.0)
"""Long enough to take over, and too short for one peer to do as much as the two that lose a few seconds at first."""


def test_a_parted_peer_goes_on_alone_and_changes_over(swarm: StartSwarm) -> None:
    """The rounds that it made alone are undone, what it had put into them is owed again, and told; the others make the
    rounds that count. Afterwards all three run directories stand an audit."""
    run = swarm(peers=3, real=True, sets=SETS, settings=RESTING)
    run.inject(PARTED)
    run.until_struck(PARTED)
    undone = run.wait_for(ALONE, lambda line: is_about_undone_rounds(line.event)).event
    assert isinstance(undone, AlertRaised)
    assert "is owed again" in undone.text
    run.until_round(run.committed(0)[-1].round + 2)
    run.assert_agreement()
    alerts = [line.event.code for line in run.lines(ALONE) if isinstance(line.event, AlertRaised)]
    assert alerts[:3] == ["TAKEOVER", "FORK", "FORK"]
    assert [line for peer in (0, 1) for line in run.lines(peer) if is_about_undone_rounds(line.event)] == []
    reported = [line.event for line in run.lines(ALONE) if isinstance(line.event, RoundCommitted)]
    kept = {commit.digest for commit in run.committed(ALONE)}
    alone = [event for event in reported if event.digest not in kept]
    assert alone
    assert all(event.group == [run.id_of(ALONE)] for event in alone)
    for peer in range(3):
        assert audit(run.directory_of(peer)).peers == 3
    assert len(list((run.directory_of(ALONE) / "chain" / "orphans").iterdir())) == len(alone)


def is_about_undone_rounds(event: object) -> bool:
    return isinstance(event, AlertRaised) and event.code == "FORK" and "undone;" in event.text
