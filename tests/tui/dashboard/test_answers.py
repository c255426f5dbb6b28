"""The bar of the dashboard: whoever has only the recording can answer from the screens what happened, and why."""

from __future__ import annotations

import pytest

from tests.tui.dashboard.live import RECORDING, recorded
from tests.tui.dashboard.screen import opened, press, text_of
from tui.dashboard.app import Dashboard
from tui.sources.replay import RecordingSource
from tui.swarm.reducer import apply_all
from tui.swarm.snapshot import WEIGHT_ONE, PenaltyRecord, SwarmState
from tui.text.units import format_percent

pytestmark = pytest.mark.slow

SIZE = (140, 70)


@pytest.fixture(name="swarm", scope="module")
def fixture_swarm() -> SwarmState:
    return apply_all(SwarmState(), recorded())


def first(swarm: SwarmState, code: str) -> PenaltyRecord:
    return next(penalty for penalty in swarm.penalty_log if penalty.code == code)


def weight_of(late: PenaltyRecord, swarm: SwarmState) -> str:
    """What it weighed, and what it would have by its tokens."""
    done = next(view for view in swarm.history if view.round == late.imposed_in)
    weight = done.weights[late.about] / WEIGHT_ONE
    return f"weighed {format_percent(weight)}, by tokens {format_percent(done.counted[late.about] / done.tokens)}"


def words_of(text: str) -> str:
    """The text without the line breaks and columns of the screen."""
    return " ".join(text.split())


async def rounds_screen() -> str:
    app = Dashboard(RecordingSource(RECORDING), clock=lambda: 0.0)
    async with opened(app, size=SIZE) as pilot:
        await press(pilot, "3")
        return words_of(text_of(app))


async def page_of(swarm: SwarmState, peer: str) -> str:
    app = Dashboard(RecordingSource(RECORDING), clock=lambda: 0.0)
    async with opened(app, size=SIZE) as pilot:
        await press(pilot, "2", "slash", *swarm.label(peer), "enter", "enter")
        return words_of(text_of(app))


async def test_the_rounds_screen_says_who_was_late_by_how_much_and_what_it_cost(swarm: SwarmState) -> None:
    late = first(swarm, "LATE")
    text = await rounds_screen()
    assert f"round {late.imposed_in} {swarm.label(late.about)} LATE counts {100 * late.factor:.0f} %" in text
    assert late.evidence in text
    assert weight_of(late, swarm) in text


async def test_the_rounds_screen_says_which_layer_was_anomalous_and_when_the_penalty_ends(swarm: SwarmState) -> None:
    anomaly = first(swarm, "ANOMALY")
    text = await rounds_screen()
    assert f"round {anomaly.imposed_in} {swarm.label(anomaly.about)} ANOMALY" in text
    assert anomaly.layer in text
    assert anomaly.evidence in text
    assert f"round {anomaly.until_round}" in text


async def test_the_page_of_the_late_peer_says_by_how_much_and_what_it_cost(swarm: SwarmState) -> None:
    late = first(swarm, "LATE")
    text = await page_of(swarm, late.about)
    assert f"LATE round {late.imposed_in} counts {100 * late.factor:.0f} %, over since round {late.until_round}" in text
    assert late.evidence in text
    assert weight_of(late, swarm) in text


async def test_the_page_of_the_anomalous_peer_says_which_layer_and_until_when(swarm: SwarmState) -> None:
    anomaly = first(swarm, "ANOMALY")
    text = await page_of(swarm, anomaly.about)
    assert f"ANOMALY round {anomaly.imposed_in}" in text
    assert f"{anomaly.layer}: {anomaly.evidence}" in text
    assert f"over since round {anomaly.until_round}" in text


async def test_while_a_penalty_lasts_it_is_on_the_first_screen_with_its_end(swarm: SwarmState) -> None:
    anomaly = first(swarm, "ANOMALY")
    recording = RecordingSource(RECORDING)
    app = Dashboard(recording, clock=lambda: 0.0)
    async with opened(app, size=SIZE) as pilot:
        told = next(number for number, line in enumerate(recorded(), start=1) if line.t >= anomaly.t)
        recording.seek(told + 1)
        app.tick()
        await press(pilot, "1")
        text = words_of(text_of(app))
        assert f"ANOMALY {swarm.label(anomaly.about)} counts {100 * anomaly.factor:.0f} %" in text
        assert f"until round {anomaly.until_round} (1 left)" in text
