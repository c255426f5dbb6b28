"""What each limit asks for, in words and until when; and that none of them flaps."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.node.limits.governor import LEAST_DUTY
from peer.node.limits.policy import (
    BELOW,
    COOL_C,
    LINGER_S,
    TOO_HOT_C,
    Decision,
    Hold,
    Readings,
    decide,
    until_of,
)
from peer.schema.settings import PeerSettings

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC).timestamp()
"""Of a Monday."""
LOOK_S = 0.5


def looked(settings: PeerSettings, *readings: Readings, before: Decision | None = None) -> Decision:
    """The verdict after these readings, LOOK_S apart."""
    verdict = before or Decision()
    for reading in readings:
        now = NOON if verdict.at is None else verdict.at + LOOK_S
        verdict = decide(settings, reading, now, verdict, UTC)
    return verdict


def test_by_default_only_a_battery_holds() -> None:
    assert looked(PeerSettings(), Readings(on_battery=False)) == Decision(at=NOON)
    assert looked(PeerSettings(), Readings(on_battery=True)).held("BATTERY")
    assert not looked(PeerSettings(on_battery=True), Readings(on_battery=True)).holds


@pytest.mark.parametrize(
    ("chosen", "readings", "hold"),
    [
        (
            {"schedule": "22:00-07:00"}, Readings(),
            Hold("SCHEDULE", "its schedule has it rest now", NOON + 10 * 3600),
        ),
        (
            {"idle_min": 10}, Readings(idle_s=60.0),
            Hold("IDLE", "somebody uses this machine; it goes on when nobody has for 10 min", NOON + 540),
        ),
        ({}, Readings(on_battery=True), Hold("BATTERY", "this machine runs on battery")),
        (
            {"pause_for": ("steam", "blender", "obs")}, Readings(running=("steam", "obs")),
            Hold("PROGRAM", "steam and obs run"),
        ),
        (
            {"monthly_gb": 200}, Readings(month_bytes=200_100_000_000),
            Hold(
                "QUOTA", "the traffic of this month is used up; monthly_gb is 200",
                datetime(2026, 12, 1, tzinfo=UTC).timestamp(),
            ),
        ),
        (
            {"disk_gb": 20}, Readings(folder_bytes=20_500_000_000),
            Hold("DISK", "its folder is full; disk_gb is 20, allow more or make room in the folder"),
        ),
        (
            {"memory_gb": 4}, Readings(memory_bytes=4_200_000_000),
            Hold(
                "MEMORY",
                "its processes take too much memory; memory_gb is 4, and it goes on below 3.8 GB, or if you allow more",
            ),
        ),
        (
            {"max_temperature_c": 70}, Readings(temperature_c=80.0),
            Hold(
                "TEMPERATURE",
                "the GPU is too hot in spite of rests; max_temperature_c is 70, and it goes on at 67 C",
            ),
        ),
    ],
)  # fmt: skip
def test_a_limit_that_is_reached_holds_and_says_why(chosen: dict[str, Any], readings: Readings, hold: Hold) -> None:
    """At the first look; and if nobody had chosen it, it would not."""
    assert looked(PeerSettings(**chosen), readings).holds == (hold,)
    assert not looked(PeerSettings(on_battery=True), readings).holds


def test_one_program_runs_and_two_run() -> None:
    held = looked(PeerSettings(pause_for=("steam",)), Readings(running=("steam",))).held("PROGRAM")
    assert held is not None
    assert held.why == "steam runs"


def test_it_goes_on_when_the_last_reason_is_gone() -> None:
    assert until_of((Hold("IDLE", "", 5.0), Hold("SCHEDULE", "", 9.0))) == 9.0
    assert until_of((Hold("IDLE", "", 5.0), Hold("PAUSED", ""))) is None
    assert until_of(()) is None


@pytest.mark.parametrize(
    ("chosen", "reading"),
    [
        ({"idle_min": 10}, "idle_min"), ({"pause_for": ("steam",)}, "pause_for"), ({"disk_gb": 5}, "disk_gb"),
        ({"memory_gb": 5}, "memory_gb"), ({"max_temperature_c": 70}, "max_temperature_c"),
        ({"max_power_w": 100}, "max_power_w"),
    ],
)  # fmt: skip
def test_what_this_machine_does_not_tell_holds_nothing_and_is_named(chosen: dict[str, Any], reading: str) -> None:
    verdict = looked(PeerSettings(**chosen), Readings())
    assert (verdict.holds, verdict.unread, verdict.duty) == ((), (reading,), 1.0)


def test_a_program_that_starts_again_does_not_make_it_flap() -> None:
    """A launcher ends and its game begins: one pause, and it goes on LINGER_S after the end of the last one."""
    settings, on, off = PeerSettings(pause_for=("game",)), Readings(running=("game",)), Readings(running=())
    verdict = looked(settings, on, *[off] * 15, on, off)
    held = verdict.held("PROGRAM")
    assert held is not None
    assert held.why == "a program of your list has ended; it goes on in a moment"
    assert held.until == (verdict.at or 0) + LINGER_S
    looks = round(LINGER_S / LOOK_S)
    assert looked(settings, *[off] * (looks - 1), before=verdict).holds
    assert not looked(settings, *[off] * looks, before=verdict).holds
    assert not looked(PeerSettings(), off, before=verdict).holds, "nobody asks for it any more"


def test_a_clock_that_is_set_back_makes_no_pause_longer() -> None:
    """By a day, in the moment after a program has ended."""
    settings, off = PeerSettings(pause_for=("game",)), Readings(running=())
    verdict = looked(settings, Readings(running=("game",)), off)
    yesterday = (verdict.at or 0) - 86_400
    verdict = decide(settings, off, yesterday, verdict, UTC)
    assert until_of(verdict.holds) == yesterday + LINGER_S
    assert not decide(settings, off, yesterday + LINGER_S, verdict, UTC).holds


@given(st.lists(st.booleans(), max_size=150), st.sampled_from(["PROGRAM", "BATTERY"]))
def test_it_pauses_at_once_and_goes_on_when_the_cause_has_been_gone_for_long(causes: list[bool], code: str) -> None:
    settings, verdict, gone_for = PeerSettings(pause_for=("game",)), Decision(), 1000
    for cause in causes:
        gone_for = 0 if cause else gone_for + 1
        readings = Readings(running=("game",) if cause else (), on_battery=cause)
        verdict = looked(settings, readings, before=verdict)
        assert (verdict.held(code) is not None) is (gone_for <= LINGER_S / LOOK_S)


@given(st.lists(st.floats(0.5, 1.5), min_size=1, max_size=60), st.sampled_from(["DISK", "MEMORY"]))
def test_a_quota_holds_from_its_edge_until_there_is_room(shares: list[float], code: str) -> None:
    """Between the edge and BELOW it, what was so stays so."""
    settings, verdict, held, words = PeerSettings(disk_gb=10, memory_gb=10), Decision(), False, set[str]()
    for share in shares:
        used = round(10e9 * share)
        verdict = looked(settings, Readings(folder_bytes=used, memory_bytes=used), before=verdict)
        held = used > 10e9 if not held else used > BELOW * 10e9
        assert (verdict.held(code) is not None) is held
        words |= {hold.why for hold in verdict.holds if hold.code == code}
    assert len(words) <= 1, "each change would be an event"


def test_a_gpu_that_is_too_hot_in_spite_of_rests_gets_a_pause() -> None:
    settings = PeerSettings(max_temperature_c=70)
    warm = looked(settings, *[Readings(temperature_c=70.0 + TOO_HOT_C)] * 200)
    assert (warm.holds, warm.duty) == ((), LEAST_DUTY)
    assert [hold.why for hold in warm.slowing] == ["it rests between micro-batches to keep the GPU at 70 C"]
    hot = looked(settings, *[Readings(temperature_c=71.0 + TOO_HOT_C)] * 20, before=warm)
    assert hot.held("TEMPERATURE")
    cooling = looked(settings, *[Readings(temperature_c=70.5 - COOL_C)] * 20, before=hot)
    assert cooling.held("TEMPERATURE"), "a degree less is no reason to begin again"
    assert not looked(settings, *[Readings(temperature_c=69.5 - COOL_C)] * 20, before=cooling).holds


def test_a_gpu_that_draws_too_much_even_so_gets_a_pause() -> None:
    """It must be at the least duty first: a peak that rests can take away is no reason."""
    settings = PeerSettings(max_power_w=100)
    peak = looked(settings, *[Readings(power_w=300.0)] * 2)
    assert not peak.holds
    held = looked(settings, *[Readings(power_w=300.0)] * 60, before=peak)
    assert held.duty == LEAST_DUTY
    assert held.held("POWER")
    assert not looked(settings, *[Readings(power_w=30.0)] * 60, before=held).holds


MANY = st.builds(
    Readings,
    idle_s=st.none() | st.floats(0, 1e6),
    on_battery=st.none() | st.booleans(),
    running=st.none() | st.sampled_from([(), ("game",)]),
    folder_bytes=st.none() | st.integers(0, 10**12),
    memory_bytes=st.none() | st.integers(0, 10**12),
    temperature_c=st.none() | st.floats(-20, 130),
    power_w=st.none() | st.floats(0, 2000),
    month_bytes=st.none() | st.integers(0, 10**13),
)
ALL = PeerSettings(
    schedule="mon-fri 22:00-07:00", idle_min=5, pause_for=("game",), max_temperature_c=70, max_power_w=200,
    monthly_gb=100, disk_gb=10, memory_gb=8,
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(st.tuples(MANY, st.floats(-100, 1e6)), max_size=20))
def test_whatever_sensors_and_clocks_say_there_is_a_verdict(looks: list[tuple[Readings, float]]) -> None:
    """One hold of a kind at most, each in words, none that ended long ago; and a share of time that can be rested."""
    verdict, now = Decision(), NOON
    for readings, seconds in looks:
        now += seconds
        verdict = decide(ALL, readings, now, verdict, UTC)
        codes = [hold.code for hold in verdict.holds]
        assert len(codes) == len(set(codes))
        assert all(hold.why for hold in verdict.holds)
        assert LEAST_DUTY <= verdict.duty <= 1.0
        assert (verdict.duty < 1) is bool(verdict.slowing)
