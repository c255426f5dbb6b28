"""The papers' formulas, and how far from their printed tables ours come out."""

from __future__ import annotations

import dataclasses

import pytest

from peer.plan.model_shape import memory_of, shape_of
from peer.plan.papers import SCALING_LAWS, STREAMING_DILOCO, TABLES, UTILISATIONS, lines, mean_deviation
from peer.plan.pipelined_replica import balanced, cut_bytes, data_parallel_s, pipeline_step_s
from peer.plan.sharded_replica import hierarchical, inner_sizes, zero3
from peer.plan.wallclock import Exchange, Run, on_grid
from tests.peer.plan.plans import spec

RUN = Run(
    parameters=1e9, tokens=20e9, batch_tokens=1e6, devices=16, flops=300e12, inner_bps=400e9, outer_bps=10e9,
    inner_latency_s=1e-4, outer_latency_s=1e-2,
)  # fmt: skip


def test_appendix_a_by_hand() -> None:
    """arXiv:2503.09799: 6 N D / (R Q), and 2 N (1 − 1/R) / W + ε in each of T steps."""
    assert RUN.compute_s == pytest.approx(6 * 1e9 * 20e9 / (16 * 300e12))
    every_step = 2 * 1e9 * 16 * (15 / 16) / 10e9 + 0.01
    assert RUN.data_parallel_s() == pytest.approx(20_000 * every_step)
    inner = 2 * 1e9 * 16 * (1 - 4 / 16) / 400e9 + 1e-4
    assert RUN.diloco_s(4, 100) == pytest.approx(20_000 * (inner + every_step / 100))


def test_one_replica_is_data_parallelism_and_a_little_more() -> None:
    assert RUN.diloco_s(1, 50) == pytest.approx(RUN.data_parallel_s() * 1.02)


def test_from_w0_over_w1_steps_on_the_outer_network_carries_less_than_half() -> None:
    """Without latencies, and with all of a replica's traffic inside (M ≪ R)."""
    run = dataclasses.replace(RUN, devices=1e6, inner_latency_s=0.0, outer_latency_s=0.0)
    steps = round(run.enough_steps())
    outer = run.data_parallel_s() / steps
    assert outer <= run.diloco_s(2, steps) / 2 * 1.0001


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.source)
def test_the_published_tables_come_out_within_two_points_of_their_grid(table: object) -> None:
    """Points are 21 % apart; the mean is within one."""
    assert table in (STREAMING_DILOCO, SCALING_LAWS)
    compared = table.compare()  # type: ignore[attr-defined]
    assert mean_deviation(compared) < 0.15
    published = [each for each in compared if each.utilisation < 0.99]
    assert max(abs(each.deviation) for each in published) < 0.35


def test_the_last_percent_of_data_parallelism_waits_for_the_last_layer() -> None:
    exchange = STREAMING_DILOCO.settings[0].exchange
    assert on_grid(exchange.needed_bps(0.99)) / 1e9 == pytest.approx(569, rel=0.01)


def test_more_utilisation_needs_a_faster_line() -> None:
    for table in TABLES:
        for row in table.settings:
            needed = [row.exchange.needed_bps(share) for share in UTILISATIONS]
            assert needed == sorted(needed)


def test_a_delay_hides_a_fragment_altogether() -> None:
    exchange = Exchange(bits=8e9, step_s=1.0, layers=8, inner_steps=10, fragments=4, delay=3)
    assert exchange.exposed_s(1e9) == 0.0
    assert exchange.utilisation(1e9) == 1.0
    assert dataclasses.replace(exchange, delay=0).exposed_s(1e9) > 0


def test_the_tables_fit_80_columns() -> None:
    text = lines()
    assert max(map(len, text)) <= 80
    assert any("mean deviation" in line for line in text)


# ---- sharding ----


def test_zero3_moves_three_models_and_zero_plus_plus_three_quarters_of_one() -> None:
    """arXiv:2306.10209 counts M = 2 bytes per parameter; of many devices almost all of it goes to others."""
    run = spec()
    shape, memory = shape_of(run), memory_of(shape_of(run), run)
    whole, many = 2 * shape.parameters, 1024
    assert zero3(shape, memory, many).traffic_bytes == pytest.approx(3 * whole, rel=0.01)
    for quantised, models in ((False, 2.0), (True, 0.75)):
        sharded = hierarchical(
            shape, memory, many, 2, quantised_weights=quantised, quantised_gradients=quantised
        )  # fmt: skip
        assert sharded.traffic_bytes == pytest.approx(models * whole, rel=0.01)
        assert sharded.device_bytes == zero3(shape, memory, many).device_bytes + whole / 2


def test_shards_hold_less_and_wait_only_for_what_computing_does_not_hide() -> None:
    run = spec()
    shape, memory = shape_of(run), memory_of(shape_of(run), run)
    held = [zero3(shape, memory, many).device_bytes for many in (2, 4, 8)]
    assert held == sorted(held, reverse=True)
    sharded = zero3(shape, memory, 4)
    assert sharded.step_s(1.0, 1e12, 1e12) == 1.0
    assert sharded.step_s(1.0, 1e3, 1e3) == pytest.approx(1.1 * sharded.traffic_bytes / 1e3)
    assert list(inner_sizes(8)) == [2, 4]


# ---- pipelines ----


def test_amps_formula() -> None:
    """T = Σ e + Σ c + (B − 1) max e (arXiv:2210.07297)."""
    stages = balanced(shape_of(spec()), [1.0, 1.0])
    assert [stage.blocks for stage in stages] == [2, 2]
    assert pipeline_step_s(stages, [0.5], 8) == pytest.approx(4 + 0.5 + 7 * 2)
    assert pipeline_step_s(stages, [3.0], 8) == pytest.approx(4 + 3 + 7 * 3)


def test_a_slow_peer_gets_fewer_blocks() -> None:
    shape = shape_of(spec(config={"num_hidden_layers": 9}))
    assert [stage.blocks for stage in balanced(shape, [1.0, 2.0])] == [6, 3]
    with pytest.raises(ValueError, match="cannot be cut into 10"):
        balanced(shape, [1.0] * 10)


def test_dt_fms_data_parallel_cost() -> None:
    """Σ 2 (α + c/(M β)) over the others (arXiv:2206.01288, equation 1)."""
    assert data_parallel_s(30.0, [0.1, 0.2], [10.0, 5.0]) == pytest.approx(2 * (0.1 + 1.0) + 2 * (0.2 + 2.0))
    assert cut_bytes(shape_of(spec()), 8, 64) == 2 * 8 * 64 * 128
