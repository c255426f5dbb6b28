"""What it costs that devices of a home share a model: the papers' bytes, limits that are known, and who gets what."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dht.errors import BadInput
from peer.planning.plan.model_shape import memory_of, shape_of
from peer.planning.plan.sharding_cost import (
    RanksProfile,
    ShardedWork,
    deal,
    fastest_that_fits,
    sharded_cost,
    sharded_work,
)
from peer.planning.plan.sharding_strategy import Sharding, ShardingStrategy, strategies_of
from tests.peer.planning.plan.plans import spec

FREE = RanksProfile(inside_bytes_per_s=math.inf, between_bytes_per_s=math.inf)
SLOW = replace(FREE, inside_bytes_per_s=1e9, between_bytes_per_s=1e8, group=2, overlap=1.0)
WHOLE = 4.0 * 1_100_000
"""Bytes of the model of `work`."""


def work(ranks: int = 4, *, micro_batches: int = 1, sequence_s: float = 0.01) -> ShardedWork:
    """Ten blocks of 100,000 parameters, and as many outside of them."""
    return ShardedWork(
        block_parameters=100_000, blocks=10, root_parameters=100_000, head_parameters=50_000,
        micro_batches=micro_batches, sequences=(2,) * ranks, sequence_s=(sequence_s,) * ranks, state_bytes=4 * WHOLE,
        copied_bytes=0.0, activation_bytes=1e6, logit_bytes=(2e5,) * ranks,
    )  # fmt: skip


def way(kind: Sharding, ranks: int = 4, *, offloads: bool = False) -> ShardingStrategy:
    group = 2 if kind in (Sharding.HIERARCHICAL, Sharding.HYBRID) else 0
    return ShardingStrategy(kind=kind, ranks=ranks, group=group, offloads=offloads)


# ---- time ----


@pytest.mark.parametrize("strategy", strategies_of(4), ids=str)
def test_where_moving_is_free_a_step_is_what_the_slowest_rank_computes(strategy: ShardingStrategy) -> None:
    unlike = replace(work(), sequences=(4, 2, 1, 1), sequence_s=(0.01, 0.02, 0.05, 0.01), micro_batches=3)
    assert sharded_cost(unlike, strategy, FREE).step_s == pytest.approx(3 * 0.05)


def test_each_way_sends_the_bytes_that_its_paper_says() -> None:
    """Of the ten blocks; what is outside of them is gathered once, not twice."""
    blocks, root, each = 10 / 11 * WHOLE, 1 / 11 * WHOLE, 3 / 4
    found = {kind: sharded_cost(work(), way(kind), replace(FREE, group=2)) for kind in Sharding}
    sent = {kind: (cost.between_bytes, cost.inside_bytes) for kind, cost in found.items()}
    assert sent[Sharding.REPLICATED] == pytest.approx((2 * each * WHOLE, 0))
    assert sent[Sharding.FULL] == pytest.approx((each * (3 * blocks + 2 * root), 0))
    assert sent[Sharding.HIERARCHICAL] == pytest.approx((each * 2 * WHOLE, blocks / 2))
    assert sent[Sharding.HYBRID] == pytest.approx((WHOLE / 2, (3 * blocks + 2 * root) / 2))


def test_ranks_of_one_fast_group_send_nothing_between_groups() -> None:
    for strategy in strategies_of(4):
        assert sharded_cost(work(), strategy, replace(FREE, group=4)).between_bytes == 0
        assert sharded_cost(work(), strategy, FREE).between_bytes == 0


@pytest.mark.parametrize("strategy", strategies_of(4, offloads=True), ids=str)
@pytest.mark.parametrize("faster", ["inside_bytes_per_s", "between_bytes_per_s", "bus_bytes_per_s"])
def test_no_step_is_longer_on_a_faster_line(strategy: ShardingStrategy, faster: str) -> None:
    given = replace(SLOW, bus_bytes_per_s=1e8)
    steps_s = [
        sharded_cost(work(), strategy, replace(given, **{faster: getattr(given, faster) * times})).step_s
        for times in (1, 2, 4, 1e9)
    ]
    assert steps_s == sorted(steps_s, reverse=True)


def test_between_slow_groups_fewer_bytes_are_faster() -> None:
    steps_s = {kind: sharded_cost(work(), way(kind), SLOW).step_s for kind in Sharding}
    assert steps_s[Sharding.HYBRID] < steps_s[Sharding.HIERARCHICAL] < steps_s[Sharding.FULL]


def test_blocks_are_moved_beside_computing_and_the_root_is_not() -> None:
    """A device that computes for long hides all blocks; a processor, which does both itself, none."""
    long = work(sequence_s=10.0)
    beside, itself = (sharded_cost(long, way(Sharding.FULL), replace(SLOW, overlap=each)) for each in (1.0, 0.0))
    assert beside.moved_s == pytest.approx(3 / 4 * 2 * 400_000 / 1e8)
    assert itself.moved_s == pytest.approx(3 / 4 * 32 * 400_000 / 1e8)


def test_each_collective_takes_its_time() -> None:
    """A block's two gathers and its reduction, the root's one and one, for each of two micro-batches; copies are added
    up once."""
    given = replace(FREE, collective_s=1.0)
    counts = {kind: sharded_cost(work(micro_batches=2), way(kind), given).moved_s for kind in Sharding}
    assert counts[Sharding.REPLICATED] == 11
    assert counts[Sharding.FULL] == counts[Sharding.HIERARCHICAL] == 2 * (10 * 3 + 2)
    assert counts[Sharding.HYBRID] == 2 * (10 * 3 + 2) + 11


def test_rings_of_more_ranks_take_more_hops() -> None:
    counts = {kind: sharded_cost(work(), way(kind), replace(FREE, hop_s=1.0)).moved_s for kind in Sharding}
    assert counts[Sharding.REPLICATED] == 11 * 6
    assert counts[Sharding.FULL] == 3 * (10 * 3 + 2)
    assert counts[Sharding.HIERARCHICAL] == 10 * (3 + 3 + 1) + 6
    assert counts[Sharding.HYBRID] == 10 * (3 + 2) + 2 + 2


def test_the_optimizer_steps_on_what_a_rank_holds() -> None:
    given = replace(FREE, optimizer_s=1e-6, host_optimizer_s=1e-5)
    assert sharded_cost(work(), way(Sharding.FULL), given).optimizer_s == pytest.approx(1.1 / 4)
    assert sharded_cost(work(), way(Sharding.REPLICATED), given).optimizer_s == pytest.approx(1.1)
    aside = sharded_cost(work(), way(Sharding.HYBRID, offloads=True), given)
    assert aside.optimizer_s == pytest.approx(11 / 2)
    assert sharded_cost(work(1), way(Sharding.REPLICATED, 1), given).optimizer_s == pytest.approx(1.1)


def test_a_device_that_holds_all_moves_nothing() -> None:
    cost = sharded_cost(work(1), way(Sharding.REPLICATED, 1), replace(SLOW, collective_s=1.0, bus_bytes_per_s=1.0))
    assert (cost.moved_s, cost.main_bytes) == (0, 0)


def test_from_main_memory_layers_cross_the_bus_twice_and_gradients_once() -> None:
    """A second copy for the backward pass is on the device."""
    given = replace(FREE, bus_bytes_per_s=1.0)
    blocks, root = 10 / 11 * WHOLE, 1 / 11 * WHOLE
    alone = sharded_cost(work(1), way(Sharding.REPLICATED, 1, offloads=True), given)
    assert alone.moved_s == pytest.approx(3 * blocks + 2 * root)
    assert sharded_cost(work(), way(Sharding.FULL, offloads=True), given).moved_s == pytest.approx(alone.moved_s / 4)
    second = sharded_cost(work(), way(Sharding.HIERARCHICAL, offloads=True), given)
    assert second.moved_s == pytest.approx(2 * WHOLE / 4)


# ---- memory ----


def test_shares_of_all_ranks_are_one_model_and_copies_are_more() -> None:
    """With nothing else on the devices; what is gathered is the same for all that share."""
    bare = replace(work(), activation_bytes=0.0, logit_bytes=(0.0,) * 4, root_parameters=0, head_parameters=0)
    bare = replace(bare, blocks=1000, block_parameters=1000, state_bytes=16e6)
    held = {kind: sharded_cost(bare, way(kind), FREE).device_bytes[0] for kind in Sharding}
    assert held[Sharding.FULL] == pytest.approx(16e6 / 4, rel=0.01)
    assert held[Sharding.HYBRID] == pytest.approx(16e6 / 2, rel=0.01)
    assert held[Sharding.REPLICATED] == pytest.approx(16e6, rel=0.01)
    assert held[Sharding.HIERARCHICAL] == pytest.approx(
        (12e6 + 8e6) / 4, rel=0.01
    )  # the copy is there before gradients
    assert all(sharded_cost(bare, way(kind), FREE).main_bytes == 0 for kind in Sharding)


def test_main_memory_takes_what_the_devices_held() -> None:
    for strategy in strategies_of(4, offloads=True):
        aside, held = (sharded_cost(work(), replace(strategy, offloads=offloads), FREE) for offloads in (True, False))
        assert aside.main_bytes == 4 * WHOLE / strategy.shares
        assert max(aside.device_bytes) < max(held.device_bytes)


def test_more_sequences_take_more_of_that_rank_alone() -> None:
    unlike = replace(work(), sequences=(2, 20, 2, 2), logit_bytes=(2e5, 2e6, 2e5, 2e5))
    few, many, *_ = sharded_cost(unlike, way(Sharding.FULL), FREE).device_bytes
    assert many - few == pytest.approx(18 * 1.1e6, rel=0.2)
    assert sharded_cost(unlike, way(Sharding.FULL), replace(FREE, activations=2.0)).device_bytes[1] > 1.7 * many


def test_one_device_holds_no_more_than_was_always_said() -> None:
    run = spec()
    shape = shape_of(run)
    one = sharded_work(shape, run, [run.inner.sequences], [0.1])
    assert one.parameters == shape.parameters
    (held,) = sharded_cost(one, way(Sharding.REPLICATED, 1), FREE).device_bytes
    assert held <= memory_of(shape, run).device_bytes


def test_where_nobody_says_the_precision_ranks_are_cards() -> None:
    """They train under bfloat16 autocast, whose copies of all matrices stay until the backward pass, even of blocks
    that are no longer gathered."""
    run = spec()
    exact = replace(run, inner=replace(run.inner, precision="float32"))
    narrow, wide = (sharded_work(shape_of(each), each, [2] * 4, [0.1] * 4) for each in (run, exact))
    assert (narrow.copied_bytes, wide.copied_bytes) == (2 * narrow.parameters, 0)
    assert narrow.activation_bytes < wide.activation_bytes
    free = replace(narrow, copied_bytes=0.0)
    for strategy in strategies_of(4, offloads=True):
        held, without = (sharded_cost(each, strategy, FREE).device_bytes[0] for each in (narrow, free))
        assert held <= without + 2 * narrow.parameters
        assert held > without or strategy.kind is Sharding.REPLICATED


# ---- choice ----


def test_the_fastest_that_fits_is_found_and_main_memory_is_the_last_resort() -> None:
    def chosen(device_bytes: float, main_bytes: float = 1e9) -> ShardingStrategy | None:
        found = fastest_that_fits(work(), SLOW, [device_bytes] * 4, main_bytes)
        return None if found is None else found.strategy

    assert chosen(1e9) == way(Sharding.HYBRID)  # moves less between groups than replicas do
    assert chosen(9e6) == way(Sharding.HIERARCHICAL)
    assert chosen(7.5e6) == way(Sharding.FULL)
    lean = chosen(6e6)
    assert lean is not None
    assert lean.offloads
    assert chosen(6e6, main_bytes=1e6) is None
    assert chosen(1e3) is None


# ---- who gets what ----


def test_sequences_are_dealt_by_speed() -> None:
    assert deal(8, [1.0, 1.0], [8, 8]) == (4, 4)
    assert deal(8, [3.0, 1.0], [8, 8]) == (6, 2)
    assert deal(3, [1.0, 1.0], [8, 8]) == (2, 1)
    assert deal(1, [1.0, 5.0], [8, 8]) == (0, 1)


def test_no_rank_gets_more_than_it_has_room_for() -> None:
    assert deal(8, [3.0, 1.0], [4, 8]) == (4, 4)
    with pytest.raises(BadInput, match="room for 7 sequences at a time, of 8"):
        deal(8, [3.0, 1.0], [4, 3])


@pytest.mark.parametrize("speeds", [(1.0, 1.0, 1.0), (2.0, 3.0, 5.0), (1.0, 10.0, 100.0), (0.3, 0.4, 7.7)])
@pytest.mark.parametrize("sequences", [1, 7, 32])
def test_what_is_dealt_ends_as_early_as_it_can(speeds: tuple[float, ...], sequences: int) -> None:
    """Beside every other way to deal it to three ranks."""
    most = (sequences, 5, 30)

    def last_s(counts: tuple[int, ...]) -> float:
        return max(count / speed for count, speed in zip(counts, speeds, strict=True))

    others = [
        (one, other, sequences - one - other)
        for one in range(sequences + 1) for other in range(min(5, sequences - one) + 1)
        if sequences - one - other <= 30
    ]  # fmt: skip
    assert last_s(deal(sequences, speeds, most)) == pytest.approx(min(map(last_s, others)))
