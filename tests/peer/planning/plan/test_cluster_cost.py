"""Clusters that are advised: their lead can deal them, they have room, and what is said of their speed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dht.errors import BadInput
from peer.parallel.pipeline.span_choice import choose_spans
from peer.planning.placement.block_shares import HELD_BYTES, StageHome, deal_blocks
from peer.planning.plan.cluster_cost import (
    COPIED_BYTES,
    ONE_WAY_S,
    cluster_of,
    fewest_stages,
    flights_s,
    layout_of,
    no_cluster,
    room_of_stage,
    smallest_cluster,
)
from peer.planning.plan.home_cost import ways_without_room
from peer.planning.plan.model_shape import memory_of, peak_of, shape_of
from peer.schema.ipc import HomeOffer
from peer.schema.settings import MOST_STAGES, PeerSettings
from peer.schema.spec import RunSpec, load
from tests.pipeline_step import PlayedStep

SIZES = {
    "1 B": (2048, 5632, 22, 32, 4, 32000), "3 B": (3072, 8192, 28, 24, 8, 128256),
    "8 B": (4096, 14336, 32, 32, 8, 128256), "14 B": (5120, 17408, 40, 40, 8, 151936),
    "70 B": (4096, 14336, 80, 32, 8, 128256),
}  # fmt: skip
"""Width, inner width, blocks, heads, heads of keys, vocabulary: Llamas and a Qwen. No spec may be as large as the
last one, of which only the size is planned."""
LARGEST = 70 * 10**9
KEYS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size"
)  # fmt: skip
SITUATIONS = [(size, room_gb) for size in SIZES for room_gb in (2, 6, 8, 16, 24)]
LINE_BPS = 100e6
UNTIED = {"tie_word_embeddings": False}


def run_of(size: str) -> RunSpec:
    run = load("llama-1b")
    config = {**run.model.config, **dict(zip(KEYS, SIZES[size], strict=True))}
    return replace(run, model=replace(run.model, config=config))


def offers(homes: int, room_gb: float) -> list[HomeOffer]:
    return [HomeOffer(f"home-{at}", "", room_gb, 500.0, LINE_BPS / 1e6) for at in range(homes)]


@pytest.mark.parametrize(("size", "room_gb"), SITUATIONS)
def test_what_is_advised_forms(size: str, room_gb: int) -> None:
    """Models of 1 to 70 B on homes of 2 to 24 GB: as many homes as are advised are dealt every block, each has room for
    what it holds, and one home fewer would not do."""
    run = run_of(size)
    shape = shape_of(run, LARGEST if size == "70 B" else 0)
    most = min(MOST_STAGES, shape.blocks)
    advised = smallest_cluster(shape, run, room_gb * 1e9, LINE_BPS)
    if advised is None:
        assert room_of_stage(shape, run, most) > room_gb * 1e9
        with pytest.raises(BadInput, match="have no room"):
            choose_spans(layout_of(shape, run), offers(most, room_gb), most, 1, "int8")
        return
    stages = choose_spans(layout_of(shape, run), offers(advised.homes, room_gb), advised.homes, 1, "int8").stages
    assert advised.homes == PeerSettings(stages=advised.homes).stages, "and its lead may set it"
    held = [at for stage in stages for at in range(stage.first, stage.last + 1)]
    assert held == list(range(len(shape.layers)))
    for stage in stages:
        assert layout_of(shape, run).needed_bytes(range(stage.first, stage.last + 1)) <= room_gb * 1e9
    if advised.homes > 2:
        with pytest.raises(BadInput, match="have no room"):
            choose_spans(layout_of(shape, run), offers(advised.homes - 1, room_gb), advised.homes - 1, 1, "int8")


def test_an_8_b_model_on_cards_of_24_gb_takes_eight_homes() -> None:
    """Its parameters would fit on seven, but its blocks are whole."""
    run = run_of("8 B")
    shape = shape_of(run)
    assert HELD_BYTES * shape.parameters <= 7 * 24e9
    assert {way.setting for way in ways_without_room(shape, run, 24e9, 0.0)} == {"stages=auto"}
    assert fewest_stages(shape, run, [24e9] * 7) is None
    assert fewest_stages(shape, run, [24e9] * 9) == 8


def test_a_stage_of_all_is_the_whole_model_with_one_sequence() -> None:
    run = replace(run_of("1 B"), inner=replace(run_of("1 B").inner, sequences=4))
    one = replace(run, inner=replace(run.inner, sequences=1))
    assert room_of_stage(shape_of(run), run, 1) == memory_of(shape_of(run), one).device_bytes


def test_a_cluster_is_as_fast_as_its_slowest_stage_or_its_line() -> None:
    """Of two homes each sends one way, hidden values or gradients; of more, those in the middle both. Compute follows
    the largest stage, which has at least its share of the blocks."""
    run = run_of("1 B")
    shape = shape_of(run)
    two, three = (room_of_stage(shape, run, stages) for stages in (2, 3))
    line = 20e6 / 8 / (shape.width * (1 + 4 / 64))
    slow = smallest_cluster(shape, run, two, 20e6)
    assert slow is not None
    assert (slow.homes, slow.tokens_per_s) == (2, pytest.approx(line, rel=0.05))
    middle = smallest_cluster(shape, run, three, 20e6)
    assert middle is not None
    assert (middle.homes, middle.tokens_per_s) == (3, pytest.approx(line / 2, rel=0.05))
    fast, faster = (smallest_cluster(shape, run, room, 1e12) for room in (two, three))
    assert fast is not None
    assert faster is not None
    alone = 20e12 / shape.flops_per_token(run.model.context)
    assert 0.9 * 2 < fast.tokens_per_s / (alone * 3 / 4) <= 2 * 7 / 6, "the last of two computes its forward pass once"
    assert 0.8 * 3 < faster.tokens_per_s / (alone * 3 / 4) <= 3
    assert smallest_cluster(shape, run, two / (2 * shape.blocks), 1e12) is None


@pytest.mark.parametrize("upload_mbps", [0, 20, 100, 1000])
@pytest.mark.parametrize("homes", [2, 3, 4, 8])
@pytest.mark.parametrize("size", ["1 B", "3 B", "8 B", "14 B"])
def test_the_tokens_per_second_that_are_said_are_reached_in_virtual_time(
    size: str, homes: int, upload_mbps: int
) -> None:
    """To 15 %: flights fill the stages and drain in each step, and lines carry them meanwhile."""
    run = run_of(size)
    shape = shape_of(run)
    layout, speed = layout_of(shape, run), 20e12 / shape.flops_per_token(run.model.context)
    alike = [StageHome(tokens_per_s=speed, upload_bps=upload_mbps * 1e6)] * homes
    dealt, said = deal_blocks(layout, alike, homes), cluster_of(shape, run, alike)
    assert dealt is not None
    assert said is not None
    whole = run.inner.sequences * run.inner.accumulation
    sequences = min(run.inner.sequences, -(-whole // (3 * homes)))
    tokens = sequences * run.model.context
    flight_bytes = tokens * shape.width * (1 + 4 / 64)
    ends = (*dealt.starts[1:], len(shape.layers))
    shares = [sum(layout.work[at:end]) / sum(layout.work) for at, end in zip(dealt.starts, ends, strict=True)]
    played = PlayedStep(
        [tokens * share / speed / 3 for share in shares],
        [8 * flight_bytes / (upload_mbps * 1e6 or math.inf)] * homes, one_way_s=ONE_WAY_S,
        flights=-(-whole // sequences), at_once=int(3 * homes + (homes - 1) * 1_250_000 // flight_bytes),
    )  # fmt: skip
    reached = whole * run.model.context / played.seconds()
    assert 0.85 <= reached / said.tokens_per_s <= 1.15


def test_of_unlike_homes_each_does_its_share_as_far_as_it_has_room() -> None:
    """Three times as fast is three times as many blocks; one with room for few leaves the rest to the others."""
    run = run_of("1 B")
    shape = shape_of(run)
    whole = HELD_BYTES * shape.parameters
    both = cluster_of(shape, run, [StageHome(tokens_per_s=300), StageHome(tokens_per_s=100)])
    tight = cluster_of(shape, run, [StageHome(tokens_per_s=300, room_bytes=whole / 4), StageHome(tokens_per_s=100)])
    assert both is not None
    assert tight is not None
    assert both.tokens_per_s == pytest.approx(400 * 3 / 4, rel=0.1)
    assert tight.tokens_per_s == pytest.approx(100 / 0.8, rel=0.1), "the last computes its forward pass once"
    assert cluster_of(shape, run, [StageHome(room_bytes=whole / 4), StageHome(room_bytes=whole / 2)]) is None


def test_why_a_run_is_for_no_cluster_is_said_before_any_advice() -> None:
    run, gpt2 = run_of("1 B"), load("gpt2-small")
    assert no_cluster(run) == ""
    assert "architecture gpt2 cannot be cut" in no_cluster(gpt2)
    assert not [way for way in ways_without_room(shape_of(gpt2), gpt2, 2e9, 1e12) if way.setting.startswith("stages=")]


@pytest.mark.parametrize("name", ["continue-1b", "adapter-8b", "smollm2-135m-code"])
def test_tied_and_started_models_and_adapters_are_advised_clusters_that_form(name: str) -> None:
    """Where each home has room for half of the model and no more: by its lead's dealing too."""
    run = load(name)
    shape = shape_of(run)
    room_bytes = room_of_stage(shape, run, 2)
    (advised,) = [way for way in ways_without_room(shape, run, room_bytes, 0.0) if way.setting.startswith("stages=")]
    assert advised.setting == "stages=auto"
    assert advised.words.startswith("a cluster of 2 such homes, which find each other,")
    held = choose_spans(layout_of(shape, run), offers(2, room_bytes / 1e9), 2, 1, "int8")
    assert [number for stage in held.stages for number in stage.layers] == list(range(len(shape.layers)))


