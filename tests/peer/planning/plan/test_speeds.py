"""Placements of devices that compute at unlike speeds: what is reported is what is minimised, and who holds up whom."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.planning.placement.layout_search import Effort
from peer.planning.placement.pairwise_network import Network, preset
from peer.planning.placement.place import place
from peer.planning.placement.stage_workload import StageWorkload
from tests.night import at_night
from tests.peer.planning.placement import oracle
from tests.peer.planning.placement.networks import KINDS, random_network

SMALL = Effort(patience=20, evaluations=5_000)


def test_devices_alike_in_speed_make_a_pipeline() -> None:
    """Where links are equal, each pipeline is of one speed, so that the fast ones wait for nobody between averages."""
    speeds = [1.0, 3.0, 2.0, 2.0, 1.0, 3.0, 3.0, 1.0, 2.0]
    work = StageWorkload(stages=3, stage_bytes=1e6, cut_bytes=1e6, sync_steps=100, compute_s=1.0)
    found = place(random_network(9, 0, kind="equal"), work, speeds=speeds, effort=SMALL)
    assert [len({speeds[peer] for peer in pipeline}) for pipeline in found.pipelines] == [1, 1, 1]


UNLIKE = given(
    kind=st.sampled_from(KINDS), sizes=st.sampled_from([(4, 2), (5, 2), (6, 2), (6, 3), (7, 3), (5, 4), (5, 1)]),
    seed=st.integers(0, 99), sync_steps=st.sampled_from([1, 5]), micro_batches=st.sampled_from([1, 4]),
    compute_s=st.sampled_from([0.1, 1.0, 20.0]),
)  # fmt: skip
"""Devices and stages of instances of which all layouts can be told one by one, with devices of unlike speeds."""
EXAMPLES = [10, *at_night(40)]


def of_unlike(examples: int) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Calls what it decorates with so many instances that are `UNLIKE`."""
    return lambda holds: settings(derandomize=True, deadline=None, max_examples=examples)(UNLIKE(holds))


def unlike(
    kind: str, sizes: tuple[int, int], seed: int, sync_steps: int, micro_batches: int, compute_s: float
) -> tuple[Network, StageWorkload, list[float]]:
    """One of them, with the speeds of its devices."""
    devices, stages = sizes
    work = StageWorkload(
        stages=stages, stage_bytes=5e7, cut_bytes=2e7, sync_steps=sync_steps, micro_batches=micro_batches,
        compute_s=compute_s,
    )  # fmt: skip
    speeds = np.random.default_rng(seed).uniform(0.2, 2, devices).tolist()
    return random_network(devices, seed, kind=kind), work, speeds


@pytest.mark.slow
@pytest.mark.parametrize("examples", EXAMPLES)
def test_what_is_reported_is_the_least_that_any_layout_costs(examples: int) -> None:
    """With devices of unlike speeds, against every choice of spares, stages and pipelines."""

    @of_unlike(examples)
    def holds(**drawn: Any) -> None:
        network, work, speeds = unlike(**drawn)
        found = place(network, work, speeds=speeds)
        assert found.cost_s == pytest.approx(oracle.step_s(network, work, speeds, found.pipelines))
        assert found.cost_s == pytest.approx(found.data_parallel_s + found.pipeline_s + found.compute_s)
        assert found.cost_s == pytest.approx(oracle.least_step_s(network, work, speeds, len(found.pipelines)))

    holds()


@pytest.mark.slow
@pytest.mark.parametrize(("sync_steps", "micro_batches"), [(1, 4), (5, 1)])
def test_the_least_of_eight_devices_in_four_stages(sync_steps: int, micro_batches: int) -> None:
    for seed, kind in enumerate(("any", "regions")):
        network, work, speeds = unlike(kind, (8, 4), seed, sync_steps, micro_batches, 1.0)
        least_s = oracle.least_step_s(network, work, speeds, 2)
        assert place(network, work, speeds=speeds).cost_s == pytest.approx(least_s), kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sync_steps", [1, 9])
