"""Which home gets which layers, held against all ways there are."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations

import pytest

from dht.errors import BadInput
from peer.parallel.pipeline.span_choice import VALUE_BYTES, choose_spans, has_room, require_blocks
from peer.planning.placement.block_shares import HELD_BYTES, RECOMPUTED, BlockLayout
from peer.schema.ipc import Assignment, HomeOffer
from peer.training.model.flat_parameters import Layer

BLOCK, EMBEDDING, HEAD, WIDTH = 1000, 5000, 3000, 64


def layers_of(blocks: int) -> list[Layer]:
    names = [("embed", EMBEDDING), *((f"h.{at}", BLOCK) for at in range(blocks)), ("norm", 10), ("head", HEAD)]
    return [Layer(name=name, start=0, size=size) for name, size in names]


def layout(layers: Sequence[Layer]) -> BlockLayout:
    blocks = tuple(number for number, layer in enumerate(layers) if layer.is_block)
    return BlockLayout(sizes=tuple(layer.size for layer in layers), blocks=blocks, width=WIDTH)


def offer(name: str, speed: float = 100.0, memory_gb: float = 0.0, upload_mbps: float = 0.0) -> HomeOffer:
    return HomeOffer(name, name, memory_gb, speed, upload_mbps)


def room(parameters: int) -> float:
    return HELD_BYTES * parameters / 1e9


def spans(assignment: Assignment) -> list[tuple[str, int, int]]:
    return [(holder.peer, holder.first, holder.last) for holder in assignment.stages]


def bottleneck_s(layers: Sequence[Layer], dealt: Sequence[tuple[HomeOffer, int, int]]) -> float:
    """As in the docstring, computed from what each home holds."""
    whole = sum(layer.size for layer in layers[1:])
    slowest = 0.0
    for place, (home, first, last) in enumerate(dealt):
        held = layers[first : last + 1]
        if not has_room(home, layout(layers), range(first, last + 1)):
            return float("inf")
        share = sum(layer.size for layer in held if layer.name != "embed") / whole
        sent_mbit = (1 if place in (0, len(dealt) - 1) else 2) * WIDTH * VALUE_BYTES["int8"] * 8 / 1e6
        passing = sent_mbit / home.upload_mbps if home.upload_mbps else 0.0
        slowest = max(slowest, RECOMPUTED * share / home.tokens_per_s, passing)
    return slowest


def all_ways(layers: Sequence[Layer], homes: Sequence[HomeOffer], stages: int) -> Iterator[float]:
    blocks = [number for number, layer in enumerate(layers) if layer.is_block]
    for others in permutations(homes[1:], stages - 1):
        for inner in combinations(blocks[1:], stages - 1):
            ends = [cut - 1 for cut in (*inner, len(layers))]
            yield bottleneck_s(layers, list(zip((homes[0], *others), (0, *inner), ends, strict=True)))


def drawn(seed: int, count: int) -> list[HomeOffer]:
    """Each with a speed, a room and a line; some do not say."""
    chance = random.Random(seed)
    return [
        offer(
            f"h{at}", chance.uniform(10, 400), chance.choice([0.0, room(chance.randint(3000, 12000))]),
            chance.choice([0.0, chance.uniform(0.005, 0.1)]),
        )
        for at in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_no_other_way_is_faster(seed: int) -> None:
    """Any homes, any order, any cut; one home more than stages."""
    layers, homes = layers_of(6), drawn(seed, 4)
    by_name = {home.peer: home for home in homes}
    least = min(all_ways(layers, homes, 3))
    if least == float("inf"):
        with pytest.raises(BadInput, match="no room"):
            choose_spans(layout(layers), homes, 3, 1, "int8")
        return
    found = choose_spans(layout(layers), homes, 3, 1, "int8")
    dealt = [(by_name[peer], first, last) for peer, first, last in spans(found)]
    assert found.stages[0].layers.start == 0
    assert found.lead == "h0"
    assert all(one[2] + 1 == other[1] for one, other in pairwise(dealt))
    assert dealt[-1][2] == len(layers) - 1
    assert bottleneck_s(layers, dealt) == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_among_many_homes_neither(seed: int) -> None:
    """Eight for five stages, which is 840 orders."""
    layers, homes = layers_of(6), [offer("lead", 200.0, room(8000)), *drawn(seed, 8)[1:]]
    by_name = {home.peer: home for home in homes}
    found = choose_spans(layout(layers), homes, 5, 1, "int8")
    dealt = [(by_name[peer], first, last) for peer, first, last in spans(found)]
    assert bottleneck_s(layers, dealt) == pytest.approx(min(all_ways(layers, homes, 5)), rel=1e-9)


def test_layers_are_dealt_by_speed() -> None:
    """The lead is three times as fast; head and norm are as much work as three blocks."""
    found = choose_spans(layout(layers_of(9)), [offer("lead", 300.0), offer("b", 100.0)], 2, 1, "int8")
    assert spans(found) == [("lead", 0, 8), ("b", 9, 11)]


def test_a_home_of_unknown_speed_counts_as_the_others_do() -> None:
    known = choose_spans(layout(layers_of(9)), [offer("lead"), offer("b")], 2, 1, "int8")
    assert spans(choose_spans(layout(layers_of(9)), [offer("lead", 0.0), offer("b")], 2, 1, "int8")) == spans(known)
    assert spans(choose_spans(layout(layers_of(9)), [offer("lead", 0), offer("b", 0)], 2, 1, "int8")) == spans(known)


def test_memory_bounds_what_a_fast_home_gets() -> None:
    small = offer("b", 1000.0, room(2 * BLOCK + HEAD + 10))
    found = choose_spans(layout(layers_of(9)), [offer("lead", 10.0), small], 2, 1, "int8")
    assert spans(found) == [("lead", 0, 7), ("b", 8, 11)]


def test_the_slowest_line_is_at_the_end_where_it_carries_half() -> None:
    homes = [offer("lead"), offer("slow", upload_mbps=0.01), offer("b", upload_mbps=1.0), offer("c", upload_mbps=1.0)]
    assert choose_spans(layout(layers_of(8)), homes, 4, 1, "int8").stages[-1].peer == "slow"


def test_the_least_useful_home_is_left_over() -> None:
    homes = [offer("lead"), offer("slow", 5.0), offer("b"), offer("c")]
    found = choose_spans(layout(layers_of(8)), homes, 3, 1, "int8")
    assert {holder.peer for holder in found.stages} == {"lead", "b", "c"}


def test_more_stages_than_blocks_are_refused() -> None:
    with pytest.raises(BadInput, match="2 blocks cannot be trained by 3 homes"):
        require_blocks(layout(layers_of(2)), 3)


def test_homes_that_found_an_order_hold_stages_in_it_if_all_are_here_and_fit() -> None:
    """Round trips count in it, of which a lead knows nothing. Else stages are dealt as always."""
    layers = layers_of(6)
    homes = [offer("lead"), offer("a", 400.0), offer("b", 100.0), offer("c", 200.0)]
    found = choose_spans(layout(layers), homes, 3, 1, "int8", ("lead", "b", "a"))
    assert [name for name, _, _ in spans(found)] == ["lead", "b", "a"]
    assert next(first for _, first, _ in spans(found)) == 0
    assert spans(found)[-1][2] == len(layers) - 1
    free = choose_spans(layout(layers), homes, 3, 1, "int8")
    assert choose_spans(layout(layers), homes, 3, 1, "int8", ("lead", "b", "gone")) == free
    small = [offer("lead"), offer("a", 400.0), offer("b", memory_gb=1e-9), offer("c", 200.0)]
    assert "b" not in [
        name for name, _, _ in spans(choose_spans(layout(layers), small, 3, 1, "int8", ("lead", "b", "a")))
    ]
