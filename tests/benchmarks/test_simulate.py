"""The bars of the simulator's benchmark can be missed; `tests/swarm/test_simulated.py` runs the two."""

from __future__ import annotations

from dataclasses import replace

from tests.benchmarks.simulate import judge
from tests.fidelity import Story

REAL = Story(groups=[[0, 1], [0, 1]], penalties=[[], [(1, "LATE")]], round_s=[5.0, 6.0, 5.2])


def test_another_story_is_seen() -> None:
    """Groups, penalties, or times that are a sixth off."""
    assert all(bar.met for bar in judge(REAL, REAL))
    for other in (
        replace(REAL, groups=[[0, 1], [0]]), replace(REAL, penalties=[[(1, "LATE")], []]),
        replace(REAL, round_s=[6.2, 6.2, 6.2]),
    ):  # fmt: skip
        assert sum(not bar.met for bar in judge(REAL, other)) == 1
