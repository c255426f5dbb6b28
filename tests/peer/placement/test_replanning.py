"""Peers come and go: little moves, and only for a gain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dht.errors import BadInput
from peer.placement.layout_search import Effort
from peer.placement.pairwise_network import Network, preset
from peer.placement.place import Placement, place
from peer.placement.replanning import Replanned, replan
from peer.placement.stage_workload import PAPER, StageWorkload
from tests.peer.placement.networks import KINDS, random_network

SMALL = Effort(population=12, brood=8, patience=4, evaluations=5_000)
WORK = StageWorkload(stages=3, stage_bytes=5e7, cut_bytes=2e7)


def stages_of(found: Placement) -> dict[str, int]:
    depth = len(found.pipelines[0])
    return {name: rank % depth for name, rank in found.ranks().items()}


def movers(before: Placement, after: Replanned) -> set[str]:
    """Who holds a stage that it did not hold."""
    held = stages_of(before)
    return {name for name, stage in stages_of(after.placement).items() if held.get(name) != stage}


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=20)
@given(
    kind=st.sampled_from(KINDS), seed=st.integers(0, 99), going=st.integers(0, 4), coming=st.integers(0, 4),
    least_gain=st.sampled_from([0.0, 0.1, 1.0]),
)  # fmt: skip
def test_whoever_comes_and_goes(kind: str, seed: int, going: int, coming: int, least_gain: float) -> None:
    """The new layout holds who is there; those who moved are named; it never costs more than keeping."""
    everybody = random_network(12 + coming, seed, kind=kind)
    rng = np.random.default_rng(seed)
    before = place(everybody.only(list(range(12))), WORK, effort=SMALL, seed=seed)
    staying = [*sorted(rng.choice(12, 12 - going, replace=False).tolist()), *range(12, 12 + coming)]
    now = everybody.only(staying)
    after = replan(before, now, WORK, least_gain=least_gain, effort=SMALL, seed=seed)
    assert set(after.moved) == movers(before, after)
    assert len(after.placement.pipelines) == len(now) // 3
    kept = replan(before, now, WORK, least_gain=1.0, effort=SMALL, seed=seed)
    assert after.placement.cost_s <= kept.placement.cost_s * (1 + 1e-9)
    assert len(kept.moved) == holes(before, now)


def holes(before: Placement, now: Network) -> int:
    """Places that nobody who is there can fill without loading another stage."""
    held = [stage for name, stage in stages_of(before).items() if name in now.names]
    pipelines = len(now) // 3
    return sum(max(0, pipelines - held.count(stage)) for stage in range(3))


@pytest.mark.parametrize("kind", KINDS)
def test_where_nobody_comes_or_goes_nobody_moves(kind: str) -> None:
    network = random_network(12, 5, kind=kind)
    before = place(network, WORK, effort=SMALL)
    after = replan(before, network, WORK, effort=SMALL)
    assert after.moved == ()
    assert after.placement.pipelines == before.pipelines
    assert after.text.startswith("kept, with 0 of 12 peers loading another stage: the best layout found takes")


def test_a_spare_takes_the_place_of_who_leaves() -> None:
    network = random_network(13, 1)
    before = place(network, WORK, effort=SMALL)
    (spare,) = before.spares
    gone = before.pipelines[2][1]
    after = replan(
        before, network.only([peer for peer in range(13) if peer != gone]), WORK, least_gain=1.0, effort=SMALL
    )
    assert after.moved == (network.names[spare],)
    assert stages_of(after.placement)[network.names[spare]] == 1


def test_a_better_layout_is_taken_only_above_the_threshold() -> None:
    """A random layout of the world-wide case can be improved by a third: enough for a tenth, not for a half."""
    network = preset("case5_worldwide").network()
    poor = place(network, PAPER, effort=Effort(population=2, patience=1, gain=None, climb=False, seeded=False))
    effort = Effort(evaluations=4_000)
    better = replan(poor, network, PAPER, least_gain=0.1, effort=effort)
    assert better.placement.cost_s < poor.cost_s * 0.7
    assert better.text.endswith(f"with {len(better.moved)} of 64 peers loading another stage")
    same = replan(poor, network, PAPER, least_gain=0.6, effort=effort)
    assert same.placement.cost_s == pytest.approx(poor.cost_s)
    assert same.moved == ()
    assert same.text.endswith("less, not 60 %")


def test_those_who_may_stay_where_they_are_do() -> None:
    """Of a striped layout two devices have changed places. Two devices are enough to mend that."""
    network = preset("case5_worldwide").network()
    striped = place(network, PAPER, effort=Effort(evaluations=100))
    assert striped.cost_s == pytest.approx(49.218, rel=0.01)
    ruined = [list(pipeline) for pipeline in striped.pipelines]
    ruined[0][0], ruined[1][1] = ruined[1][1], ruined[0][0]
    present = Placement(
        names=network.names, pipelines=tuple(tuple(pipeline) for pipeline in ruined), spares=(), cost_s=0.0,
        data_parallel_s=0.0, pipeline_s=0.0, bounds=(),
    )  # fmt: skip
    after = replan(present, network, PAPER, least_gain=0.05, effort=Effort(evaluations=100))
    assert after.placement.cost_s == pytest.approx(striped.cost_s)
    assert len(after.moved) == 2


def test_another_number_of_stages_is_another_layout() -> None:
    network = random_network(12, 2)
    before = place(network, WORK, effort=SMALL)
    after = replan(before, network, StageWorkload(stages=4, stage_bytes=5e7, cut_bytes=2e7), effort=SMALL)
    assert len(after.placement.pipelines) == 3
    assert len(after.moved) == 12


def test_as_many_pipelines_as_were_asked_for() -> None:
    """Also when more could be made; fewer only while there are no devices for them."""
    network = random_network(12, 2)
    present = place(network.only(list(range(9))), WORK, pipelines=2, effort=SMALL)
    for devices, pipelines in ((12, 2), (5, 1), (7, 2)):
        after = replan(present, network.only(list(range(devices))), WORK, effort=SMALL)
        assert len(after.placement.pipelines) == pipelines
        present = after.placement
    assert len(replan(present, network, WORK, pipelines=3, effort=SMALL).placement.pipelines) == 3
    with pytest.raises(BadInput, match="5 pipelines of 3 stages; 12 devices suffice for 1 to 4"):
        replan(present, network, WORK, pipelines=5, effort=SMALL)


def test_names_must_tell_peers_apart() -> None:
    network = random_network(6, 0)
    before = place(network, WORK, effort=SMALL)
    twice = Network(names=("ada",) * 6, delay_s=network.delay_s, bandwidth_bps=network.bandwidth_bps)
    with pytest.raises(BadInput, match="two peers are called 'ada'"):
        replan(before, twice, WORK)
