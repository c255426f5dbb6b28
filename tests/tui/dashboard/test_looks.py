"""Without colour, and without any character beyond ASCII."""

from __future__ import annotations

import pytest
from rich.segment import Segment

from tests.tui.dashboard.live import RECORDING
from tests.tui.dashboard.screen import lines_of, opened, press, text_of
from tui.dashboard.app import Dashboard
from tui.dashboard.appearance import UNICODE, draw_bar, draw_spark, to_ascii
from tui.sources.replay import RecordingSource

KEYS = ("1", "2", "enter", "3", "4", "5", "6", "7", "question_mark", "escape", "ctrl+p")


def is_grey(segment: Segment) -> bool:
    colours = [segment.style.color, segment.style.bgcolor] if segment.style else []
    triplets = [colour.triplet for colour in colours if colour is not None and colour.triplet is not None]
    return all(max(triplet) - min(triplet) <= 1 for triplet in triplets)


@pytest.mark.slow
async def test_mono_has_no_colour_on_any_screen() -> None:
    app = Dashboard(RecordingSource(RECORDING), clock=lambda: 0.0, mono=True)
    async with opened(app) as pilot:
        for key in KEYS:
            await press(pilot, key)
            assert [segment for line in lines_of(app) for segment in line if not is_grey(segment)] == [], key


async def test_no_color_is_mono(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = Dashboard(RecordingSource(RECORDING), clock=lambda: 0.0)
    async with opened(app):
        assert [segment for line in lines_of(app) for segment in line if not is_grey(segment)] == []


async def test_the_usual_theme_has_colour() -> None:
    app = Dashboard(RecordingSource(RECORDING), clock=lambda: 0.0)
    async with opened(app):
        assert [segment for line in lines_of(app) for segment in line if not is_grey(segment)] != []


@pytest.mark.slow
async def test_ascii_has_nothing_else_on_any_screen() -> None:
    app = Dashboard(RecordingSource(RECORDING), clock=lambda: 0.0, ascii_only=True)
    async with opened(app) as pilot:
        for key in (*KEYS, "escape", "p"):
            await press(pilot, key)
            assert [line for line in text_of(app).splitlines() if not line.isascii()] == [], key


def test_ascii_keeps_the_cells_of_any_text() -> None:
    assert to_ascii("│▒ Σ → … 6.2σ") == "|# + > . 6.2s"
    assert to_ascii("火 é") == "?? ?"


def test_a_sparkline_is_as_wide_as_its_values_or_the_room() -> None:
    assert draw_spark([1.0, 2.0, 3.0], 10, UNICODE) == "▁▅█"
    assert len(draw_spark([float(value) for value in range(100)], 10, UNICODE)) == 10
    assert draw_spark([5.0, 5.0], 10, UNICODE) == "▁▁"
    assert draw_spark([], 10, UNICODE) == draw_spark([1.0], 0, UNICODE) == ""


@pytest.mark.parametrize(("share", "done"), [(0.0, 0), (0.5, 5), (1.0, 10), (7.0, 10), (-1.0, 0)])
def test_a_bar_is_never_longer_than_its_room(share: float, done: int) -> None:
    full, rest = draw_bar(share, 10, UNICODE)
    assert (len(full), len(rest)) == (done, 10 - done)
