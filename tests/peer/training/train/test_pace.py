"""What part of a round is one peer's: by steps, by speed, by time; and that no liar shrinks the others' parts."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.node.lifecycle.pace import (
    KNOWN,
    LEAST,
    MEASURED_S,
    MOST,
    MOST_MEASURED,
    OUTLIER,
    Pace,
    Speed,
    reference,
    steps_at,
)
from peer.schema import spec as specs
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import YEAR_S
from peer.training.train.optimizers import learning_rate
from tests.peer.training.train.conftest import Make
from tests.stepping import never

SPEEDS = st.integers(1, 10**12)
TOKENS = 64


def make_spec(**round: Any) -> RunSpec:
    table = {"steps": 20, "max_train_s": 100.0, **round}
    return specs.from_mapping(
        {"run": {"name": "t", "rounds": 10}, "model": {"architecture": "llama", "context": 8}, "round": table}
    )


def make_pace(step_s: float = 0.0, others: tuple[float, ...] = (), **round: Any) -> Pace:
    """Of a peer whose steps take `step_s` (unknown if 0), among others with these steps per second."""
    pace = Pace(make_spec(**round))
    for _ in range(KNOWN if step_s else 0):
        pace = pace.stepped(step_s, TOKENS)
    pace = pace.heard({str(index): TOKENS * speed for index, speed in enumerate(others)})
    return pace


# ---- the robust maximum ----


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [([], 0), ([7], 7), ([3, 9], 9), ([1, 2, 3], 2), ([4, 4, 4, 1], 4), ([1] * 18 + [8, 9], 1), ([5] * 9 + [6, 7], 5)],
)
def test_the_fastest_tenth_is_left_out(speeds: list[int], expected: int) -> None:
    """Rounded up to peers: 1 of 3 to 10, 2 of 11 to 20; of fewer than 3 nobody."""
    assert reference(speeds) == expected


@given(honest=st.lists(SPEEDS, min_size=2, max_size=40), data=st.data())
def test_liars_move_it_within_what_the_honest_say(honest: list[int], data: st.DataObject) -> None:
    """The bound that `reference` states: between the (k + 1)th fastest of the honest and the fastest of them."""
    lies = data.draw(st.lists(SPEEDS, min_size=1, max_size=4))
    n = len(honest) + len(lies)
    k = -(-n // 10)
    if len(lies) > k:
        return
    ranked = sorted(honest, reverse=True)
    assert ranked[k] <= reference([*honest, *lies]) <= ranked[0]


@given(st.lists(SPEEDS, min_size=3, max_size=40), st.randoms(), SPEEDS)
def test_order_and_units_do_not_matter(speeds: list[int], dice: Any, factor: int) -> None:
    mixed = [factor * speed for speed in speeds]
    dice.shuffle(mixed)
    assert reference(mixed) == factor * reference(speeds)


# ---- H of one peer ----


@pytest.mark.parametrize(("step_s", "expected"), [(0.58, 26), (0.75, 20), (1.51, 10), (3.33, 4)])
def test_parts_of_the_cluster_of_the_paper(step_s: float, expected: int) -> None:
    """arXiv:2401.09135's four workers at H = 20: each needs 13.3 to 15.2 s, where the slowest alone would need 67 s."""
    speeds = [round(1000 / seconds) for seconds in (0.58, 0.75, 1.51, 3.33)]
    steps = steps_at(round(1000 / step_s), reference(speeds), 20)
    assert steps == expected
    assert 13.3 <= steps * step_s <= 15.0 * 1.01


