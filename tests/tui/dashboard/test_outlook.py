"""Whether my part of the round will be in time: on the Rounds screen, and on the first one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.schema.events import PeerStateChanged
from tests.tui.dashboard.live import LATE_ADVICE, Attached, foretelling
from tests.tui.dashboard.screen import lines_of, opened, press, text_of
from tui.dashboard.app import Dashboard
from tui.swarm.snapshot import SwarmState


def shown(source: Attached) -> Dashboard:
    return Dashboard(source, clock=lambda: source.now_s)


def round_of(source: Attached) -> int:
    return source.swarm.peers[source.me].round + 1


async def test_a_round_is_foretold_beside_what_the_last_one_took() -> None:
    source = foretelling(-12.0)
    app = shown(source)
    async with opened(app) as pilot:
        await press(pilot, "3")
        text = text_of(app)
    number = round_of(source)
    assert f"Round {number} about 62 s, nine in ten between 55 s and 71 s · " in text
    assert "so far" in text
    assert "its part will be in time by 12 s" in text
    assert f"round {number - 1} took 61 s (60 s foretold)" in text


async def test_who_will_be_late_reads_what_helps() -> None:
    app = shown(foretelling(3.0, LATE_ADVICE))
    async with opened(app, size=(80, 24)) as pilot:
        first = text_of(app)
        await press(pilot, "3")
        second = text_of(app)
    assert "3 s late" in first
    assert "min_step_s is 2 s" in first
    assert "its part will be 3 s late" in second
    assert LATE_ADVICE in second


@pytest.mark.slow
@pytest.mark.parametrize(("size", "late_s"), [((40, 12), -12.0), ((40, 12), 3.0), ((80, 24), 3.0), ((120, 40), -12.0)])
async def test_lanes_and_penalties_keep_their_room(size: tuple[int, int], late_s: float) -> None:
    """On the smallest screen only what needs a look takes a line."""
    app = shown(foretelling(late_s, LATE_ADVICE if late_s > 0 else ""))
    async with opened(app, size=size) as pilot:
        await press(pilot, "3")
        text = text_of(app)
    assert max(map(len, text.splitlines())) <= size[0]
    assert "Penalties" in text
    assert "peer-2" in text
    assert "▒" in text
    assert ("late" in text.splitlines()[2]) == (size == (40, 12) and late_s > 0)


@pytest.mark.parametrize("late_s", [-12.0, 3.0])
async def test_the_smallest_first_screen_says_only_what_needs_a_look(late_s: float) -> None:
    app = shown(foretelling(late_s, LATE_ADVICE if late_s > 0 else ""))
    async with opened(app, size=(40, 12)):
        assert ("forecast  3 s late" in text_of(app)) == (late_s > 0)


async def test_before_lateness_is_known_that_is_said() -> None:
    app = shown(foretelling(None))
    async with opened(app) as pilot:
        assert "forecast    margin unknown · about 62 s (55 s to 71 s)" in text_of(app)
        await press(pilot, "3")
        assert "too early to say whether its part will be in time" in text_of(app)


async def test_a_peer_that_rests_foretells_nothing() -> None:
    source = foretelling(3.0, LATE_ADVICE)
    source.tell(PeerStateChanged(state="PAUSED", why="its owner paused it"))
    app = shown(source)
    async with opened(app) as pilot:
        assert "forecast" not in text_of(app)
        await press(pilot, "3")
        assert "nine in ten" not in text_of(app)


async def test_a_round_that_lasts_longer_than_foretold_is_marked() -> None:
    source = foretelling(-12.0)
    source.now_s = max(source.now_s, source.swarm.history[-1].t + 80.0)
    app = shown(source)
    async with opened(app) as pilot:
        await press(pilot, "3")
        assert "80 s so far" in text_of(app)
        pieces = [segment for line in lines_of(app) for segment in line if "so far" in segment.text]
        assert pieces[0].style is not None
        assert pieces[0].style.color is not None
        assert pieces[0].style.color.name == app.view().ink.warn


async def test_who_watches_sees_what_the_selected_peer_foretells() -> None:
    source = foretelling(3.0, LATE_ADVICE)
    peer, source.me = source.me, ""
    source.swarm = reordered(source.swarm, peer)
    app = shown(source)
    async with opened(app) as pilot:
        await press(pilot, "3")
        text = text_of(app)
    assert "its part will be 3 s late" in text
    assert f"Round {source.swarm.peers[peer].round + 1} for peer-2 about 62 s" in text


def reordered(swarm: SwarmState, first: str) -> SwarmState:
    """With this peer first, which is then selected."""
    return replace(swarm, peers={first: swarm.peers[first], **swarm.peers})
