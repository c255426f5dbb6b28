"""A round that stands still: every screen says by which rule whose message was refused, until the next commit."""

from __future__ import annotations

import pytest

from peer.schema.events import PeerStateChanged, RoundCommitted
from tests.tui.dashboard.canned import dashboard
from tests.tui.dashboard.live import Attached, recorded, stalling
from tests.tui.dashboard.screen import opened, press, text_of
from tui.dashboard.app import SCREENS, Dashboard
from tui.swarm.reducer import apply_all
from tui.swarm.snapshot import SwarmState


def shown(source: Attached) -> Dashboard:
    return Dashboard(source, clock=lambda: source.now_s)


@pytest.mark.parametrize("size", [(40, 12), (200, 60)])
async def test_every_screen_names_rule_and_author_in_its_header(size: tuple[int, int]) -> None:
    app = shown(stalling())
    async with opened(app, size=size) as pilot:
        for screen in SCREENS:
            app.action_show(screen)
            await press(pilot)
            header = "\n".join(text_of(app).splitlines()[:3])
            assert "TIME refuses " in header, screen
            assert "peer-1" in header, screen
            assert max(map(len, text_of(app).splitlines())) <= size[0]


async def test_home_and_rounds_say_it_in_whole() -> None:
    app = shown(stalling())
    async with opened(app, size=(80, 30)) as pilot:
        home = text_of(app)
        await press(pilot, "3")
        rounds = text_of(app)
    assert all("ahead of this machine's clock" in " ".join(text.split()) for text in (home, rounds))
    assert "homefires explain TIME" in rounds
    assert "Penalties" in rounds


async def test_what_is_missing_is_said_where_nothing_was_refused() -> None:
    app = shown(stalling(rule=""))
    async with opened(app, size=(120, 40)) as pilot:
        assert "stands still after 3 ballots: 1 of 2 voters answered" in text_of(app)
        await press(pilot, "3")
        assert "homefires explain" not in text_of(app)
    async with opened(shown(stalling(rule="")), size=(40, 12)) as pilot:
        assert "voters are missing" in text_of(pilot.app)  # type: ignore[arg-type]


async def test_the_next_commit_ends_it() -> None:
    source = stalling()
    done = next(line.event for line in recorded() if isinstance(line.event, RoundCommitted))
    source.tell(RoundCommitted(**vars(done) | {"round": source.swarm.round + 1, "digest": "ff"}))
    async with opened(shown(source)) as pilot:
        await press(pilot, "3")
        assert "stands still" not in text_of(pilot.app)  # type: ignore[arg-type]


async def test_a_recording_without_a_peer_of_mine_says_it_too() -> None:
    source = stalling()
    async with opened(dashboard(source.swarm)) as pilot:
        assert "TIME refuses peer-1 (UMQ9o9): round 8 stands still" in text_of(pilot.app)  # type: ignore[arg-type]


async def test_who_is_gone_says_nothing_more() -> None:
    source = stalling()
    source.tell(PeerStateChanged(state="GONE", why="left"))
    assert source.swarm.stalled is None
    assert apply_all(SwarmState(), recorded()).stalled is None
