"""What a real peer gives is judged by what was measured of it, and everybody says the same of it."""

from __future__ import annotations

import pytest

from peer.schema.events import RoundCommitted
from peer.testing.faults import Odd
from peer.testing.pytest_plugin import StartSwarm

pytestmark = pytest.mark.swarm

SETS = ("round.steps=20", "aggregation.warmup_rounds=2")
LAYER = "model.layers.1"
ROUND, VICTIM = 4, 2


def test_an_odd_layer_is_named_by_everybody_and_the_run_goes_on(swarm: StartSwarm) -> None:
    """Of eight times as much in one layer that layer counts nothing; in the next round nobody is accused."""
    run = swarm(peers=3, real=True, sets=SETS)
    run.inject(Odd(peer=VICTIM, round=ROUND, factor=8.0, layer=LAYER))
    run.until_round(ROUND + 2)
    run.assert_agreement()
    told = {
        line.event.round: [row for row in line.event.penalties if row["code"] == "ANOMALY"]
        for peer in range(run.size)
        for line in run.lines(peer)
        if isinstance(line.event, RoundCommitted)
    }
    (penalty,) = told[ROUND + 1]
    assert (penalty["about"], penalty["layer"]) == (run.id_of(VICTIM), LAYER)
    assert penalty["evidence"].endswith("in 1 of 4 layers")
    assert (penalty["factor"], penalty["until_round"]) == (0.75, ROUND + 2)
    assert told[ROUND + 2] == []
