"""Real peers whose lines differ: what each averages for the others follows what it can send."""

from __future__ import annotations

import pytest

from peer.schema.events import RoundCommitted
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

BEGIN_S = 120.0
ROUND_S = 60.0
SETS = (
    *LIGHT,
    "round.ramp_rounds=0",
    "round.sync_rounds=0",
    "data.eval_every=100",
    "codec.part_elements=4096",
)


@pytest.mark.timeout(600)
def test_who_sends_slowly_averages_less_and_sends_less(swarm: StartSwarm) -> None:
    """One of three has a tenth of the others' line: it hardly sends more than its own part of the model."""
    own = {0: ("upload_mbps=4",), 1: ("upload_mbps=40",), 2: ("upload_mbps=40",)}
    run = swarm(peers=3, real=True, sets=SETS, settings=RESTING, own=own)
    run.until_round(4, within_s=BEGIN_S + 4 * ROUND_S)
    slow, *others = (
        sum(
            line.event.bytes_sent
            for line in run.lines(peer)
            if isinstance(line.event, RoundCommitted) and 2 <= line.event.round <= 4
        )
        for peer in range(3)
    )
    assert 0 < slow < 0.85 * min(others)
    run.assert_agreement()
