"""Hours of the week by the clock on the wall: what opens, what closes, when, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dht.errors import BadSpec
from peer.node.limits.schedule_clock import is_open, next_change, next_month
from peer.schema.weekly_schedule import DAYS, Schedule, parse

ZONES = [UTC, *map(ZoneInfo, ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"))]
BERLIN = ZoneInfo("Europe/Berlin")
NIGHTS = "mon-fri 22:00-07:00, sat-sun 00:00-24:00"
YEAR_S = 365 * 86400


def at(text: str, zone: tzinfo = UTC, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


@pytest.mark.parametrize(
    ("when", "open_then"),
    [  # the 16th of November 2026 is a Monday
        ("2026-11-16T12:00", False), ("2026-11-16T21:59:59", False), ("2026-11-16T22:00", True),
        ("2026-11-17T06:59:59", True), ("2026-11-17T07:00", False), ("2026-11-21T06:00", True),
        ("2026-11-22T23:59:59", True), ("2026-11-23T00:00", False), ("2026-11-21T07:30", True),
    ],
)  # fmt: skip
def test_week_nights_and_weekends(when: str, open_then: bool) -> None:
    assert is_open(parse(NIGHTS), at(when), UTC) is open_then


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("22:00-07:00", "mon-sun 22:00-07:00"), ("sat-sun", "sat 00:00-24:00, sun 00:00-24:00"),
        ("FRI-mon 9:00-17:00", "mon 09:00-17:00, fri-sun 09:00-17:00"), ("sun 22:00-07:00", " sun  22:00-07:00 "),
    ],
)  # fmt: skip
def test_shorter_ways_to_write_it(text: str, same: str) -> None:
    assert parse(text) == parse(same)


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("mon-fry 22:00-07:00", "'fry'"), ("noon", "'noon'"), ("mon 22-07", "'22-07'"),
        ("mon 25:00-26:00", "'25:00-26:00'"),
        ("mon 22:60-23:00", "'22:60-23:00'"), ("mon 07:00-07:00", "'07:00-07:00'"), ("mon tue wed", "'mon tue wed'"),
        ("mon,,tue", "''"), ("22:00-07:00 mon", "'22:00-07:00'"), ("mon 24:00-07:00", "'24:00-07:00'"), ("-", "'-'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_the_bad_part(text: str, token: str) -> None:
    with pytest.raises(BadSpec, match=r"^schedule: ") as error:
        parse(text)
    assert token in str(error.value)
    assert "\n" not in str(error.value)


def test_without_a_schedule_it_is_always_open() -> None:
    assert parse("  ") == Schedule()
    assert is_open(Schedule(), 0.0)
    assert next_change(Schedule(), 0.0) is None
    assert next_change(parse("mon-sun"), 0.0, UTC) is None


def test_when_it_goes_on() -> None:
    assert next_change(parse(NIGHTS), at("2026-11-16T12:34:56"), UTC) == at("2026-11-16T22:00")
    assert next_change(parse(NIGHTS), at("2026-11-20T23:00"), UTC) == at("2026-11-23T00:00")


def test_an_hour_that_spring_skips_and_one_that_autumn_repeats() -> None:
    """In Berlin on the 29th of March 2026 two o'clock is three; on the 25th of October three is two once more."""
    schedule = parse("02:15-02:45")
    assert next_change(schedule, at("2026-03-28T12:00", BERLIN), BERLIN) == at("2026-03-30T02:15", BERLIN)
    changes, now = [], at("2026-10-25T00:00", BERLIN)
    for _ in range(4):
        changes.append(now := next_change(schedule, now, BERLIN) or 0.0)
    assert changes == [at(f"2026-10-25T02:{minute}", BERLIN, fold) for fold in (0, 1) for minute in (15, 45)]


def test_a_window_over_a_change_of_clocks_ends_by_the_clock_on_the_wall() -> None:
    schedule = parse("sat 22:00-07:00")
    opens, closes = at("2026-03-28T22:00", BERLIN), at("2026-03-29T07:00", BERLIN)
    assert next_change(schedule, opens, BERLIN) == closes
    assert closes - opens == 8 * 3600


TIMES = st.builds("{:02d}:{:02d}".format, st.integers(0, 23), st.integers(0, 59))
HOURS = st.tuples(TIMES, TIMES).filter(lambda pair: pair[0] != pair[1]).map("-".join)
RULES = st.lists(st.builds("{} {}".format, st.sampled_from(DAYS), HOURS), min_size=1, max_size=4)


def by_the_wall(rules: list[str], now: float, zone: tzinfo) -> bool:
    """Each rule on its own, in the words of a person: on that day from then on, or on the day after before then."""
    local = datetime.fromtimestamp(now, zone)
    clock, yesterday = local.strftime("%H:%M"), DAYS[(local.weekday() - 1) % 7]
    for rule in rules:
        day, hours = rule.split()
        begin, end = hours.split("-")
        today = day == DAYS[local.weekday()]
        if begin < end and today and begin <= clock < end:
            return True
        if begin > end and ((today and clock >= begin) or (day == yesterday and clock < end)):
            return True
    return False


@pytest.mark.slow
@given(RULES, st.integers(0, 2 * YEAR_S), st.sampled_from(ZONES))
@settings(deadline=None)
def test_it_is_what_the_clock_on_the_wall_says(rules: list[str], after_s: int, zone: tzinfo) -> None:
    now = at("2026-01-01T00:00") + after_s
    assert is_open(parse(", ".join(rules)), now, zone) is by_the_wall(rules, now, zone)


@given(RULES, st.integers(0, 2 * YEAR_S), st.sampled_from(ZONES))
@settings(deadline=None, max_examples=30)
def test_nothing_changes_before_the_next_change(rules: list[str], after_s: int, zone: tzinfo) -> None:
    schedule, now = parse(", ".join(rules)), at("2026-01-01T00:00") + after_s
    change = next_change(schedule, now, zone)
    assert change is not None, "no rule of these is open for the whole week"
    assert now < change <= now + timedelta(days=8).total_seconds()
    before = is_open(schedule, now, zone)
    assert is_open(schedule, change, zone) is not before
    assert all(is_open(schedule, now + (change - now) * part / 97, zone) is before for part in range(97))


def test_months_end_where_people_live() -> None:
    """Also in December, and where clocks changed meanwhile."""
    for now, then in (((2026, 12, 31, 23), (2027, 1, 1)), ((2026, 10, 1), (2026, 11, 1)), ((2027, 1, 1), (2027, 2, 1))):
        moment = datetime(*now, tzinfo=BERLIN).timestamp()  # type: ignore[misc,arg-type]
        assert next_month(moment, BERLIN) == datetime(*then, tzinfo=BERLIN).timestamp()  # type: ignore[misc,arg-type]
