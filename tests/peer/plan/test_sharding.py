"""Replicas of several devices or peers: what they hold, move and wait for, by the papers' formulas."""

from __future__ import annotations

import pytest

from peer.plan.model_shape import memory_of, shape_of
from peer.plan.replicas import balanced, cut_bytes, hierarchical, inner_sizes, pipeline_step_s, zero3
from tests.peer.plan.plans import spec

# ---- sharding ----


def test_zero3_moves_three_models_and_zero_plus_plus_two() -> None:
    """arXiv:2306.10209 counts M = 2 bytes per parameter; of many devices almost all of it goes to others."""
    run = spec()
    shape, memory = shape_of(run), memory_of(shape_of(run), run)
    whole, many = 2 * shape.parameters, 1024
    assert zero3(shape, memory, many).traffic_bytes == pytest.approx(3 * whole, rel=0.01)
    sharded = hierarchical(shape, memory, many, 2)
    assert sharded.traffic_bytes == pytest.approx(2 * whole, rel=0.01)
    assert sharded.device_bytes == zero3(shape, memory, many).device_bytes + whole / 2


def test_shards_hold_less_and_wait_only_for_what_computing_does_not_hide() -> None:
    run = spec()
    shape, memory = shape_of(run), memory_of(shape_of(run), run)
    held = [zero3(shape, memory, many).device_bytes for many in (2, 4, 8)]
    assert held == sorted(held, reverse=True)
    sharded = zero3(shape, memory, 4)
    assert sharded.step_s(1.0, 1e12, 1e12) == 1.0
    assert sharded.step_s(1.0, 1e3, 1e3) == pytest.approx(1.1 * sharded.traffic_bytes / 1e3)
    assert list(inner_sizes(8)) == [2, 4]


# ---- pipelines ----


def test_amps_formula() -> None:
    """T = Σ e + Σ c + (B − 1) max e (arXiv:2210.07297)."""
    stages = balanced(shape_of(spec()), [1.0, 1.0])
    assert [stage.blocks for stage in stages] == [2, 2]
    assert pipeline_step_s(stages, [0.5], 8) == pytest.approx(4 + 0.5 + 7 * 2)
    assert pipeline_step_s(stages, [3.0], 8) == pytest.approx(4 + 3 + 7 * 3)


def test_a_slow_peer_gets_fewer_blocks() -> None:
    shape = shape_of(spec(config={"num_hidden_layers": 9}))
    assert [stage.blocks for stage in balanced(shape, [1.0, 2.0])] == [6, 3]
    with pytest.raises(ValueError, match="cannot be cut into 10"):
        balanced(shape, [1.0] * 10)


def test_a_cut_is_as_wide_as_the_model() -> None:
    """Two bytes of each activation of a micro-batch."""
    assert cut_bytes(shape_of(spec()), 8, 64) == 2 * 8 * 64 * 128
