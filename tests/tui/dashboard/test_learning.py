"""The Learning screen: which charts, over what, and how much of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.tui.dashboard.canned import dashboard, peer_id, swarm_of, visit
from tests.tui.dashboard.screen import text_of
from tui.dashboard.screens.curves import LearningPanel
from tui.dashboard.widgets.chart import SeriesChart
from tui.swarm import figures
from tui.swarm.snapshot import SwarmState


@pytest.mark.slow
@pytest.mark.parametrize("size", [(60, 24), (200, 60)])
async def test_curves_are_named_with_marker_and_newest_value(size: tuple[int, int]) -> None:
    app = dashboard(swarm_of(3), me=peer_id(1))
    async with app.run_test(size=size) as pilot:
        await visit(pilot, "4")
        text = text_of(app)
    assert "o held-out 2.500" in text
    assert "+ training 2.600" in text
    assert "pseudo-gradient norm" in text
    assert "⠤" in text or "⠒" in text


async def test_with_room_all_four_charts_are_there() -> None:
    app = dashboard(swarm_of(3), me=peer_id(1))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "4")
        text = text_of(app)
    for fact in ("x mine 2.650", "+ median 9", "x mine 4", "+ swarm 450", "x mine 200", "x mine 0.0005"):
        assert fact in text


@pytest.mark.slow
async def test_l_n_t_r_hide_and_show_charts_but_the_last_one_stays() -> None:
    app = dashboard(swarm_of(3), me=peer_id(1))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "4", "n", "t", "r")
        text = text_of(app)
        assert "loss, lower is better" in text
        assert "tokens per second" not in text
        await visit(pilot, "l")
        assert "loss, lower is better" in text_of(app)
        await visit(pilot, "n", "t", "r")
        for title in ("loss  o held-out", "pseudo-gradient norm", "tokens per second", "learning rate"):
            assert title in text_of(app)


async def test_x_goes_over_tokens_rounds_and_time() -> None:
    app = dashboard(swarm_of(3), me=peer_id(1))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "4")
        assert "over tokens" in text_of(app)
        assert re.search(r"\b20(\.0)?k", text_of(app))
        await visit(pilot, "x")
        assert "over rounds" in text_of(app)
        await visit(pilot, "x")
        assert "over time" in text_of(app)
        assert "00:30" in text_of(app)
        await visit(pilot, "x")
        assert "over tokens" in text_of(app)


@pytest.mark.slow
async def test_brackets_show_the_newer_half_and_all_again() -> None:
    app = dashboard(swarm_of(3, rounds=64), me=peer_id(1))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "4", "x", "right_square_bracket", "right_square_bracket")
        assert "newest 1/4" in text_of(app)
        assert "10" not in text_of(app).splitlines()[20].split()
        await visit(pilot, "left_square_bracket")
        assert "newest 1/2" in text_of(app)
        await visit(pilot, "right_square_bracket", "g")
        assert "all of it" in text_of(app)


async def test_a_small_terminal_has_the_newest_values_in_words() -> None:
    app = dashboard(swarm_of(3), me=peer_id(1))
    async with app.run_test(size=(40, 12)) as pilot:
        await visit(pilot, "4")
        text = text_of(app)
    assert "held-out" in text
    assert "2.500" in text


async def test_less_room_than_charts_is_said() -> None:
    app = dashboard(swarm_of(3), me=peer_id(1))
    async with app.run_test(size=(80, 24)) as pilot:
        await visit(pilot, "4")
        assert "2 of 4 charts have room" in text_of(app)


async def test_without_a_peer_of_ones_own_it_is_the_selected_ones_curve() -> None:
    app = dashboard(swarm_of(3))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "3", "down", "4")
        assert "x peer-2 " in text_of(app)


async def test_nothing_yet_is_said() -> None:
    app = dashboard(SwarmState())
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "4", "x", "right_square_bracket", "g")
        assert "nothing yet" in text_of(app)


async def test_nothing_is_drawn_again_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    app = dashboard(swarm_of(3), me=peer_id(1))
    drawn: list[SeriesChart] = []
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "4")
        monkeypatch.setattr(SeriesChart, "draw", lambda chart, lines: drawn.append(chart))
        panel = app.query_one(LearningPanel)
        panel.show(replace(app.view(), now=app.view().now + 1.0))
        assert drawn == []
        panel.show(replace(app.view(), swarm=swarm_of(3, rounds=7)))
        assert len(drawn) == 4


def test_the_norm_is_the_median_of_each_round() -> None:
    assert [point.value for point in figures.tokens_norms(swarm_of(5))] == [10.0] * 6
