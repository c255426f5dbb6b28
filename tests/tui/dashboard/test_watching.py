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
        assert "nobody counted for less" in rounds


async def test_who_had_nothing_to_give_is_idle_and_not_penalised() -> None:
    app = dashboard(apply_all(SwarmState(), watched(1)))
    async with opened(app) as pilot:
        assert "LATE" not in text_of(app)
        await press(pilot, "6")
        assert "had nothing to give to round 1" in text_of(app)