@given(speed=SPEEDS, reference=SPEEDS, steps=st.integers(1, 5000))
def test_a_part_takes_as_long_as_h_steps_at_the_reference_speed(speed: int, reference: int, steps: int) -> None:
    """To less than one step less, or a hundredth more, in integers; but H / 16 is made, and no more than 2 H."""
    mine = steps_at(speed, reference, steps)
    least = max(1, steps // LEAST)
    assert least <= mine <= MOST * steps
    if least < mine < MOST * steps:
        assert 100 * mine * reference <= 101 * steps * speed
        assert (mine - 1) * reference < steps * speed < (mine + 1) * reference


@pytest.mark.parametrize(
    ("speed", "expected"), [(1000, 16), (999, 16), (991, 16), (990, 15), (251, 4), (249, 4), (247, 3), (1005, 16)]
)
def test_who_measures_a_trifle_less_than_others_makes_no_step_less(speed: int, expected: int) -> None:
    """It would stand still for a whole one; and a trifle more is no step more."""
    assert steps_at(speed, 1000, 16) == expected


@given(speed=SPEEDS, steps=st.integers(1, 5000))
def test_an_unknown_speed_means_all_steps(speed: int, steps: int) -> None:
    assert steps_at(0, speed, steps) == steps_at(speed, 0, steps) == steps_at(speed, speed, steps) == steps


@given(honest=st.lists(SPEEDS, min_size=2, max_size=9), lie=SPEEDS, steps=st.integers(1, 5000))
def test_one_liar_shrinks_nobody_below_the_share_of_the_fastest(honest: list[int], lie: int, steps: int) -> None:
    """With 10 peers at most it makes at least the steps that it would make by the speed of the fastest honest one."""
    for speed in honest:
        assert steps_at(speed, reference([*honest, lie]), steps) >= steps_at(speed, max(honest), steps)


# ---- how fast am I ----


def test_a_speed_is_known_after_three_steps() -> None:
    speed = Speed()
    for _ in range(KNOWN - 1):
        speed = speed.add(2.0, 100)
    assert (speed.step_s, speed.tokens_per_s) == (0.0, 0.0)
    speed = speed.add(2.0, 100)
    assert (speed.step_s, speed.tokens_per_s) == (2.0, 50.0)


def test_a_step_in_which_the_machine_slept_counts_as_three() -> None:
    speed = Speed()
    for seconds in (1.0, 1.0, 3600.0, 1.0, 1.0):
        speed = speed.add(seconds, 100)
    assert speed.step_s == pytest.approx((4 + OUTLIER) / 5)


@pytest.mark.parametrize("step_s", [0.01, 1.0, 30.0])
def test_a_machine_that_gets_slower_is_known_to_be_within_seconds_or_a_few_steps(step_s: float) -> None:
    """The others count on it: what was an hour ago says nothing."""
    speed = Speed()
    for _ in range(1000):
        speed = speed.add(step_s, 100)
    elapsed_s, steps = 0.0, 0
    while speed.step_s < 3.9 * step_s:
        speed = speed.add(4 * step_s, 100)
        elapsed_s, steps = elapsed_s + 4 * step_s, steps + 1
    assert steps <= MOST_MEASURED
    assert elapsed_s <= MEASURED_S + 4 * step_s or steps <= 8


# ---- when my part is done ----


def test_at_the_pace_of_steps_all_are_made() -> None:
    """However slow; and the rates are those of their numbers."""
    pace = make_pace(4.0, (1.0, 1.0, 1.0))
    assert pace.steps(0) == 20
    assert [pace.share(0, steps, 4.0 * steps) for steps in (0, 5, 10, 20)] == [0.0, 0.25, 0.5, 1.0]
    assert [pace.position(0, steps, 0.1 * steps) for steps in range(25)] == [min(steps, 19) for steps in range(25)]


def test_whichever_is_first_steps_or_time() -> None:
    """After 70 s of 80 a step of 15 s would end too late; while its length is unknown it is begun."""
    assert make_pace(15.0, max_train_s=80.0).share(0, 4, 60.0) == pytest.approx(0.75)
    assert make_pace(15.0, max_train_s=80.0).share(0, 5, 70.0) == 1.0
    assert make_pace(max_train_s=80.0).share(0, 5, 70.0) == pytest.approx(0.875)
    assert make_pace(max_train_s=80.0).share(0, 5, 81.0) > 1.0
    assert make_pace(15.0, max_train_s=80.0).share(0, 20, 30.0) == 1.0


def test_one_step_is_always_made() -> None:
    """By a peer whose steps take longer than the round, or that came late."""
    pace = make_pace(500.0, pace="time")
    assert pace.share(0, 0, 300.0) == 0.0
    assert pace.share(0, 1, 800.0) >= 1.0


def test_a_slow_peer_makes_its_share_of_the_steps() -> None:
    """4 times slower: a quarter of them, in the same time, and over the same learning rates."""
    pace = make_pace(4.0, (1.0, 1.0, 1.0), pace="speed")
    assert pace.steps(0) == 5
    assert [pace.share(0, steps, 4.0 * steps) for steps in range(6)] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert [pace.position(0, steps, 4.0 * steps) for steps in range(7)] == [0, 4, 8, 12, 16, 19, 19]


def test_a_fast_peer_makes_more_but_no_more_than_counts() -> None:
    assert make_pace(0.8, (1.0, 1.0, 1.0), pace="speed").steps(0) == 25
    assert make_pace(0.1, (1.0, 1.0, 1.0), pace="speed").steps(0) == 40
    assert make_pace(0.01, (1.0, 1.0), pace="time").share(0, 40, 0.4) == 1.0


def test_who_knows_no_speeds_makes_all_steps() -> None:
    """Its own is not known yet, or it is alone."""
    assert make_pace(0.0, (1.0, 1.0, 1.0), pace="speed").steps(0) == 20
    assert make_pace(4.0, pace="speed").steps(0) == 20


def test_a_speed_of_zero_is_none() -> None:
    """Of three peers of which two say nothing yet, one is left, and it is the fastest."""
    pace = make_pace(4.0, (1.0, 0.0, 0.0), pace="speed")
    assert pace.steps(0) == 5


def test_what_the_others_say_replaces_what_they_said() -> None:
    pace = make_pace(4.0, (1.0, 1.0, 1.0), pace="speed")
    pace = pace.heard({})
    assert pace.steps(0) == 20


@settings(deadline=None, max_examples=50)
@given(
    step_s=st.floats(0.01, 300.0),
    limit_s=st.floats(0.1, 3600.0),
    pace=st.sampled_from(["steps", "speed", "time"]),
    others=st.lists(st.floats(0.01, 100.0), max_size=5),
)
def test_nobody_overshoots_the_time_by_a_step_that_it_could_foresee(
    step_s: float, limit_s: float, pace: str, others: list[float]
) -> None:
    """Steps of known length: it ends in time, but for the one step that it owes; and by time alone less than one step
    early, unless it has made all that counts."""
    mine = make_pace(step_s, tuple(others), pace=pace, max_train_s=limit_s)
    steps, elapsed_s = 0, 0.0
    while mine.share(0, steps, elapsed_s) < 1 or steps == 0:
        steps, elapsed_s = steps + 1, elapsed_s + step_s
        mine.stepped(step_s, TOKENS)
        assert steps <= MOST * 20
    assert elapsed_s <= limit_s * (1 + 1e-9) or steps == 1
    if pace == "time":
        assert elapsed_s + step_s > limit_s * (1 - 1e-9) or steps == MOST * 20


@settings(deadline=None, max_examples=50)
@given(step_s=st.floats(0.2, 30.0), pace=st.sampled_from(["speed", "time"]))
def test_every_pace_walks_through_the_whole_round(step_s: float, pace: str) -> None:
    """From its first rate on, in even strides, up to less than two strides before its end."""
    spec = make_spec(pace=pace, steps=50, max_train_s=100.0)
    mine = make_pace(step_s, (0.5, 0.5, 0.5), pace=pace, steps=50, max_train_s=100.0)
    positions, steps, elapsed_s = [], 0, 0.0
    while steps == 0 or mine.share(3, steps, elapsed_s) < 1:
        positions.append(mine.position(3, steps, elapsed_s))
        steps, elapsed_s = steps + 1, elapsed_s + step_s
    stride = max(50 / steps, 50 * step_s / 100)
    assert positions[0] == 0
    assert positions == sorted(positions)
    assert positions[-1] >= 50 - 2.01 * stride or steps == MOST * 50
    assert learning_rate(spec, 3, positions[-1]) >= learning_rate(spec, 4, 0)


def test_the_clock_has_no_say_in_the_rates_of_a_round_of_steps() -> None:
    """However slow the machine is just now: who makes these steps again after a crash makes the same ones."""
    pace = make_pace(10.0, max_train_s=100.0)
    assert [pace.position(0, steps, 10.0 * steps) for steps in (0, 5, 9)] == [0, 5, 9]


def test_the_time_may_end_a_share_of_the_steps_and_its_rates_too() -> None:
    """A peer that cannot make its share does not see the first of the rates only."""
    pace = make_pace(10.0, max_train_s=100.0, pace="speed")
    assert [pace.position(0, steps, 10.0 * steps) for steps in (0, 5, 9)] == pytest.approx([0, 10, 18])


@pytest.mark.parametrize(
    ("step_s", "pace", "expected"),
    [(0.0, "time", 20), (4.0, "time", 25), (9.0, "time", 11), (9.0, "steps", 11), (1.0, "steps", 20)],
)
def test_people_are_told_how_many_steps_a_round_will_probably_have(step_s: float, pace: str, expected: int) -> None:
    """H while nothing is known; then what fits into its 100 s."""
    assert make_pace(step_s, pace=pace).expected(0) == expected


def test_a_round_without_a_limit_of_time_has_all_its_steps() -> None:
    assert make_pace(4.0, max_train_s=YEAR_S).expected(0) == 20


def test_a_ramp_counts() -> None:
    """The first rounds are short for everybody."""
    pace = make_pace(4.0, (1.0, 1.0, 1.0), pace="speed", sync_rounds=1, ramp_rounds=4)
    assert [pace.steps(round) for round in (0, 1, 2, 9)] == [1, 1, 2, 5]


def test_a_step_is_made_at_the_rate_of_its_position(make: Make) -> None:
    """By default at that of its number."""
    trainer = make(steps=40, sync_rounds=0, ramp_rounds=0)
    rates = [trainer.step(position, never).learning_rate for position in (0, 1, 12.5)]
    assert rates == [learning_rate(trainer.spec, 0, position) for position in (0, 1, 12.5)]
    assert len(set(rates)) == 3


def test_pace_is_agreed() -> None:
    """Peers of another pace are in another run; an unknown one is refused."""
    spec = make_spec()
    assert spec.digest() != dataclasses.replace(spec, round=dataclasses.replace(spec.round, pace="time")).digest()
    with pytest.raises(specs.BadSpec, match="pace"):
        make_spec(pace="fast")


def test_who_streams_and_came_late_makes_up_for_it_once() -> None:
    """Steps go on after a freeze, so the next part would be as late again; half of it is given in any case."""
    pace = make_pace(2.0, others=(1.0,), pace="speed", steps=20, overlap="streaming")
    assert pace.steps(0) == 10
    pace = pace.was_late(7.0)
    assert pace.steps(0) == 7
    pace = pace.was_late(60.0)
    assert pace.steps(0) == 5
    pace = pace.was_late(0.3)
    assert pace.steps(0) == 10


def test_who_waits_for_the_round_begins_the_next_with_the_others() -> None:
    pace = make_pace(2.0, others=(1.0,), pace="speed", steps=20)
    pace = pace.was_late(7.0)
    assert pace.steps(0) == 10
