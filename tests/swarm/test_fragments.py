"""Real peers whose model is averaged in fragments."""

from __future__ import annotations

from statistics import median

import pytest

from peer.schema.events import RoundCommitted
from peer.testing.faults import Crash
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from peer.tools.audit.auditor import audit
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

BEGIN_S = 120.0
ROUND_S = 60.0
FRAGMENTS = 2
SETS = (
    *LIGHT,
    "round.ramp_rounds=0",
    "round.sync_rounds=0",
    "data.eval_every=100",
    'codec.wire="float32"',
)


def commits(run: RealSwarm, peer: int) -> list[RoundCommitted]:
    return [line.event for line in run.lines(peer) if isinstance(line.event, RoundCommitted)]


def expect_one_state_per_round(run: RealSwarm, rounds: int) -> None:
    for round in range(1, rounds + 1):
        states = {commit.state for peer in range(run.size) for commit in run.committed(peer) if commit.round == round}
        assert len(states) == 1, f"round {round}"


@pytest.mark.timeout(600)
def test_fragments_take_turns(swarm: StartSwarm) -> None:
    """Two peers agree on fragments in turn; one is killed and comes back, a newcomer replays; the chain is audited."""
    run = swarm(peers=2, real=True, sets=(*SETS, f"round.fragments={FRAGMENTS}"), settings=RESTING)
    run.until_round(3, within_s=BEGIN_S + 3 * ROUND_S)
    run.inject(Crash(peer=1, phase="train", round=4, back_after_s=1.0))
    newcomer = run.join()
    run.until_round(7, within_s=4 * ROUND_S + BEGIN_S)
    expect_one_state_per_round(run, 7)
    told = commits(run, 0)[:7]
    assert newcomer == 2
    assert max(commit.void for commit in told) == 0
    sent = [median(commit.bytes_sent for commit in told[first::FRAGMENTS]) for first in range(FRAGMENTS)]
    print(f"bytes sent per round by fragment: {sent}")
    for peer in range(3):
        run.stop(peer)
    for folder in sorted(run.directory.glob("peer-*")):
        report = audit(folder)
        assert report.last_round >= 7
        assert report.state
