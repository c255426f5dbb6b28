"""Traffic of a month is counted over restarts, crashes and new links, and forgotten when the month is over."""

from __future__ import annotations

import errno
import os
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from peer.node.limits.monthly_traffic import FILE, MonthlyTraffic, keeping
from peer.testing.child_process import HANG_S

NOVEMBER = datetime(2026, 11, 30, 23, 59, tzinfo=UTC).timestamp()
DECEMBER = NOVEMBER + 120


class Calendar:
    now = NOVEMBER

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def calendar() -> Calendar:
    return Calendar()


def test_a_link_tells_totals_and_each_byte_counts_once(tmp_path: Path, calendar: Calendar) -> None:
    traffic = MonthlyTraffic(tmp_path, calendar, UTC)
    for sent, received in ((10, 5), (10, 5), (100, 50)):
        traffic.note(sent, received)
    assert traffic.month_bytes == 150
    traffic.link_began()
    traffic.note(200, 0)
    assert traffic.month_bytes == 350


def test_it_survives_a_restart_and_a_crash(tmp_path: Path, calendar: Calendar) -> None:
    """What was kept last is on disk; a new process has a new link."""
    first = MonthlyTraffic(tmp_path, calendar, UTC)
    first.note(1000, 0)
    first.keep()
    again = MonthlyTraffic(tmp_path, calendar, UTC)
    assert again.month_bytes == 1000
    again.note(30, 0)
    again.keep()
    assert MonthlyTraffic(tmp_path, calendar, UTC).month_bytes == 1030
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_a_new_month_begins_at_nothing(tmp_path: Path, calendar: Calendar) -> None:
    """Also before anything is sent in it, and after a restart in it."""
    traffic = MonthlyTraffic(tmp_path, calendar, UTC)
    traffic.note(1000, 0)
    calendar.now = DECEMBER
    assert traffic.month_bytes == 0
    traffic.keep()
    assert MonthlyTraffic(tmp_path, calendar, UTC).month_bytes == 0
    traffic.note(1001, 0)
    assert traffic.month_bytes == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"month": "2026-11"}', '{"month": "2026-11", "bytes": "many"}'])
def test_a_damaged_file_counts_anew(tmp_path: Path, calendar: Calendar, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    traffic = MonthlyTraffic(tmp_path, calendar, UTC)
    assert traffic.month_bytes == 0
    traffic.note(5, 5)
    traffic.keep()
    assert MonthlyTraffic(tmp_path, calendar, UTC).month_bytes == 10


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_on_a_full_or_broken_disk_it_counts_on(
    tmp_path: Path, calendar: Calendar, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    traffic = MonthlyTraffic(tmp_path, calendar, UTC)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fail)
        traffic.note(5, 5)
        traffic.keep()
        traffic.note(50, 50)
        traffic.keep()
    assert traffic.month_bytes == 100
    traffic.keep()
    assert MonthlyTraffic(tmp_path, calendar, UTC).month_bytes == 100, "once it can be written it is kept"


def test_a_disk_that_hangs_holds_up_nobody_who_tells(
    tmp_path: Path, calendar: Calendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread waits for it; what it could not keep meanwhile it keeps afterwards, the end of the process included."""
    traffic = MonthlyTraffic(tmp_path, calendar, UTC)
    hangs, goes_on, fsync = threading.Event(), threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        hangs.set()
        assert goes_on.wait(HANG_S)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    with keeping(traffic):
        traffic.note(5, 5)
        assert hangs.wait(HANG_S)
        traffic.note(50, 50)
        assert traffic.month_bytes == 100
        goes_on.set()
    assert MonthlyTraffic(tmp_path, calendar, UTC).month_bytes == 100
