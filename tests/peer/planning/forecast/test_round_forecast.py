"""The forecast of a running peer: what it learns from rounds, and when it says that its part will be late."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import median
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.planning.forecast.round_forecast import TIGHT, Forecast, ObservedRound, RoundForecaster, in_words, remedy
from peer.planning.forecast.watched_outlook import WatchedOutlook
from peer.planning.plan.peer_set import Machine
from peer.schema.spec import RunSpec, load
from tests.peer.consensus.rounds.build import header, update

MINE = Machine(name="mine", step_s=0.5, upload_mbps=20, download_mbps=100)
DELAY_S = 0.03
LONG = 1000
"""An anchor after which all rounds have H inner steps."""


def make_live() -> RoundForecaster:
    return RoundForecaster(load("micro"))


def expect(live: RoundForecaster) -> Forecast:
    return live.expect(LONG, MINE, (0.0, 0.0), DELAY_S)


def fact(round_s: float, ready_s: float = 0.0, patience_s: float = 10.0) -> ObservedRound:
    return ObservedRound(round_s=round_s, ready_s=ready_s, patience_s=patience_s)


def follow(live: RoundForecaster, rounds: int, round_s: float, spread: float = 0.0) -> list[float]:
    """The relative errors of what was foretold of so many rounds."""
    chance, errors = random.Random(1), []
    for _ in range(rounds):
        took_s = round_s * math.exp(chance.gauss(0, spread))
        errors.append(abs(expect(live).round_s / took_s - 1))
        live.learn(fact(took_s))
    return errors


@pytest.mark.slow
@given(st.floats(0.2, 20.0))
def test_it_learns_by_how_much_rounds_differ_from_the_formulas(factor: float) -> None:
    live = make_live()
    round_s = factor * expect(live).round_s
    errors = follow(live, 8, round_s)
    assert max(errors[1:]) < 1e-6


def test_of_noisy_rounds_nine_in_ten_lie_in_the_interval_and_the_mean_error_is_that_of_the_noise() -> None:
    live, chance, inside, errors = make_live(), random.Random(2), 0, []
    for _ in range(400):
        expected, took_s = expect(live), 60 * math.exp(chance.gauss(0, 0.05))
        inside += expected.low_s <= took_s <= expected.high_s
        errors.append(abs(expected.round_s / took_s - 1))
        live.learn(fact(took_s))
    assert 0.85 <= inside / 400 <= 0.97
    assert sum(errors[20:]) / 380 < 0.05


def test_it_follows_a_change_within_ten_rounds() -> None:
    live = make_live()
    follow(live, 20, 60.0)
    assert follow(live, 12, 120.0)[-1] < 0.05


def test_a_night_of_sleep_does_not_spoil_it_for_long() -> None:
    live = make_live()
    follow(live, 20, 60.0)
    expect(live)
    live.learn(fact(8 * 3600.0))
    assert follow(live, 15, 60.0)[-1] < 0.05


def test_an_interval_is_wide_at_first_and_narrow_where_rounds_are_alike() -> None:
    live = make_live()
    first = expect(live)
    follow(live, 40, 60.0)
    later = expect(live)
    assert first.high_s / first.low_s > 2
    assert later.high_s / later.low_s < 1.1


def test_a_faster_peer_is_foretold_a_shorter_round() -> None:
    """What is learned is of what the formulas cannot know: a change of what they know is foretold at once."""
    live = make_live()
    follow(live, 10, 60.0)
    slow = live.expect(LONG, MINE, (0.0,), DELAY_S).round_s
    fast = live.expect(LONG, Machine(name="mine", step_s=0.25), (0.0,), DELAY_S).round_s
    assert fast == pytest.approx(slow - 40 * 0.25, abs=0.5)


def test_a_slow_line_of_another_member_is_known_from_what_it_pledges() -> None:
    """The round waits for its part, however fast this peer sends."""
    live = make_live()
    slow, fast = (live.expect(LONG, MINE, (0.0, 0.0), DELAY_S, (0, bps)).round_s for bps in (500_000, 100_000_000))
    assert slow > 1.03 * fast


@pytest.mark.parametrize("speed", [0.001, 1e9])
@pytest.mark.parametrize("upload_bps", [1, 2**62])
def test_whatever_others_say_of_themselves_a_round_is_foretold(speed: float, upload_bps: int) -> None:
    """A stranger's figures end no trainer."""
    assert math.isfinite(make_live().expect(LONG, MINE, (speed, 0.0), DELAY_S, (upload_bps, 0)).round_s)


# ---- lateness ----


def test_nothing_is_said_of_lateness_before_three_rounds() -> None:
    live = make_live()
    for _ in range(2):
        assert expect(live).late_s is None
        live.learn(fact(60, ready_s=20))
    assert not expect(live).is_tight
    live.learn(fact(60, ready_s=20))
    assert expect(live).late_s == 10.0


@given(st.lists(st.floats(0, 30), min_size=3, max_size=8), st.floats(1, 20))
def test_its_owner_hears_if_the_others_hardly_wait_so_long(ready_s: list[float], patience_s: float) -> None:
    live = make_live()
    for each in ready_s:
        live.learn(fact(60, each, patience_s))
    assert expect(live).is_tight == (median(each - patience_s for each in ready_s) > -TIGHT * patience_s)


