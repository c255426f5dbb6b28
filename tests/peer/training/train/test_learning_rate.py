"""The learning rate depends on where the run is, not on when a peer joined."""

from __future__ import annotations

import pytest

from peer.schema import spec as specs
from peer.schema.spec import RunSpec
from peer.training.train.optimizers import learning_rate, steps_before


def make_spec(rounds: int = 10, sync: int = 2, ramp: int = 3, warmup: int = 5, **inner: object) -> RunSpec:
    return specs.from_mapping(
        {
            "run": {"name": "t", "rounds": rounds},
            "model": {"architecture": "llama", "context": 8},
            "inner": {"learning_rate": 1.0, "warmup_steps": warmup, "final_fraction": 0.1, **inner},
            "round": {"steps": 6, "sync_rounds": sync, "ramp_rounds": ramp},
        }
    )


@pytest.mark.parametrize(("sync", "ramp"), [(0, 0), (2, 3), (5, 0), (0, 7), (20, 20)])
def test_steps_before_is_the_sum_of_all_rounds(sync: int, ramp: int) -> None:
    """The closed form and the definition agree for every round."""
    spec = make_spec(sync=sync, ramp=ramp)
    for round in range(50):
        assert steps_before(spec, round) == sum(spec.steps_in(number) for number in range(round))


def test_warm_up_is_linear_and_crosses_rounds() -> None:
    """Rounds 0 to 3 have 1, 1, 2, 4 steps; the fifth step is the first at the peak."""
    spec = make_spec()
    rates = [learning_rate(spec, round, step) for round in range(4) for step in range(spec.steps_in(round))]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_the_cosine_falls_to_its_final_fraction() -> None:
    """Half way between peak and end it is at their mean; past the end it stays."""
    spec = make_spec(warmup=0, sync=0, ramp=0)
    assert learning_rate(spec, 0, 0) == 1.0
    assert learning_rate(spec, 5, 0) == pytest.approx(0.55)
    assert learning_rate(spec, 10, 0) == pytest.approx(0.1)
    assert learning_rate(spec, 99, 3) == pytest.approx(0.1)


def test_a_run_without_an_end_keeps_its_peak() -> None:
    """No rounds and no schedule: constant after the warm-up."""
    assert learning_rate(make_spec(rounds=0), 10_000, 0) == 1.0


def test_the_schedule_may_be_longer_or_shorter_than_the_run() -> None:
    """`inner.schedule_rounds` wins over `run.rounds`."""
    spec = make_spec(warmup=0, sync=0, ramp=0, schedule_rounds=20)
    assert learning_rate(spec, 10, 0) == pytest.approx(0.55)
