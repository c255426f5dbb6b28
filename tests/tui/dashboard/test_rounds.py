"""The Rounds screen: lanes, the cursor over them, and how lanes and penalties share the room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tui.dashboard.canned import START, Canned, dashboard, peer_id, penalty, swarm_of, visit
from tests.tui.dashboard.screen import text_of
from tui.dashboard.appearance import MONO
from tui.dashboard.screens.rounds import RoundsPanel, share_rows
from tui.dashboard.widgets.penalties import Penalties
from tui.dashboard.widgets.waterfall import Waterfall
from tui.swarm.snapshot import SwarmState

SIZES = [(40, 12), (80, 24), (200, 60)]


def lane_of(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if name in line and "▒" in line)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
async def test_every_size_shows_lanes_with_the_volunteers_own_on_top(size: tuple[int, int]) -> None:
    app = dashboard(swarm_of(6, penalties=[penalty()]), me=peer_id(3))
    async with app.run_test(size=size) as pilot:
        await visit(pilot, "3")
        text = text_of(app)
    names = [line.split()[1] if "▸" in line else line.split()[0] for line in text.splitlines() if "▓↑" in line]
    assert names[0] == "peer-3"
    assert names[1] == "peer-1"
    assert "peer-2" in text or size[1] < 24
    assert max(len(line) for line in text.splitlines()) <= size[0]


async def test_late_shows_in_its_lane_at_its_round_and_nowhere_else() -> None:
    app = dashboard(swarm_of(3))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3")
        text = text_of(app)
    late, ticks = lane_of(text, "peer-2"), next(line for line in text.splitlines() if "│3" in line)
    assert late.index("!") == ticks.index("│3") - 2
    assert "!" not in lane_of(text, "peer-1") + lane_of(text, "peer-3")


@pytest.mark.slow
async def test_the_cursor_tells_peer_phase_round_duration_and_what_it_cost() -> None:
    swarm = swarm_of(3, penalties=[penalty()])
    app = dashboard(swarm, me=peer_id(1))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3", "down", *["left"] * 36)
        text = text_of(app)
        assert "00:29  peer-2 is late · round 3 · 2 s · LATE, 12 of 24 parts came in time, counts 50 %" in text
        assert "held" in text
        await visit(pilot, "G")
        assert "following" in text_of(app)
        assert "01:05  peer-2 trains · round 7 · 5 s" in text_of(app)


async def test_g_goes_to_the_beginning_and_left_stops_there() -> None:
    app = dashboard(swarm_of(2, rounds=40))
    async with app.run_test(size=(80, 24)) as pilot:
        await visit(pilot, "3", "g")
        assert app.query_one(Waterfall).axis.start_t == START
        assert "00:00  peer-1 trains" in text_of(app)
        await visit(pilot, "left", "shift+left")
        assert app.query_one(Waterfall).axis.start_t == START


@pytest.mark.slow
async def test_right_of_the_newest_column_it_follows_again() -> None:
    app = dashboard(swarm_of(2))
    async with app.run_test(size=(80, 24)) as pilot:
        await visit(pilot, "3", "left", "left")
        assert "held" in text_of(app)
        await visit(pilot, "right", "right", "right")
        assert "following" in text_of(app)
        await visit(pilot, "shift+left", "shift+right", "shift+right")
        assert "following" in text_of(app)


@pytest.mark.slow
async def test_zoom_keeps_what_the_cursor_is_on() -> None:
    app = dashboard(swarm_of(3))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3", "down", *["left"] * 36, "right_square_bracket")
        assert "0.5 s a column" in text_of(app)
        assert "peer-2 is late · round 3" in text_of(app)
        await visit(pilot, "left_square_bracket", "left_square_bracket")
        assert "2 s a column" in text_of(app)
        assert "peer-2 is late · round 3" in text_of(app)


async def test_a_held_axis_stays_while_time_goes_on() -> None:
    source = Canned(swarm_of(2))
    app = dashboard(source.swarm)
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3", "left")
        held = app.query_one(Waterfall).axis
        later = replace(app.view(), now=app.view().now + 100.0)
        app.query_one(Waterfall).show(later)
        assert app.query_one(Waterfall).axis == held
        await visit(pilot, "G")
        assert app.query_one(Waterfall).axis.end_t > held.end_t - 1.0


@pytest.mark.slow
async def test_an_older_view_that_is_drawn_again_does_not_move_the_cursor_back() -> None:
    app = dashboard(swarm_of(6), me=peer_id(1))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3", "down", "down")
        app.query_one(RoundsPanel).redraw()
        await pilot.pause()
        assert "peer-3 trains" in text_of(app)
        assert app.view().selected == peer_id(3)


async def test_up_and_down_select_a_peer_and_enter_opens_it() -> None:
    app = dashboard(swarm_of(30), me=peer_id(7))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3", "j", "j", "k", "pagedown", "pageup", "pagedown")
        assert app.view().selected == peer_id(12)
        await visit(pilot, "enter")
        assert app.query_one("#panels").current == "peer"  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_with_more_peers_than_lines_the_chosen_one_and_me_are_in_sight() -> None:
    app = dashboard(swarm_of(200), me=peer_id(150))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3", *["pagedown"] * 9)
        text = text_of(app)
    lanes = [line for line in text.splitlines() if "▓↑" in line]
    assert "peer-150" in lanes[0]
    assert any("peer-90 " in lane for lane in lanes)


async def test_nobody_known_yet_is_said() -> None:
    app = dashboard(SwarmState())
    async with app.run_test(size=(80, 24)) as pilot:
        await visit(pilot, "3", "left", "right", "down", "enter", "g", "G", "right_square_bracket")
        assert "nobody is known yet" in text_of(app)
        assert "nobody counted for less" in text_of(app)


async def test_tab_goes_to_the_penalties_and_back() -> None:
    app = dashboard(swarm_of(3, penalties=[penalty()]))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3")
        assert isinstance(app.focused, Waterfall)
        await visit(pilot, "tab")
        assert isinstance(app.focused, Penalties)
        await visit(pilot, "shift+tab")
        assert isinstance(app.focused, Waterfall)


async def test_ascii_lanes_have_only_ascii_and_tell_the_same() -> None:
    app = dashboard(swarm_of(3, penalties=[penalty()]), me=peer_id(1), ascii_only=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3")
        text = text_of(app)
    assert text.isascii()
    assert "#^" in text.replace("=", "")
    assert "!" in next(line for line in text.splitlines() if line.strip().startswith("peer-2"))


async def test_mono_draws_without_any_colour_of_its_own() -> None:
    app = dashboard(swarm_of(3, penalties=[penalty()]), mono=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3")
        assert app.view().ink == MONO
        assert "!" in lane_of(text_of(app), "peer-2")


async def test_a_name_in_wide_characters_or_markup_keeps_lanes_aligned() -> None:
    swarm = swarm_of(2)
    odd = replace(swarm.peers[peer_id(2)], name="[b]家火家火家火家火")
    app = dashboard(replace(swarm, peers={**swarm.peers, odd.peer: odd}))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3")
        lines = [line for line in text_of(app).splitlines() if "▓↑" in line]
    assert "[b]家火" in "".join(lines)
    assert "TRAINING" in lines[0]
    assert "TRAINING" in lines[1]


@pytest.mark.parametrize(
    ("height", "lanes", "penalties", "focused", "rows"),
    [(40, 10, 5, False, 10), (40, 204, 5, False, 35), (40, 204, 99, False, 24), (40, 204, 99, True, 16),
     (10, 9, 9, False, 7), (13, 8, 3, False, 8), (10, 9, 9, True, 1), (1, 9, 9, False, 1)],
)  # fmt: skip
def test_how_lanes_and_penalties_share_the_lines(
    height: int, lanes: int, penalties: int, focused: bool, rows: int
) -> None:
    assert share_rows(height, lanes, penalties, focused) == rows
