"""Schedules and months by the wall clock. Pure: the time and the time zone are given.

What counts is the local time that a clock shows: an hour that is repeated in autumn counts twice, one that is skipped
in spring not at all. `zone` names the time zone; None means this machine's.
"""

from __future__ import annotations

from datetime import datetime, tzinfo
from functools import lru_cache

from peer.schema.weekly_schedule import DAY_MIN, WEEK_MIN, Schedule


def is_open(schedule: Schedule, now: float, zone: tzinfo | None = None) -> bool:
    """Whether a window is open at Unix time `now`."""
    local = datetime.fromtimestamp(now, zone)
    return schedule.is_open(local.weekday() * DAY_MIN + local.hour * 60 + local.minute)


def next_change(schedule: Schedule, now: float, zone: tzinfo | None = None) -> float | None:
    """When it next opens or closes, in Unix time; None if it never does."""
    minute = _change_after(schedule, int(now // 60), zone)
    return None if minute is None else minute * 60.0


@lru_cache(maxsize=8)
def _change_after(schedule: Schedule, minute: int, zone: tzinfo | None) -> int | None:
    """The first minute (since 1970) after this one whose state differs. It goes minute by minute: windows and the
    offsets of all zones have whole minutes, so that no change of clocks can hide one. A week contains every case,
    and one day more covers the hour that a change of clocks may skip."""
    if not schedule.windows:
        return None
    before = is_open(schedule, minute * 60.0, zone)
    following = range(minute + 1, minute + 1 + WEEK_MIN + DAY_MIN)
    return next((each for each in following if is_open(schedule, each * 60.0, zone) is not before), None)


def next_month(now: float, zone: tzinfo | None) -> float:
    """When the next calendar month begins, in Unix time."""
    local = datetime.fromtimestamp(now, zone)
    years, month = divmod(local.month, 12)
    return datetime(local.year + years, month + 1, 1, tzinfo=zone).timestamp()
