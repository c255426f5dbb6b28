"""The benchmark of real homes: what its layouts are measured against."""

from __future__ import annotations

import pytest

from peer.planning.plan.cluster_cost import fewest_stages
from peer.planning.plan.model_shape import shape_of
from peer.testing.swarm_contract import changed_spec
from tests.benchmarks.pipeline_homes import ALIKE, GAIN, SETS, SIX, STAGES, Costs, room_bytes

SPEC = changed_spec("micro", SETS)


def test_three_homes_hold_the_model_and_two_do_not() -> None:
    assert fewest_stages(shape_of(SPEC), SPEC, [room_bytes(SPEC)] * 6) == STAGES


def test_equal_homes_are_as_fast_at_random_and_unlike_ones_can_meet_the_bar() -> None:
    alike, six = (Costs.of(SPEC, homes, [str(number) for number in range(len(homes))]) for homes in (ALIKE, SIX))
    assert alike.best() == pytest.approx(alike.random())
    assert six.best() > GAIN * six.random()
