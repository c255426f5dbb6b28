"""A plan of peers that are not alike says how long rounds take that are simulated message by message."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest

from peer.planning.plan.coefficients import shipped
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import Machine, PeerSpecs
from peer.planning.plan.round_cost import predict
from peer.planning.simulate.group import Group
from peer.planning.simulate.scenario import ScenarioOptions
from tests.peer.planning.simulate.scenarios import spec

KNOWN_AFTER, ROUNDS = 8, 32
"""Rounds after which deadlines are learned, and that are simulated."""


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("step_s", "round"),
    [
        pytest.param((0.5, 0.5, 0.6, 0.8, 2.5), {}, id="one is not waited for"),
        pytest.param((0.5, 0.5, 0.6, 0.8, 2.5), {"overlap": "streaming"}, id="nor while the others stream"),
        pytest.param((0.5, 0.5, 0.6, 0.8, 2.5), {"keep_rounds": 2}, id="all are, where no deadline is learned"),
        pytest.param((0.5, 0.5, 0.5, 1.2, 1.2), {}, id="a quorum lacks one of two late ones"),
        pytest.param((*[0.5] * 4, 3.0, 3.0), {"max_train_s": 90.0}, id="a quorum comes late"),
        pytest.param((0.5, 3.0), {"max_train_s": 90.0}, id="both of two"),
        pytest.param((1.7, 1.7, 6.0, 2.5, 1.0), {"max_train_s": 200.0, "gather_s": 30.0}, id="the longest wait ends"),
        pytest.param((0.5, 0.5, 3.0), {}, id="one of three is not waited for but where it leads"),
        pytest.param((0.5, 0.6, 0.7, 0.8), {}, id="all are in time"),
        pytest.param((0.5, 0.6, 0.7, 0.8), {"overlap": "streaming"}, id="all are in time and stream"),
        pytest.param((0.5, 0.5, 0.8), {"overlap": "streaming"}, id="two of three stream without the third"),
        pytest.param((0.5, 0.8), {"overlap": "streaming"}, id="both of two stream"),
        pytest.param((0.3, 0.3, 1.8), {"overlap": "streaming", "max_train_s": 90.0}, id="a late one leads a stream"),
        pytest.param((1.0, 3.0), {"overlap": "streaming", "steps": 40}, id="one of two is asked for what it has"),
        pytest.param((0.5, 0.5, 0.6, 0.8, 2.5), {"pace": "speed"}, id="a share by speed"),
        pytest.param((0.5, 0.5, 0.6, 0.8, 2.5), {"pace": "speed", "overlap": "streaming"}, id="a share that streams"),
        pytest.param((0.5, 0.5, 0.6, 0.8, 2.5), {"pace": "time", "max_train_s": 10.0}, id="as many as fit in a time"),
        pytest.param(
            (0.5, 0.5, 2.0), {"pace": "time", "max_train_s": 40.0, "overlap": "streaming"}, id="twice H in less time"
        ),
    ],
)
def test_rounds_take_as_long_as_planned(step_s: tuple[float, ...], round: dict[str, Any], seed: int) -> None:
    """Within a tenth, on average after deadlines were learned."""
    run = spec(**({"gather_s": 60.0, "min_round_s": 0} | round))
    machines = tuple(
        Machine(name=f"p{at}", step_s=each, upload_mbps=50.0, download_mbps=250.0) for at, each in enumerate(step_s)
    )
    declared = PeerSpecs(machines=machines, delays={}, otherwise_s=0.01, cores=0)
    planned_s = predict(shape_of(run), run, declared.swarm(), shipped()).round_s
    group = Group(ScenarioOptions(spec=run, shape=shape_of(run), declared=declared, rounds=ROUNDS, seed=seed).setting())
    group.run()
    taken_s = fmean(later - earlier for earlier, later in pairwise(group.tally.times()[KNOWN_AFTER:]))
    assert planned_s == pytest.approx(taken_s, rel=0.1)
