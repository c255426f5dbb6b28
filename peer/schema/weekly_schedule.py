"""The hours of the week in which a volunteer lets the peer train. Pure; `limits.schedule_clock` applies it to the
clock.

    mon-fri 22:00-07:00, sat-sun        week nights, and all of the weekend
    23:00-06:30                         every night
    sun-tue, thu 12:00-24:00            three whole days, and an afternoon

A window begins on the named days, and ends on the following day if its end is not later than its beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dht.errors import BadSpec

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MIN = 24 * 60
WEEK_MIN = 7 * DAY_MIN
EXAMPLE = "mon-fri 22:00-07:00, sat-sun 00:00-24:00"

_HOURS = re.compile(r"(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)")


@dataclass(frozen=True)
class Schedule:
    """Windows of the week in minutes since Monday 00:00: [begin, end). No windows: always open."""

    windows: tuple[tuple[int, int], ...] = ()

    def is_open(self, minute: int) -> bool:
        """At a minute of the week."""
        return not self.windows or any(begin <= minute < end for begin, end in self.windows)


def parse(text: str) -> Schedule:
    """The schedule in a text; an empty one is always open. Raises BadSpec with one line that names the bad part."""
    windows: list[tuple[int, int]] = []
    for rule in text.split(",") if text.strip() else ():
        windows += _windows_of(rule.split())
    return Schedule(tuple(sorted(set(windows))))


def _windows_of(words: list[str]) -> Iterator[tuple[int, int]]:
    match words:
        case [hours] if hours[:1].isdigit():
            days, (begin, end) = list(range(7)), _hours(hours)
        case [named]:
            days, (begin, end) = _days(named), (0, DAY_MIN)
        case [named, hours]:
            days, (begin, end) = _days(named), _hours(hours)
        case []:
            raise _bad("", "there is nothing between two commas")
        case _:
            raise _bad(" ".join(words), "a window has days and hours, with a comma before the next one")
    length = (end - begin) % DAY_MIN or DAY_MIN
    for day in days:
        first = day * DAY_MIN + begin
        yield first, min(first + length, WEEK_MIN)
        if first + length > WEEK_MIN:
            yield 0, first + length - WEEK_MIN


def _days(word: str) -> list[int]:
    first, separator, last = word.lower().partition("-")
    for name in (first, last) if separator else (first,):
        if name not in DAYS:
            raise _bad(name if name.isalpha() else word, f"days are {', '.join(DAYS)}")
    begin, end = DAYS.index(first), DAYS.index(last or first)
    return [(begin + day) % 7 for day in range((end - begin) % 7 + 1)]


def _hours(word: str) -> tuple[int, int]:
    found = _HOURS.fullmatch(word)
    if found is None:
        raise _bad(word, "hours are written as 22:00-07:00")
    begin_h, begin_min, end_h, end_min = map(int, found.groups())
    begin, end = begin_h * 60 + begin_min, end_h * 60 + end_min
    if begin >= DAY_MIN or end > DAY_MIN or begin_min > 59 or end_min > 59:
        raise _bad(word, "there is no such time of day; the last one is 24:00")
    if begin == end:
        raise _bad(word, "it ends when it begins; a whole day is 00:00-24:00")
    return begin, end


def _bad(token: str, why: str) -> BadSpec:
    return BadSpec(f"schedule: {token!r}: {why}; for example: {EXAMPLE}")
