"""When a clock is compared again."""

from __future__ import annotations

import pytest

from dht.clock import COMPARE_S, LOOK_S, ClockWatch


class Clocks:
    """One that can be set, and one that only counts."""

    def __init__(self) -> None:
        self.wall_s, self.steady_s = 1_800_000_000.0, 50.0

    def watch(self) -> ClockWatch:
        return ClockWatch(lambda: self.wall_s, lambda: self.steady_s)

    def pass_by(self, seconds: float, wall_s: float | None = None) -> None:
        self.steady_s += seconds
        self.wall_s += seconds if wall_s is None else wall_s


def test_one_that_goes_right_is_compared_now_and_then() -> None:
    clocks = Clocks()
    watch = clocks.watch()
    clocks.pass_by(COMPARE_S - 1)
    assert not watch.is_due
    clocks.pass_by(1)
    assert watch.is_due
    assert not watch.has_jumped
    watch.compared(watch.now())
    assert not watch.is_due


@pytest.mark.parametrize("wall_s", [LOOK_S + 90, LOOK_S - 90, LOOK_S + 1.5])
def test_one_that_jumps_is_compared_at_once(wall_s: float) -> None:
    """It was set, or the machine slept; again and again until somebody has told the time."""
    clocks = Clocks()
    watch = clocks.watch()
    clocks.pass_by(LOOK_S, wall_s)
    for _ in range(3):
        assert watch.is_due
        assert watch.has_jumped
        clocks.pass_by(LOOK_S)
    then = watch.now()
    clocks.pass_by(LOOK_S, LOOK_S + 90)
    watch.compared(then)
    assert watch.is_due, "it has jumped once more while the others were asked"
    watch.compared(watch.now())
    assert not watch.is_due


def test_one_that_is_pulled_slowly_is_a_jump_in_the_end() -> None:
    clocks = Clocks()
    watch = clocks.watch()
    for _ in range(3):
        assert not watch.has_jumped
        clocks.pass_by(LOOK_S, LOOK_S + 0.4)
    assert watch.has_jumped
