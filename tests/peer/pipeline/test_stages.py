"""Stages of a model compute what the whole model does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.peer.pipeline.stages import Cluster, alone, small_spec


@pytest.mark.parametrize("homes", [2, 3, 4])
def test_steps_equal_those_of_one_device(homes: int, tmp_path: Path) -> None:
    """Loss and parameters, clipped, over ten steps; and the loss of the anchor."""
    spec = small_spec()
    one, cluster = alone(spec), Cluster(spec, homes, "float32", tmp_path)
    theta = torch.cat([layer for stage in cluster.stages for layer in stage.anchor.theta])
    assert torch.equal(torch.cat(one.anchor.theta), theta)
    with cluster.at_work():
        for position in range(10):
            mine, theirs = one.step(0, position), cluster.lead.step(0, position)
            assert theirs.loss == pytest.approx(mine.loss, rel=1e-5)
            assert (theirs.tokens, theirs.learning_rate) == (mine.tokens, mine.learning_rate)
        held_out = cluster.batches.next(5)
        assert cluster.lead.loss(held_out, lambda: False) == pytest.approx(one.loss(held_out, lambda: False), rel=1e-5)
    torch.testing.assert_close(cluster.parameters(), one.vectors.flat.new(), rtol=1e-4, atol=1e-5)
    assert all(len(steps) == 10 for steps in cluster.served.values())
