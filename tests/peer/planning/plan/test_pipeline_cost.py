"""Stages over several peers: what they move and wait for, by the papers' formulas."""

from __future__ import annotations

import pytest

from peer.planning.plan.cluster_cost import cut_bytes
from peer.planning.plan.model_shape import shape_of
from tests.peer.planning.plan.plans import spec
from tests.pipeline_step import Stage, pipeline_step_s


def test_amps_formula() -> None:
    """T = Σ e + Σ c + (B − 1) max e (arXiv:2210.07297)."""
    stages = [Stage(blocks=2, micro_s=2.0)] * 2
    assert pipeline_step_s(stages, [0.5], 8) == pytest.approx(4 + 0.5 + 7 * 2)
    assert pipeline_step_s(stages, [3.0], 8) == pytest.approx(4 + 3 + 7 * 3)


def test_a_cut_is_as_wide_as_the_model() -> None:
    """Two bytes of each activation of a micro-batch."""
    assert cut_bytes(shape_of(spec()), 8, 64) == 2 * 8 * 64 * 128
