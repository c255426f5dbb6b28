"""A run that this machine only watches: its rounds and penalties are on the screens."""

from __future__ import annotations

from tests.tui.dashboard.canned import dashboard
from tests.tui.dashboard.screen import opened, press, text_of
from tests.tui.watched import watched
from tui.swarm.reducer import apply_all
from tui.swarm.snapshot import SwarmState


async def test_rounds_and_penalties_are_on_the_screens() -> None:
    app = dashboard(apply_all(SwarmState(), watched(2)))
    async with opened(app) as pilot:
        home = text_of(app)
        assert "2 of 40" in home
        assert "round 2" in home
        await press(pilot, "3")
        rounds = text_of(app)
        assert "peer-1" in rounds
        assert "LATE" in rounds
        assert "had nothing ready" in rounds


async def test_the_first_screen_shows_a_penalty_that_lasts() -> None:
    app = dashboard(apply_all(SwarmState(), watched(1)))
    async with opened(app):
        assert "LATE" in text_of(app)
        assert "until round 2" in text_of(app)
