"""When blocks move between homes: by the seconds that flights take, and never to and fro."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from peer.parallel.cluster.cut_moves import (
    HomeSpeeds,
    Move,
    MoveWatch,
    best_move,
    measured_speeds,
    move_to,
    real_speeds,
)
from peer.parallel.cluster.home import STEPS_WEIGHED
from peer.parallel.pipeline.step_times import LEAST_STEPS, MedianTimes, StepTimes
from peer.planning.placement.block_shares import RECOMPUTED, BlockLayout
from peer.schema.ipc import Assignment, HomeOffer, StageHolder

LAYOUT = BlockLayout(sizes=(100,) * 14, blocks=tuple(range(1, 13)), width=64)
"""An embedding, twelve blocks, and a head that costs as much as a block."""
NOW = Assignment(7, (StageHolder("lead", 0, 4), StageHolder("a", 5, 8), StageHolder("b", 9, 13)), (), "int8")
TOKENS, FLIGHTS = 64, 9
LOOKS = 200


def offer(name: str, speed: float, memory_gb: float = 0.0, upload_mbps: float = 0.0) -> HomeOffer:
    return HomeOffer(name, name.title(), memory_gb, speed, upload_mbps)


def flight_s(now: Assignment, layer_s: Mapping[str, float]) -> dict[str, float]:
    """Where each layer costs a home so many seconds, except the embedding."""
    return {holder.peer: layer_s[holder.peer] * sum(map(bool, holder.layers)) for holder in now.stages}


def times(now: Assignment, layer_s: Mapping[str, float]) -> MedianTimes:
    seconds = flight_s(now, layer_s)
    step_s = sum(seconds.values()) + (FLIGHTS - 1) * max(seconds.values())
    return MedianTimes(step_s=step_s, flights=FLIGHTS, tokens=TOKENS, flight_s=seconds)


def weighed(now: Assignment, layer_s: Mapping[str, float], homes: Sequence[HomeOffer]) -> Move | None:
    seen = times(now, layer_s)
    return best_move(LAYOUT, now, seen, real_speeds(homes, measured_speeds(LAYOUT, now, seen)))


def test_a_home_that_is_four_times_slower_keeps_few_blocks() -> None:
    """The forecast is what the same homes then take."""
    homes = [offer("lead", 10.0), offer("a", 10.0), offer("b", 10.0)]
    layer_s = {"lead": 0.1, "a": 0.4, "b": 0.1}
    move = weighed(NOW, layer_s, homes)
    assert move is not None
    assert [len(holder.layers) for holder in move.to.stages] == [7, 1, 6]
    assert move.to.epoch == NOW.epoch
    assert move.step_s == pytest.approx(times(NOW, layer_s).step_s)
    assert move.forecast_s == pytest.approx(times(move.to, layer_s).step_s)
    assert move.gain > 0.5


def test_equal_homes_keep_their_cut() -> None:
    homes = [offer("lead", 10.0), offer("a", 30.0), offer("b", 1.0)]
    now = Assignment(7, (StageHolder("lead", 0, 4), StageHolder("a", 5, 8), StageHolder("b", 9, 13)), (), "int8")
    move = weighed(now, {"lead": 0.1, "a": 0.1, "b": 0.1}, homes)
    assert move is None or move.gain < 0.1


def test_what_a_home_has_no_room_for_does_not_move_to_it() -> None:
    """In 10^9 bytes: a layer needs 1,700."""
    homes = [offer("lead", 10.0, memory_gb=9e-6), offer("a", 10.0), offer("b", 10.0)]
    move = weighed(NOW, {"lead": 0.1, "a": 0.4, "b": 0.1}, homes)
    assert move is not None
    assert len(move.to.stages[0].layers) == 5
    assert len(move.to.stages[2].layers) > 5


def test_a_line_that_is_slowest_leaves_nothing_to_gain() -> None:
    """The middle home sends 2 · 68 bytes for each of 64 tokens, which takes 7 s."""
    homes = [offer("lead", 10.0), offer("a", 10.0, upload_mbps=0.01), offer("b", 10.0)]
    move = weighed(NOW, {"lead": 0.1, "a": 0.4, "b": 0.1}, homes)
    assert move is None or move.gain < 0.1


@pytest.mark.parametrize(("spare", "steps_in"), [(10.0, True), (3.0, False)])
def test_a_spare_takes_the_place_of_a_home_that_is_measured_to_be_slow(spare: float, steps_in: bool) -> None:
    """Its own speed is what it offers, as much less as that of the others is."""
    now = Assignment(7, NOW.stages, (StageHolder("c", 5, 8),), "int8")
    homes = [offer("lead", 10.0), offer("a", 20.0), offer("b", 10.0), offer("c", spare)]
    move = weighed(now, {"lead": 0.1, "a": 0.4, "b": 0.1}, homes)
    assert move is not None
    assert ("c" in [holder.peer for holder in move.to.stages]) == steps_in
    assert move.to.lead == "lead"


def test_nothing_moves_while_a_home_was_not_measured() -> None:
    homes = [offer("lead", 10.0), offer("a", 0.0), offer("b", 10.0)]
    seen = times(NOW, {"lead": 0.1, "a": 0.4, "b": 0.1})
    assert best_move(LAYOUT, NOW, seen, homes) is None


def test_a_pace_is_of_enough_steps() -> None:
    steps = [StepTimes(1.0 + number, 2, 8, {"lead": 0.5}) for number in range(LEAST_STEPS)]
    assert MedianTimes.of(steps[:-1]) is None
    assert MedianTimes.of(steps) == MedianTimes(step_s=1.5, flights=2, tokens=4, flight_s={"lead": 0.5})


def test_a_measured_speed_is_that_of_the_whole_model() -> None:
    seen = times(NOW, {"lead": 0.1, "a": 0.4, "b": 0.1})
    assert measured_speeds(LAYOUT, NOW, seen)["a"] == pytest.approx(RECOMPUTED * TOKENS / (13 * 0.4))


def moved(slow_s: float, noise: float, seen: int, seed: int) -> list[int]:
    """The looks, each after so many more steps, at which a cluster moves blocks, in virtual time, by their distance
    from the one at which a home's layers begin to take so long; each timing is off by a factor whose logarithm has this
    standard deviation."""
    drawn, now, watch, at = random.Random(seed), NOW, MoveWatch(), []
    layer_s = {"lead": 0.1, "a": 0.1, "b": 0.1}
    homes = [offer(name, 10.0) for name in layer_s]
    steps: list[StepTimes] = []

    def step() -> StepTimes:
        seconds = {peer: each_s * drawn.lognormvariate(0.0, noise) for peer, each_s in flight_s(now, layer_s).items()}
        return StepTimes(times(now, layer_s).step_s, FLIGHTS, FLIGHTS * TOKENS, seconds)

    for look in range(-LOOKS, LOOKS):
        if not look:
            layer_s["a"] = slow_s
        steps = [*steps, *(step() for _ in range(seen))][-STEPS_WEIGHED:]
        median = MedianTimes.of(steps)
        assert median is not None
        speeds = HomeSpeeds()
        speeds.measured = measured_speeds(LAYOUT, now, median)
        real = speeds.real(homes)
        move = watch.look(
            best_move(LAYOUT, now, median, real), now,
            partial(move_to, layout=LAYOUT, now=now, times=median, homes=real),
        )  # fmt: skip
        if not watch.is_unsure:
            steps = []
        if move is not None:
            now = move.to
            at.append(look)
    return at


@pytest.mark.parametrize(("noise", "seen", "within"), [(0.03, 2, 2), (0.3, 2, 15), (0.3, 12, 4)])
@pytest.mark.parametrize("seed", range(5))
def test_noise_moves_no_blocks_to_and_fro(noise: float, seen: int, within: int, seed: int) -> None:
    """Homes alike stay as they are, however much single timings are off. After one of them has become slow the cut
    moves by the second look, or some looks later if there are few steps a look that are off by a third, and not again
    by more than one block's uncertainty."""
    at = moved(0.4, noise, seen, seed)
    assert 1 <= at[0] < within
    assert len(at) <= 2
