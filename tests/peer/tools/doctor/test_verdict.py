"""What taking part would be like: from measurements to one sentence, and honest about what was not measured."""

from __future__ import annotations

import dataclasses
import json

import pytest

from peer.planning.plan.coefficients import shipped
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import Machine, uniform_peers
from peer.planning.plan.round_cost import predict
from peer.planning.plan.strategy_search import seconds
from peer.schema.spec import RunSpec, load
from peer.tools.doctor.verdict import Measured, judge

WHOLE = Measured(step_s=2.0, upload_mbps=20.0, download_mbps=100.0, round_trip_s=0.06, peers=3)


@pytest.fixture
def spec() -> RunSpec:
    return load("gpt2-small")


def test_the_planner_is_the_judge(spec: RunSpec) -> None:
    """Its round of as many peers, all like this one."""
    verdict = judge(spec, WHOLE)
    machine = Machine(name="x", step_s=2.0, upload_mbps=20.0, download_mbps=100.0)
    cost = predict(shape_of(spec), spec, uniform_peers(4, machine, otherwise_s=0.03), shipped())
    assert (verdict.round_s, verdict.round_low_s, verdict.round_high_s) == (cost.round_s, cost.low_s, cost.high_s)
    assert verdict.sync_s == cost.agreement.total
    per_step = spec.inner.sequences * spec.inner.accumulation * spec.model.context
    assert verdict.tokens_per_day == pytest.approx(cost.steps[0] * per_step * 86400 / cost.round_s)
    assert verdict.margin == 1 - max(cost.agreement.exchange, cost.agreement.reduce) / spec.round.exchange_s
    assert "sync takes about" in verdict.sentence
    assert f"(nine in ten: {seconds(cost.low_s)} to {seconds(cost.high_s)})" in verdict.sentence
    assert "tokens a day" in verdict.sentence


def test_a_delay_that_was_not_measured_may_be_long(spec: RunSpec) -> None:
    near, unknown = (judge(spec, dataclasses.replace(WHOLE, round_trip_s=each)) for each in (0.06, None))
    assert unknown.round_s == near.round_s
    assert near.round_high_s is not None
    assert unknown.round_high_s is not None
    assert unknown.round_high_s > near.round_high_s


def test_a_line_that_is_too_slow_is_told_so(spec: RunSpec) -> None:
    """The share of the time for an exchange that is left is negative."""
    short = dataclasses.replace(spec, round=dataclasses.replace(spec.round, exchange_s=20.0))
    verdict = judge(short, dataclasses.replace(WHOLE, upload_mbps=1.0))
    assert verdict.margin is not None
    assert verdict.margin < 0
    assert "too slow" in verdict.sentence
    assert "use a smaller run" in verdict.sentence


@pytest.mark.parametrize("missing", ["upload_mbps", "download_mbps", "step_s"])
def test_nothing_is_said_of_what_was_not_measured(spec: RunSpec, missing: str) -> None:
    verdict = judge(spec, dataclasses.replace(WHOLE, **{missing: None}))
    assert verdict.tokens_per_day is None
    assert verdict.round_s is verdict.round_low_s is verdict.round_high_s is None
    assert (verdict.sync_s is None) == (missing != "step_s")
    assert (verdict.margin is None) == (missing != "step_s")
    assert "unknown" in verdict.sentence


def test_nothing_measured_is_unknown(spec: RunSpec) -> None:
    assert judge(spec, Measured()).sentence.startswith("unknown")
    assert judge(spec, dataclasses.replace(WHOLE, step_s=1e300)).sentence.startswith("unknown: ")
    assert json.loads(judge(spec, Measured()).to_json())["verdict"]["margin"] is None
