"""A run that this machine only watches: its rounds and penalties are on the screens."""

from __future__ import annotations

from peer.schema.events import EventLine, PeerStateChanged
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


async def test_before_anybody_is_seen_it_says_what_is_waited_for() -> None:
    waits = PeerStateChanged(state="JOINING", why="waiting for 3 more of 3 first peers")
    app = dashboard(apply_all(SwarmState(), [EventLine(seq=0, t=1.0, run="r", peer="", event=waits)]))
    async with opened(app):
        assert "waiting for 3 more of 3 first peers" in text_of(app)
        assert "no peer has been seen yet" not in text_of(app)


async def test_while_nobody_has_said_a_word_every_screen_says_why() -> None:
    """As a demo begins: its peers start for some seconds."""
    app = dashboard(SwarmState())
    async with opened(app) as pilot:
        for key in "1234567":
            await press(pilot, key)
            assert "waiting for the first word of a peer: one needs some seconds to start" in text_of(app)