def made(late_s: float | None) -> Forecast:
    return Forecast(round_s=60, low_s=50, high_s=70, late_s=late_s, patience_s=10.0)


def spec(pace: Literal["steps", "speed"] = "steps") -> RunSpec:
    base = load("micro")
    return replace(base, round=replace(base.round, pace=pace))


@pytest.mark.parametrize("late_s", [None, -10.0, -2.5])
def test_who_is_in_time_needs_no_advice(late_s: float | None) -> None:
    assert remedy(spec(), made(late_s), 1.0, 50, {"min_step_s": 1.0}) == ""


def test_the_setting_that_slows_it_is_named_with_the_value_that_suffices() -> None:
    """50 steps of 1 s; it lacks 3 s and a fifth of 10: with 0.9 s a step it has them."""
    text = remedy(spec(), made(3.0), 1.0, 50, {"min_step_s": 1.0})
    assert text == "min_step_s is 1 s: with 0.9 s its part would be there in time"


def test_a_limit_that_its_owner_set_is_named() -> None:
    assert "max_power_w slow" in remedy(spec(), made(3.0), 1.0, 50, {"max_power_w": 150.0})


def test_a_machine_that_is_too_slow_for_the_run_is_told_how_much_and_what_kind_of_run_suits_it() -> None:
    text = remedy(spec(), made(5.0), 1.0, 50, {})
    assert "14% too slow for 50 steps" in text
    assert 'round.pace = "speed"' in text
    text = remedy(spec(), made(-1.0), 1.0, 50, {})
    assert text.startswith("50 steps a round leave its machine little time to spare: "), "it is in time"
    assert "round.pace" not in remedy(spec("speed"), made(5.0), 1.0, 50, {})


def test_it_is_said_in_one_line() -> None:
    assert in_words(made(None)) == "a round of about 60 s (50 to 70)"
    assert in_words(made(12.3)).endswith("this peer's part will be 12 s late")
    assert in_words(made(-4.0)).endswith("this peer's part will be there 4 s before the others stop waiting")


# ---- the run's end ----

RAMP = replace(
    load("micro"), run=replace(load("micro").run, rounds=40),
    round=replace(load("micro").round, sync_rounds=2, ramp_rounds=20, steps=100, min_round_s=0, max_train_s=600),
)  # fmt: skip


def drawn_rounds(seed: int) -> list[float]:
    """Seconds of each round of a run whose rounds grow: an agreement longer than the formulas say, noise of a tenth, a
    slower peer that comes for a while, and one round that stands still for the time of four."""
    chance = random.Random(seed)
    agreed_s, came, stalled = chance.uniform(1, 6), chance.randrange(5, 30), chance.randrange(8, 40)
    rounds = [
        (agreed_s + RAMP.steps_in(round) * 0.5 * (1.2 if came <= round < came + 6 else 1)) * chance.gauss(1, 0.1)
        for round in range(RAMP.run.rounds)
    ]
    rounds[stalled] *= 4
    return rounds


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_only_watches_foretells_it_as_well(seed: int) -> None:
    """From the dates in the blocks, in whole seconds, and the speeds that members state."""
    outlook, took_s = WatchedOutlook(RAMP), drawn_rounds(seed)
    speeds = dict.fromkeys(("p0", "p1", "p2"), RAMP.step_tokens / 0.5)
    far = []
    for round in range(1, RAMP.run.rounds):
        made = replace(update(members=tuple(map(header, speeds))), round=round, time=1000 + int(sum(took_s[:round])))
        told = outlook.follow(made, speeds)
        assert told is not None
        assert told.run_left_s is not None
        far.append(abs((sum(took_s[:round]) + told.run_left_s) / sum(took_s) - 1))
    assert max(far[3:]) < 0.25


def test_who_watches_learns_nothing_of_rounds_that_are_missing() -> None:
    outlook, speeds = WatchedOutlook(RAMP), {"p0": RAMP.step_tokens / 0.5}
    dated = [(1, 1000), (2, 1004), (30, 90_000)]
    told = [
        outlook.follow(replace(update(members=(header("p0"),)), round=round, time=time), speeds)
        for round, time in dated
    ]
    assert [event.took_s for event in told if event is not None] == [0.0, 4.0, 0.0]
    assert outlook.follow(replace(update(members=(header("p0"),)), round=31), {}) is None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_end_of_a_run_is_foretold_to_a_quarter_from_round_4_on_while_its_rounds_grow(seed: int) -> None:
    live, took_s = RoundForecaster(RAMP), drawn_rounds(seed)
    far = []
    for round in range(RAMP.run.rounds):
        expected = live.expect(round, MINE, (0.0, 0.0), DELAY_S)
        ends_s = sum(took_s[:round]) + expected.round_s + live.later_s(round + 1)
        far.append(abs(ends_s / sum(took_s) - 1))
        live.learn(fact(took_s[round]))
    assert max(far[4:]) < 0.25
