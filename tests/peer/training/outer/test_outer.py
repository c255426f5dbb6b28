"""The outer step rounds after every operation, in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from peer.schema import spec as specs
from peer.training.outer.outer_step import momentum_at
from tests.outer_step import outer_step


def vectors(count: int, size: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal(size).astype(np.float32) for _ in range(count)]


def test_bits_are_those_of_single_operations() -> None:
    """NumPy's separate float32 operations in the documented order give the same bits."""
    theta, velocity, mean = vectors(3, 1001)
    lr, factor = np.float32(0.7), np.float32(0.9)
    expected_velocity = velocity * factor + mean
    expected_theta = theta - (expected_velocity * factor + mean) * lr
    theta_ours, velocity_ours = torch.from_numpy(theta.copy()), torch.from_numpy(velocity.copy())
    outer_step(theta_ours, velocity_ours, torch.from_numpy(mean), 0.7, 0.9)
    assert theta_ours.numpy().tobytes() == expected_theta.tobytes()
    assert velocity_ours.numpy().tobytes() == expected_velocity.tobytes()


def test_a_void_part_counts_as_zero() -> None:
    """The momentum still decays and still moves the parameters."""
    void, zero = ([torch.from_numpy(v) for v in vectors(2, 100)] for _ in range(2))
    outer_step(void[0], void[1], None, 0.7, 0.9)
    outer_step(zero[0], zero[1], torch.zeros(100), 0.7, 0.9)
    assert torch.equal(void[0], zero[0])
    assert torch.equal(void[1], zero[1])


def test_momentum_grows_over_its_warm_up() -> None:
    """From 0 at round 0 to the full value, which it keeps."""
    table = {"run": {"name": "t"}, "model": {"architecture": "llama", "context": 8}}
    spec = specs.from_mapping(table | {"outer": {"momentum": 0.8, "momentum_warmup_rounds": 4}})
    assert [momentum_at(spec, round) for round in range(6)] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 0.8])
    assert momentum_at(specs.from_mapping(table), 0) == 0.9
