"""Any terminal: from one cell to a wall."""

from __future__ import annotations

import random

import pytest

from tests.tui.dashboard.live import RECORDING, Attached
from tests.tui.dashboard.screen import opened, press, text_of
from tui.dashboard.app import Dashboard
from tui.sources.replay import RecordingSource

pytestmark = pytest.mark.slow

SIZES = [(1, 1), (8, 4), (40, 12), (59, 24), (80, 23), (120, 40), (200, 60)]


@pytest.mark.parametrize(
    ("size", "live"),
    [(size, number % 3 > 0) for number, size in enumerate(SIZES, start=1)],
    ids=lambda value: "live" if value is True else "recording" if value is False else "x".join(map(str, value)),
)
async def test_every_screen_is_drawn_at_every_size(size: tuple[int, int], live: bool) -> None:
    source = Attached()
    app = Dashboard(source if live else RecordingSource(RECORDING), clock=lambda: source.now_s)
    async with opened(app, size=size) as pilot:
        await pilot.press(*"1234567", "2", "enter", "question_mark", "escape", "ctrl+p", "escape", "p", "z")
        await press(pilot, "7", "down", "enter", "9", "enter", "escape")
        lines = text_of(app).split("\n")
        assert len(lines) == size[1]
        assert max(len(line) for line in lines) <= size[0]


async def test_a_storm_of_resizes_on_every_screen() -> None:
    source = Attached()
    app = Dashboard(source, clock=lambda: source.now_s)
    dice = random.Random(7)
    async with opened(app) as pilot:
        for number in range(21):
            await pilot.press(str(1 + number % 7))
            await pilot.resize_terminal(dice.randint(1, 220), dice.randint(1, 70))
        await pilot.resize_terminal(120, 40)
        await press(pilot, "1")
        assert "peer-2" in text_of(app)
        assert len(text_of(app).splitlines()) == 40


@pytest.mark.parametrize(("size", "charts"), [((80, 33), False), ((80, 34), True)])
async def test_a_low_terminal_loses_its_charts_first(size: tuple[int, int], charts: bool) -> None:
    app = Dashboard(RecordingSource(RECORDING), clock=lambda: 0.0)
    async with opened(app, size=size):
        assert ("┤" in text_of(app)) is charts
