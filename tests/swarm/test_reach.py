"""Real processes: one dies, and those who see its connections close do not wait for it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from peer.testing.process_swarm import RealSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = pytest.mark.swarm


def test_after_kill_9_the_next_round_takes_no_longer_than_usual(tmp_path: Path) -> None:
    """One of three, with `gather_s` = 300 and nothing learned yet: within 1.5 times the round before."""
    sets = (*LIGHT, "round.steps=35", "round.gather_s=300")
    with closing(RealSwarm(tmp_path, peers=3, sets=sets, settings=RESTING)) as run:
        run.until_round(2)
        run.kill(2)
        run.until_round(3)
        for peer in (0, 1):
            first, second, third = (commit.at_s for commit in run.committed(peer)[:3])
            assert third - second <= 1.5 * (second - first)
        assert run.group(3) == {0, 1}
        run.assert_agreement()
