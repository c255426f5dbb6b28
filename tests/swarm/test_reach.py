"""Real processes: one dies, and those who see its connections close do not wait for it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from peer.testing.process_swarm import RealSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = pytest.mark.swarm


def test_after_kill_9_the_next_round_takes_no_longer_than_usual(tmp_path: Path) -> None:
    """One of three, with `gather_s` = 300, which two alone would wait for: within 1.5 times the round before.

    The first two are no measure: whoever is there first makes steps ahead."""
    sets = (*LIGHT, "round.steps=35", "round.gather_s=300", "round.min_steps=100")
    with closing(RealSwarm(tmp_path, peers=3, sets=sets, settings=RESTING)) as run:
        run.until_round(3)
        run.kill(2)
        run.until_round(4)
        for peer in (0, 1):
            _, second, third, fourth = (commit.at_s for commit in run.committed(peer)[:4])
            assert fourth - third <= 1.5 * (third - second)
        assert run.group(4) == {0, 1}
        run.assert_agreement()
