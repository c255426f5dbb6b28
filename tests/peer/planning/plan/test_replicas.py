"""Replicas that span peers: who makes a pipeline with whom, how a model is cut over them, and what each must hold."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.planning.plan.coefficients import shipped
from peer.planning.plan.model_shape import memory_of, shape_of
from peer.planning.plan.peer_set import Machine, PeerSet, swarm_of
from peer.planning.plan.planning_problem import GB, PlanningProblem
from peer.planning.plan.replicas import balanced, dealt, stage_device_bytes, stage_layers
from peer.planning.plan.strategy import Strategy
from peer.schema.spec import RunSpec
from tests.peer.planning.plan.plans import peers, spec

CUT = Strategy(steps=10, sequences=1, accumulation=8, stages=2)
TIED = {"tie_word_embeddings": True}


def question(swarm: PeerSet, run: RunSpec | None = None) -> PlanningProblem:
    run = run or spec()
    return PlanningProblem(spec=run, shape=shape_of(run), swarm=swarm, given=shipped())


def two_regions(names: str) -> PeerSet:
    """Peers called after their regions, a1 and b1 far apart."""
    machines = [Machine(name=name, step_s=1.0, region=name[0]) for name in names.split()]
    return swarm_of(machines, delays={frozenset("ab"): 0.2})


# ---- who with whom ----


@pytest.mark.parametrize("names", itertools.permutations(["a1", "a2", "b1", "b2"]))
def test_near_peers_make_a_pipeline_whatever_the_order_in_which_they_are_said(names: tuple[str, ...]) -> None:
    """Two that follow each other in the list would often be two that are far apart."""
    asked = question(two_regions(" ".join(names)))
    found = {frozenset(asked.swarm.machines[peer].region for peer in each) for each in asked.pipelines(2)}
    assert found == {frozenset("a"), frozenset("b")}


def test_a_pipeline_of_near_peers_is_as_fast_as_its_own_lines() -> None:
    asked = question(two_regions("a1 b1 a2 b2"))
    near = question(two_regions("a1 a2 a3 a4"))
    made, best = (each.replicas(CUT).swarm.machines for each in (asked, near))
    assert [machine.step_s for machine in made] == pytest.approx([machine.step_s for machine in best])


# ---- memory ----


four_rooms = st.lists(st.integers(1, 8), min_size=4, max_size=4)


@settings(deadline=None, max_examples=60)
@given(seconds=st.lists(st.floats(0.1, 10), min_size=1, max_size=4), room=four_rooms, blocks=st.integers(1, 8))
def test_the_slowest_stage_is_as_fast_as_memory_allows(seconds: list[float], room: list[int], blocks: int) -> None:
    """Against all cuts that there are."""
    shape, room = replace(shape_of(spec()), blocks=blocks), room[: len(seconds)]
    cuts = [cut for cut in itertools.product(*(range(1, most + 1) for most in room)) if sum(cut) == blocks]
    if not cuts:
        with pytest.raises(ValueError, match=r"cannot be cut|do not fit"):
            balanced(shape, seconds, room)
        return
    stages = balanced(shape, seconds, room)
    assert all(stage.blocks <= most for stage, most in zip(stages, room, strict=True))
    slowest_s = min(max(count * each for count, each in zip(cut, seconds, strict=True)) for cut in cuts)
    assert max(stage.micro_s for stage in stages) == pytest.approx(slowest_s)


def of_unlike_speed(fast_gb: float, slow_gb: float = 8.0) -> PlanningProblem:
    fast = Machine(name="fast", step_s=0.1, memory_gb=fast_gb)
    return question(swarm_of([fast, Machine(name="slow", step_s=1.0, memory_gb=slow_gb)]))


def blocks_of(asked: PlanningProblem) -> dict[str, int]:
    """By name, of the only pipeline of two."""
    (each,), (blocks,) = asked.pipelines(2), asked.replicas(CUT).blocks
    return {asked.swarm.machines[peer].name: count for peer, count in zip(each, blocks, strict=True)}


def test_a_fast_peer_gets_no_more_blocks_than_it_has_memory_for() -> None:
    """By speed alone it would hold three of the four."""
    roomy = of_unlike_speed(8.0)
    assert blocks_of(roomy) == {"fast": 3, "slow": 1}
    stage_of_fast = roomy.pipelines(2)[0].index(0)
    one, two = (
        1.001 * stage_device_bytes(roomy.shape, roomy.spec, CUT, stage_of_fast, count) / GB for count in (1, 2)
    )  # fmt: skip
    tight = of_unlike_speed(two)
    assert tight.fits(CUT)
    assert blocks_of(tight) == {"fast": 2, "slow": 2}
    assert not of_unlike_speed(one, one).fits(CUT)


def test_where_near_peers_have_no_room_together_small_ones_join_large_ones() -> None:
    """Both of one city are small: a pipeline of theirs holds nothing, and one of each city does."""
    size = stage_device_bytes(shape_of(spec()), spec(), CUT, 1, 1) / GB
    machines = [
        Machine(name=name, step_s=1.0, region=name[0], memory_gb=memory_gb)
        for name, memory_gb in (("a1", 1.01 * size), ("a2", 1.01 * size), ("b1", 8.0), ("b2", 8.0))
    ]
    asked = question(swarm_of(machines, delays={frozenset("ab"): 0.2}))
    assert asked.fits(CUT)
    made = asked.replicas(CUT)
    assert {frozenset(machines[peer].region for peer in each) for each in made.pipelines} == {frozenset("ab")}
    assert made.blocks == ((3, 1), (3, 1))


@pytest.mark.parametrize("stages", [1, 2, 3, 6])
def test_dealt_out_everybody_is_in_one_pipeline_and_the_largest_comes_first(stages: int) -> None:
    memory = [5.0, 1.0, 4.0, 2.0, 6.0, 3.0]
    pipelines = dealt(memory, stages)
    assert sorted(itertools.chain(*pipelines)) == list(range(6))
    for each in pipelines:
        held = [memory[peer] for peer in each]
        assert held == sorted(held, reverse=True)
    if stages == 2:
        assert {sum(memory[peer] for peer in each) for each in pipelines} == {7.0}


@settings(deadline=None, max_examples=30)
@given(memory=st.lists(st.sampled_from([0.0, 0.01, 0.02, 0.04, 8.0]), min_size=4, max_size=4), tied=st.booleans())
def test_nobody_holds_more_than_it_has(memory: list[float], tied: bool) -> None:
    run = spec(config=TIED if tied else {})
    machines = [Machine(name=f"p{at}", step_s=1.0 + at, memory_gb=each) for at, each in enumerate(memory)]
    asked = question(swarm_of(machines), run)
    for (sequences, accumulation), stages in itertools.product([(8, 1), (2, 4), (1, 8)], [2, 4]):
        chosen = Strategy(steps=1, sequences=sequences, accumulation=accumulation, stages=stages)
        if not asked.fits(chosen):
            continue
        made = asked.replicas(chosen)
        for each, blocks in zip(made.pipelines, made.blocks, strict=True):
            assert sum(blocks) == asked.shape.blocks
            for stage, (peer, count) in enumerate(zip(each, blocks, strict=True)):
                held = stage_device_bytes(asked.shape, run, chosen, stage, count)
                assert held <= asked.room_bytes[peer]


@pytest.mark.parametrize("config", [{}, TIED])
def test_the_stages_of_a_pipeline_hold_the_model_once(config: dict[str, Any]) -> None:
    """All layers, in order; only an embedding that is the output head, too, is held twice."""
    run = spec(config=config)
    shape, blocks = shape_of(run), (1, 2, 1)
    layers = [stage_layers(shape, stage, blocks) for stage in range(3)]
    assert tuple(itertools.chain(*layers)) == shape.layers
    chosen = Strategy(steps=10, sequences=8, accumulation=1, stages=3)
    held = [stage_device_bytes(shape, run, chosen, stage, count) for stage, count in enumerate(blocks)]
    memory = memory_of(shape, run)
    copied = memory.training / shape.parameters * shape.vocabulary * shape.width if config else 0.0
    assert sum(held) == pytest.approx(memory.device + copied)


def test_who_holds_the_first_stage_holds_more_micro_batches() -> None:
    """1F1B: as many are at work as stages follow, itself included; never more than there are."""
    shape, run = shape_of(spec()), spec()
    one, two, many = (
        stage_device_bytes(shape, run, replace(CUT, accumulation=count), 0, 2) for count in (1, 2, 8)
    )  # fmt: skip
    assert one < two == many


# ---- intervals ----


def width(swarm: PeerSet, chosen: Strategy) -> float:
    cost = question(swarm).predict(chosen)
    return cost.high_s / cost.round_s


def test_what_no_formula_was_measured_for_is_less_sure() -> None:
    """Steps of a pipeline, and of several devices, follow from formulas, however well a whole step was measured."""
    whole = Strategy(steps=10, sequences=1, accumulation=8)
    known = width(peers(4), whole)
    assert width(peers(4), CUT) > 1.2 * known
    assert width(peers(4, devices=2), whole) > 1.2 * known


@pytest.mark.parametrize("stages", [1, 2])
def test_lines_that_are_only_assumed_may_be_slow(stages: int) -> None:
    """The interval reaches to what the same round takes behind slow lines far apart; it is told apart what was said."""
    chosen = replace(CUT, stages=stages)
    assumed = swarm_of([Machine(name=f"p{at}", step_s=0.1) for at in range(4)])
    slow = [Machine(name=f"p{at}", step_s=0.1, upload_mbps=10, download_mbps=50) for at in range(4)]
    worst = question(swarm_of(slow, otherwise_s=0.1)).predict(chosen)
    cost = question(assumed).predict(chosen)
    assert cost.high_s == pytest.approx(worst.high_s)
    assert cost.high_s > 1.5 * cost.round_s
    assert cost.round_s < worst.round_s
    said = question(swarm_of(slow, otherwise_s=0.01)).predict(chosen)
    assert said.high_s / said.round_s < cost.high_s / cost.round_s
    shared = swarm_of(assumed.machines, cores=2)
    assert question(shared).worst is None, "one machine has no lines"
