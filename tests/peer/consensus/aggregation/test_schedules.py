"""The standards against the schedule of a run: its own ramps are nothing unusual."""

from __future__ import annotations

import dataclasses
import math

import pytest

from peer.consensus.aggregation.aggregate import aggregate
from peer.consensus.aggregation.evidence import WEIGHT_ONE, AggregationRules
from peer.consensus.aggregation.peer_history import PeerHistory
from peer.consensus.codec.run_rules import rules_of
from peer.consensus.protocol.layout import Part
from peer.schema import spec as specs
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import AggregationTable
from peer.testing.memory_peer import ModelKeys
from peer.training.train.optimizers import learning_rate
from tests.peer.consensus.aggregation.build import claims, norms


def norm_of(spec: RunSpec, round: int, power: int) -> float:
    """Of a round's movement if steps of the learning rate's length add up (power 1) or have nothing in common (2)."""
    rates = [learning_rate(spec, round, step) for step in range(spec.steps_in(round))]
    return math.fsum(rates) if power == 1 else math.hypot(*rates)


@pytest.mark.slow
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("name", specs.SHIPPED)
def test_no_shipped_schedule_is_refused_or_clipped(name: str, power: int) -> None:
    """Two peers, for whom the history is all there is, from the first round until the ramps are long over."""
    spec = specs.load(name)
    standards = AggregationRules(**dataclasses.asdict(spec.aggregation))
    records: tuple[PeerHistory, ...] = ()
    for round in range(min(spec.run.rounds or 60, 60)):
        members = claims(2, round, steps=[spec.steps_in(round)] * 2)
        found = aggregate(standards, round, records, members, norms([norm_of(spec, round, power)] * 2))
        assert found.findings == ()
        assert found.scales == (WEIGHT_ONE,)
        records = found.records


def test_the_standards_are_the_table_of_the_spec() -> None:
    """Field by field, with the same defaults; the rules of a run hold them."""
    assert dataclasses.asdict(AggregationRules()) == dataclasses.asdict(AggregationTable())
    spec = specs.load("micro")
    rules = rules_of(spec, (Part(0, 0, 64),), ModelKeys("p0"))
    assert rules.aggregation == AggregationRules(warmup_rounds=4)
