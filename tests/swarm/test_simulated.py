"""What the simulator tells of a run is what real peers do: who averages with whom, and who is penalised."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fidelity import Plan, in_reality, simulated
from tui.spec_choice import choose_spec

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

PLAN = Plan(steps=20, step_s=0.25, rounds=6, odd=(1, 3), dies=(3, 4))


def test_a_simulated_run_tells_the_story_of_the_real_one(tmp_path: Path) -> None:
    """Four peers, one gives too much once, one is killed: the same groups and penalties in the same order.

    How long rounds take is held against each other in `python -m tests.benchmarks simulate`, on a machine that does
    nothing else."""
    model = simulated(choose_spec("micro", sets=PLAN.sets()), PLAN)
    real = in_reality(tmp_path / "run", PLAN)
    print(f"median round {model.median_s:.2f} s simulated, {real.median_s:.2f} s real")
    assert model.groups == real.groups
    assert model.penalties == real.penalties
    assert any(code == "ANOMALY" for row in real.penalties for _, code in row)
    assert any(code == "ABSENT" for row in real.penalties for _, code in row)
