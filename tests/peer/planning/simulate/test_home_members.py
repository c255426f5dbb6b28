"""Homes that do not hold the model form clusters in a simulated run, as in a real one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dht.errors import BadInput
from dht.streams.base import MOST_MBPS
from peer.planning.plan.cluster_cost import room_of_stage
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import Machine, PeerSpecs
from peer.planning.plan.round_cost import step_tokens
from peer.planning.simulate.group import simulate
from peer.planning.simulate.home_members import members_of
from peer.planning.simulate.scenario import Churn, ScenarioOptions, changes_of
from peer.schema.spec import RunSpec, load
from tests.peer.planning.simulate.scenarios import spec

SPEC = spec(steps=40)
SHAPE = shape_of(SPEC)
HALF_GB = 1.05 * room_of_stage(SHAPE, SPEC, 2) / 1e9
"""Room for one of two stages."""


def machine(name: str, step_s: float, memory_gb: float = 0.0) -> Machine:
    return Machine(name=name, step_s=step_s, memory_gb=memory_gb, upload_mbps=20.0, download_mbps=100.0)


def peers(*machines: Machine) -> PeerSpecs:
    return PeerSpecs(machines=machines)


def gpt2() -> RunSpec:
    config = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 512}
    found = load("micro")
    return replace(found, model=replace(found.model, architecture="gpt2", config=config))


def test_homes_without_room_are_clusters_beside_whole_peers() -> None:
    found = members_of(
        SPEC, SHAPE,
        peers(
            machine("whole", 1.0), machine("one", 0.5, HALF_GB), machine("other", 0.5, HALF_GB),
            machine("tiny", 0.5, HALF_GB / 1e6),
        ),
    )  # fmt: skip
    assert found.machines[0].name == "whole"
    assert [sorted(homes) for homes in found.clusters.values()] == [["one", "other"]]
    assert list(found.clusters) == [1]
    assert found.idle == ("tiny",)


def test_homes_with_the_fastest_lines_have_no_faster_one_together() -> None:
    fast = [replace(machine(name, 0.5, HALF_GB), upload_mbps=MOST_MBPS, download_mbps=0.0) for name in ("one", "other")]
    (cluster,) = members_of(SPEC, SHAPE, peers(*fast)).machines
    assert (cluster.upload_mbps, cluster.download_mbps) == (MOST_MBPS, 0.0)


def test_a_run_of_clusters_is_as_fast_as_they_are() -> None:
    """Four homes in two clusters, and a whole peer; rounds cost some percent."""
    declared = peers(machine("whole", 0.5), *(machine(f"home-{number}", 0.5, HALF_GB) for number in range(4)))
    alike = [each.step_s for each in members_of(SPEC, SHAPE, declared).machines]
    asked = ScenarioOptions(spec=SPEC, shape=SHAPE, declared=declared, rounds=4, seed=1)
    figures = simulate(asked)
    assert figures.peers == 3
    assert len(figures.clusters) == 2
    assert figures.idle == ()
    whole = sum(step_tokens(SPEC) / step_s for step_s in alike)
    slowest = len(alike) * step_tokens(SPEC) / max(alike)  # all make as many steps
    assert 0.85 * slowest <= figures.tokens_per_s <= whole


def test_a_cluster_is_away_while_one_of_its_homes_is() -> None:
    churn, hours = Churn(crashes=1.0, back_s=36.0), 200
    alone = changes_of(churn, 1, 1, 3600.0 * hours)
    of_four = changes_of(churn, 1, 1, 3600.0 * hours, {0: ("a", "b", "c", "d")})
    crashes = [sum(change.what == "crash" for change in changes) for changes in (alone, of_four)]
    assert crashes[0] == pytest.approx(hours, rel=0.25)  # three standard deviations and more
    assert crashes[1] == pytest.approx(4 * hours, rel=0.15)


def test_a_run_that_nobody_can_hold_is_refused_with_the_reason() -> None:
    with pytest.raises(BadInput, match="no 2 of them hold it together"):
        members_of(SPEC, SHAPE, peers(*(machine(name, 1.0, HALF_GB / 1e6) for name in ("a", "b"))))
    uncut = gpt2()
    with pytest.raises(BadInput, match="cannot be cut into stages"):
        members_of(uncut, shape_of(uncut), peers(*(machine(name, 1.0, 1e-6) for name in ("a", "b"))))