def test_no_swap_of_two_devices_makes_what_is_reported_less(kind: str, sync_steps: int) -> None:
    """Of more devices than can be told one by one, spares among them."""
    network, work, speeds = unlike(kind, (14, 4), 3, sync_steps, 3, 2.0)
    found = place(network, work, speeds=speeds, effort=replace(SMALL, shaken=0))
    assert found.cost_s == pytest.approx(oracle.step_s(network, work, speeds, found.pipelines))
    everybody = [*chain(*found.pipelines), *found.spares]
    for one, other in combinations(range(14), 2):
        swapped = everybody.copy()
        swapped[one], swapped[other] = swapped[other], swapped[one]
        pipelines = [tuple(swapped[at : at + 4]) for at in range(0, 12, 4)]
        assert oracle.step_s(network, work, speeds, pipelines) >= found.cost_s * (1 - 1e-8)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("stages", [16, 64])
def test_many_stages_take_less_than_a_minute(stages: int) -> None:
    """Of 64 devices of unlike speeds over ten places, with as much effort as is usual, on one core."""
    speeds = np.random.default_rng(0).uniform(0.3, 1, 64).tolist()
    work = StageWorkload(stages=stages, stage_bytes=5e7, cut_bytes=2e7, sync_steps=50, compute_s=1.0, micro_batches=4)
    began_s = time.process_time()
    found = place(preset("aws").network(64), work, speeds=speeds)
    assert time.process_time() - began_s < 60
    assert len(found.pipelines) == 64 // stages
    assert found.cost_s == pytest.approx(oracle.step_s(preset("aws").network(64), work, speeds, found.pipelines))


def test_a_pipeline_takes_time_to_fill() -> None:
    """With one micro-batch all stages wait for each other; with many the slowest one decides. It is said in words."""
    network = random_network(4, 0, kind="equal")
    for micro_batches, computing_s in ((1, 4.0), (4, 1.75), (1_000, 1.003)):
        work = StageWorkload(stages=4, stage_bytes=0, cut_bytes=0, compute_s=1.0, micro_batches=micro_batches)
        found = place(network, work)
        assert found.compute_s == pytest.approx(computing_s)
        text = f"{found.cost_s:.2f} s per step; averaging 0.00 s + pipeline 0.12 s + computing {computing_s:.2f} s"
        assert text in found.explained()
    assert "computing" not in place(network, replace(work, compute_s=0)).explained()


@pytest.mark.slow
@pytest.mark.parametrize("examples", EXAMPLES)
def test_as_many_pipelines_as_make_the_most_steps(examples: int) -> None:
    @of_unlike(examples)
    def holds(**drawn: Any) -> None:
        network, work, speeds = unlike(**drawn)
        found = place(network, work, speeds=speeds, fewer=True)
        most = len(network) // work.stages
        paces = [count / oracle.least_step_s(network, work, speeds, count) for count in range(1, most + 1)]
        assert found.pace == pytest.approx(max(paces))
        assert bool(found.note) == (len(found.pipelines) < most)

    holds()


def test_a_device_that_would_hold_up_all_is_spare() -> None:
    """In step; between averages it does no harm. Who asks for all pipelines gets them."""
    network, speeds = random_network(8, 0, kind="equal"), [1.0] * 7 + [0.01]
    work = StageWorkload(stages=2, stage_bytes=1e6, cut_bytes=1e6, compute_s=1.0)
    found = place(network, work, speeds=speeds, fewer=True)
    assert 7 in found.spares
    assert (len(found.pipelines), found.asked) == (3, 3)
    assert found.note.startswith("3 pipelines together: ")
    assert f"\n{found.note}\n" in found.explained()
    for more in ({"pipelines": 4, "fewer": True}, {}):
        asked: dict[str, Any] = more
        assert len(place(network, work, speeds=speeds, **asked).pipelines) == 4
    seldom = place(network, replace(work, sync_steps=100), speeds=speeds, fewer=True)
    assert (len(seldom.pipelines), seldom.note) == (4, "")
