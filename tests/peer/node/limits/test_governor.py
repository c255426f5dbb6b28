"""A simulated GPU is kept at its temperature and its power: close, without swinging, whatever its cooler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.node.limits.governor import LEAST_DUTY, POWER, TEMPERATURE, Gains, Governor, rest_s, steer

LOOK_S = 0.5
AMBIENT_C = 30.0
AT_REST = 0.08
"""Of its full load."""


def simulate(
    gains: Gains, target: float, unit: float, micro_batch_s: float, duration_s: float, plant: Cooler | Draw
) -> list[Moment]:
    """A GPU that computes micro-batches and rests as it is told, from one event to the next."""
    control, told, now = Governor(), [], 0.0
    computing, ends, looks = True, micro_batch_s, 0.0
    while now < duration_s:
        if now >= ends:
            rest = rest_s(micro_batch_s, control.duty) if computing else 0.0
            computing = rest == 0.0
            ends = now + (rest or micro_batch_s)
        if now >= looks:
            looks += LOOK_S
            control = steer(control, gains, plant.sensed, target, unit, LOOK_S)
        seconds = min(ends, looks) - now
        plant.pass_time(seconds, 1.0 if computing else AT_REST)
        now += seconds
        told.append(Moment(now, seconds, plant.true, control.duty))
    return told


@dataclass(frozen=True)
class Moment:
    """What is regulated, at the end of some seconds."""

    now: float
    seconds: float
    true: float
    duty: float


def mean(moments: Sequence[Moment]) -> float:
    return sum(moment.true * moment.seconds for moment in moments) / sum(moment.seconds for moment in moments)


class Cooler:
    """A heat sink of one time constant, and a sensor of whole degrees."""

    def __init__(self, tau_s: float, rise_c: float) -> None:
        self._tau_s, self._rise_c = tau_s, rise_c
        self.true = AMBIENT_C

    @property
    def sensed(self) -> float:
        return float(round(self.true))

    def pass_time(self, seconds: float, load: float) -> None:
        goal = AMBIENT_C + self._rise_c * load
        self.true = goal + (self.true - goal) * math.exp(-seconds / self._tau_s)


class Draw:
    """Follows at once; the sensor has about the mean of the last second, as NVML does."""

    def __init__(self, idle_w: float, busy_w: float) -> None:
        self._idle_w, self._busy_w = idle_w, busy_w
        self.true = self.sensed = idle_w

    def pass_time(self, seconds: float, load: float) -> None:
        self.true = self._busy_w if load == 1.0 else self._idle_w
        self.sensed = self.true + (self.sensed - self.true) * math.exp(-seconds)


@pytest.mark.slow
@pytest.mark.parametrize("tau_s", [20.0, 60.0, 150.0])
@pytest.mark.parametrize("rise_c", [25.0, 50.0, 80.0])
@pytest.mark.parametrize("micro_batch_s", [0.1, 1.0])
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_a_temperature_is_held(tau_s: float, rise_c: float, micro_batch_s: float, share: float) -> None:
    """Within two degrees of the target once it is reached, half a degree of it on average.

    The sensor's whole degrees alone are half a degree, and the fastest of these GPUs warms up by four in a second.
    """
    target = AMBIENT_C + share * rise_c
    told = simulate(TEMPERATURE, target, 1.0, micro_batch_s, 12 * tau_s + 300, Cooler(tau_s, rise_c))
    assert max(moment.true for moment in told) < target + 2.5
    late = [moment for moment in told if moment.now > 6 * tau_s + 150]
    assert all(abs(moment.true - target) < 2.0 for moment in late)
    assert abs(mean(late) - target) < 0.5
    assert max(moment.duty for moment in late) - min(moment.duty for moment in late) < 0.15, "it does not swing"


@pytest.mark.parametrize("micro_batch_s", [0.1, 1.0, 3.0])
@pytest.mark.parametrize(("idle_w", "busy_w"), [(15.0, 350.0), (60.0, 300.0), (30.0, 220.0)])
def test_a_power_is_held_on_average(micro_batch_s: float, idle_w: float, busy_w: float) -> None:
    """Of two minutes, within five per cent, by the share of time that gives it."""
    target = 150.0
    told = simulate(POWER, target, target, micro_batch_s, 540.0, Draw(idle_w, busy_w))
    for begins in (180.0, 300.0, 420.0):
        late = [moment for moment in told if begins < moment.now <= begins + 120.0]
        assert abs(mean(late) - target) < 0.05 * target
        wanted = (target - idle_w) / (busy_w - idle_w)
        assert abs(sum(moment.duty * moment.seconds for moment in late) / 120.0 - wanted) < 0.1


def test_a_gpu_that_never_comes_near_its_target_is_not_slowed_down() -> None:
    told = simulate(TEMPERATURE, 90.0, 1.0, 0.5, 300.0, Cooler(60.0, 40.0))
    assert all(moment.duty == 1.0 for moment in told)


def test_a_cooler_room_gives_the_duty_back() -> None:
    """Nothing winds up: a quarter of an hour too hot, then cool, and it computes all the time within two minutes."""
    control = Governor()
    for _ in range(1800):
        control = steer(control, TEMPERATURE, 95.0, 70.0, 1.0, LOOK_S)
    assert control.duty == LEAST_DUTY
    for _ in range(240):
        control = steer(control, TEMPERATURE, 50.0, 70.0, 1.0, LOOK_S)
    assert control.duty == 1.0


READINGS = st.lists(st.tuples(st.floats(-50, 2000) | st.none(), st.floats(-1e6, 1e6)), max_size=60)


@given(READINGS, st.sampled_from([TEMPERATURE, POWER]), st.floats(30, 5000))
def test_the_duty_is_always_one(readings: list[tuple[float | None, float]], gains: Gains, target: float) -> None:
    """Between the least and 1, for whatever a sensor and a clock say."""
    control = Governor()
    for reading, elapsed_s in readings:
        before, control = control, steer(control, gains, reading, target, target, elapsed_s)
        assert LEAST_DUTY <= control.duty <= 1.0
        assert math.isfinite(control.integral)
        if reading is None:
            assert control == before


@given(st.floats(0.001, 100), st.floats(LEAST_DUTY, 1))
def test_rest_and_work_are_as_the_duty_says(computed_s: float, duty: float) -> None:
    assert computed_s / (computed_s + rest_s(computed_s, duty)) == pytest.approx(duty)