def test_both_ends_of_a_tied_model_hold_its_matrix_and_send_it_once_a_step() -> None:
    """The last stage holds values and gradients, while moments exist once; it computes with the matrix as an untied one
    does. The frozen matrices of an adapter lie at both ends, too."""
    run = load("continue-1b")
    shape = shape_of(run)
    matrix, layout = shape.vocabulary * shape.width, layout_of(shape, run)
    other = replace(run, model=replace(run.model, config=run.model.config | UNTIED))
    untied, logits = layout_of(shape_of(other), other), peak_of(shape, run, 1, bfloat16=None).logits
    each = HELD_BYTES + 2  # a copy in 16 bit
    assert layout.held_bytes[0] == untied.held_bytes[0] == pytest.approx(each * matrix)
    assert layout.held_bytes[-1] - each * shape.width - logits == pytest.approx(COPIED_BYTES * matrix)
    assert layout.held_bytes[-1] < untied.held_bytes[-1]
    assert sum(layout.work) == sum(untied.work)
    line, homes = 20e6, [StageHome(tokens_per_s=1e9, upload_bps=20e6)] * 2
    found, tokens = cluster_of(shape, run, homes), run.inner.sequences * run.inner.accumulation * run.model.context
    assert found is not None
    dealt = deal_blocks(layout, homes, 2)
    assert dealt is not None
    exchange_s = tokens / found.tokens_per_s - flights_s(layout, run, dealt, homes)
    assert exchange_s == pytest.approx(matrix * (2 + 1 + 4 / 64) * 8 / line)


def test_a_stage_needs_what_training_its_layers_takes() -> None:
    """All stages together what one device needs with one sequence at a time, but for gaps and kept flights; twice as
    long a text takes twice as much for its blocks, and fewer layers fit."""
    for run in (run_of("8 B"), load("adapter-8b")):
        shape = shape_of(run)
        layout, whole = layout_of(shape, run), memory_of(shape, run, sequences=1)
        beside = sum(layout.beside_bytes)
        assert beside == pytest.approx(whole.activation_bytes - shape.unpacked_bytes + shape.frozen_bytes)
        assert layout.beside_bytes[-1] > layout.beside_bytes[1] > 0
        inside = peak_of(shape, run, 1, bfloat16=None).blocks / shape.blocks
        assert layout.each_stage_bytes == pytest.approx(inside + shape.unpacked_bytes)
        longer = replace(run, model=replace(run.model, context=2 * run.model.context))
        more = layout_of(shape_of(longer), longer).held_bytes[1] - layout.held_bytes[1]
        assert more >= inside
        assert room_of_stage(shape_of(longer), longer, 4) > room_of_stage(shape, run, 4) + 2 * inside
