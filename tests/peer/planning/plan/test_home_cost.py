"""What a home makes of a model: several devices that share it, or one that takes layers from main memory."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from peer.planning.plan.home_cost import (
    home_cost,
    offload_tokens_per_s,
    ways_to_try,
    ways_without_room,
)
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import Machine
from peer.planning.plan.sharding_cost import HOME_PROFILE, RanksProfile
from peer.planning.plan.sharding_strategy import Sharding, strategies_of
from peer.schema.spec import load
from tests.peer.planning.plan.plans import spec

RUN = spec(inner={"sequences": 2, "accumulation": 8})
SHAPE = shape_of(RUN)
FREE = RanksProfile(inside_bytes_per_s=math.inf, between_bytes_per_s=math.inf)


def machine(devices: int, **more: float) -> Machine:
    return Machine(name="home", devices=devices, **more)  # type: ignore[arg-type]


def test_devices_divide_the_step_that_one_would_make() -> None:
    """Every rank gets micro-batches as large as the spec's: a small one is not divided any further."""
    for devices in (2, 4, 8):
        assert home_cost(SHAPE, RUN, machine(devices), 16.0).compute_s == pytest.approx(16.0 / devices)
    assert home_cost(SHAPE, spec(inner={"sequences": 1, "accumulation": 1}), machine(2), 1.0).compute_s == 1.0


def test_slow_lines_and_little_memory_change_the_way() -> None:
    wide = home_cost(SHAPE, RUN, machine(4, fast_group=2), 1e-3)
    assert wide.strategy.kind in (Sharding.HYBRID, Sharding.REPLICATED)
    room_gb = max(wide.device_bytes) / 1e9 * 0.8
    narrow = home_cost(SHAPE, RUN, machine(4, fast_group=2, memory_gb=room_gb), 1e-3)
    assert max(narrow.device_bytes) <= room_gb * 1e9
    assert narrow.strategy != wide.strategy
    slow = home_cost(SHAPE, RUN, machine(4, fast_group=2, between_gbps=0.1), 1e-3)
    assert slow.strategy.kind is Sharding.HYBRID
    assert slow.step_s > wide.step_s


def test_what_fits_nowhere_is_the_way_that_needs_least() -> None:
    found = home_cost(SHAPE, RUN, machine(4, memory_gb=1e-6), 1.0)
    assert max(found.device_bytes) == min(
        max(home_cost(SHAPE, RUN, machine(4, memory_gb=room), 1.0).device_bytes) for room in (1e-6, 1e3)
    )


def test_a_dry_run_tries_what_may_fit_the_fastest_first() -> None:
    """And main memory last, where its owner allows it and it has room."""
    every = ways_to_try(SHAPE, RUN, [0.0] * 4, 0.0)
    assert {*every} == {*strategies_of(4)}
    assert every[0].kind is Sharding.REPLICATED
    needed = home_cost(SHAPE, RUN, machine(4, memory_gb=1e-6), 1.0).device_bytes
    tight = ways_to_try(SHAPE, RUN, needed, math.inf)
    assert 1 <= len(tight) < len(every)
    assert Sharding.REPLICATED not in {way.kind for way in tight}
    assert ways_to_try(SHAPE, RUN, [1.0] * 4, math.inf) == []
    with_aside = ways_to_try(SHAPE, RUN, needed, math.inf, offload=True)
    assert with_aside[: len(tight)] == tight
    assert {way.offloads for way in with_aside[len(tight) :]} == {True}
    assert ways_to_try(SHAPE, RUN, needed, 0.0, offload=True) == tight


def test_a_dry_run_tries_what_its_owner_and_the_optimizer_allow() -> None:
    assert [way.kind for way in ways_to_try(SHAPE, RUN, [0.0] * 4, 0.0, kind=Sharding.HYBRID)] == [Sharding.HYBRID]
    muon = spec(inner={"sequences": 2, "accumulation": 8, "optimizer": "muon"})
    assert [way.kind for way in ways_to_try(SHAPE, muon, [0.0] * 4, 0.0)] == [Sharding.REPLICATED]


def test_layers_from_main_memory_cost_the_bus_and_the_processor() -> None:
    """With a bus and a processor that take no time it is as fast as a device that holds it."""
    run = load("llama-1b")
    shape = shape_of(run)
    free = offload_tokens_per_s(shape, run, math.inf, given=FREE)
    real = offload_tokens_per_s(shape, run, math.inf)
    slow = offload_tokens_per_s(shape, run, math.inf, given=replace(HOME_PROFILE, bus_bytes_per_s=1e9))
    assert free is not None
    assert real is not None
    assert slow is not None
    assert free.share == pytest.approx(1.0)
    assert free.tokens_per_s == pytest.approx(20e12 / shape.flops_per_token(run.model.context))
    assert 1 > real.share > slow.share > 0
    assert real.tokens_per_s / free.tokens_per_s < 1
    assert real.main_bytes == 16 * shape.parameters


def test_the_micro_batch_is_what_the_device_has_room_for() -> None:
    run = spec(inner={"sequences": 8, "accumulation": 1})
    whole = offload_tokens_per_s(SHAPE, run, math.inf)
    assert whole is not None
    less = offload_tokens_per_s(SHAPE, run, 0.9 * whole.device_bytes)
    assert less is not None
    assert less.device_bytes <= 0.9 * whole.device_bytes
    assert less.tokens_per_s < whole.tokens_per_s
    assert offload_tokens_per_s(SHAPE, run, 1000.0) is None


def test_who_has_no_room_is_told_what_helps_the_fastest_first() -> None:
    """Layers in main memory where that has room for them, and a cluster; on a good line the cluster comes first."""
    run = load("llama-1b")
    shape = shape_of(run)
    slow, fast = (ways_without_room(shape, run, 14e9, 64e9, line) for line in (20e6, 1e9))
    assert [way.setting for way in slow] == ["offload=yes", "stages=2"]
    assert [way.setting for way in fast] == ["stages=2", "offload=yes"]
    assert fast[0].words == "a cluster of 2 such homes, on lines of 1000 Mbit/s"
    assert [way.setting for way in ways_without_room(shape, run, 14e9, 8e9)] == ["stages=auto"]
    assert ways_without_room(shape, run, 1e8, 8e9) == ()
