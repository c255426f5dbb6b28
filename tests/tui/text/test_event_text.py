"""What holds a peer up, and a forecast, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.schema.events import RoundForecast, RoundStalled
from tui.text.event_text import (
    PauseReason,
    PeerStatus,
    before_words,
    clock,
    duty_words,
    hold_words,
    length_brief,
    length_words,
    margin_brief,
    margin_words,
    next_snooze_h,
    next_words,
    read_status,
    stall_brief,
)

NOW = 1_800_000_000.0
"""Friday, 2027-01-15, 08:00 UTC."""
TEXT = st.text("aZ0 \x1b\n\u202e", max_size=8)
ROW = st.fixed_dictionaries({}, optional={"code": TEXT, "why": TEXT, "until": st.none() | st.floats()})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4) | ROW,
    max_leaves=20,
)


pytestmark = pytest.mark.usefixtures("greenwich")


@pytest.mark.slow
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("until", "holds", "duty", "settings"), JSON)))
def test_whatever_a_peer_answers_is_a_status(fields: dict[str, Any]) -> None:
    status = read_status(fields)
    assert 0 <= status.duty <= 1
    for hold in status.holds:
        assert hold_words(hold, NOW) is not None
        assert hold.why.isprintable()


def test_an_answer_is_read() -> None:
    row = {"code": "SCHEDULE", "why": "outside its hours", "until": NOW + 60}
    status = read_status({"holds": [row], "until": NOW + 60, "duty": 0.5, "settings": {"nice": 3}})
    assert status.holds == (PauseReason(code="SCHEDULE", why="outside its hours", until=NOW + 60),)
    assert (status.until, status.duty, dict(status.settings)) == (NOW + 60, 0.5, {"nice": 3})
    assert status.hold("SCHEDULE") == status.holds[0]
    assert status.hold("IDLE") is None


@pytest.mark.parametrize(
    ("after_h", "words"), [(2, "10:00"), (20, "Sat 04:00"), (72, "Mon 08:00"), (24 * 30, "2027-02-14 08:00")]
)
def test_a_moment_on_the_clock(after_h: int, words: str) -> None:
    assert clock(NOW + 3600 * after_h, NOW) == words


@pytest.mark.parametrize(
    ("why", "until", "words"),
    [
        ("its schedule has it rest now", NOW + 3600, "its schedule has it rest now; until 09:00"),
        ("outside its hours; trains again at 09:00", NOW + 3600, "outside its hours; trains again at 09:00"),
        ("somebody uses this machine", None, "somebody uses this machine"), ("", NOW + 60, "until 08:01"),
    ],
)  # fmt: skip
def test_a_reason_with_its_end(why: str, until: float | None, words: str) -> None:
    assert hold_words(PauseReason(code="X", why=why, until=until), NOW) == words


@pytest.mark.parametrize(
    ("holds", "until", "words"),
    [
        ((), None, ""),
        (
            (PauseReason(code="IDLE", why="somebody uses it"),),
            None,
            "trains again by itself as soon as nothing holds it up",
        ),
        ((PauseReason(code="PAUSED", why="paused"),), None, "trains again when it is told to: homefires resume"),
        ((PauseReason(code="PAUSED", why="paused; resume with: homefires resume"),), None, ""),
        ((PauseReason(code="MEMORY", why="too much; it goes on when it takes less"),), None, ""),
        ((PauseReason(code="QUOTA", why="used up"),), NOW + 7200, "trains again at 10:00"),
        ((PauseReason(code="SNOOZED", why="snoozed until 10:00"),), NOW + 7200, ""),
    ],
)
def test_when_it_trains_again(holds: tuple[PauseReason, ...], until: float | None, words: str) -> None:
    """Nothing is said twice."""
    assert next_words(PeerStatus(paused=True, holds=holds, until=until), NOW) == words


def test_a_snooze_says_until_when_and_how_it_is_ended_sooner() -> None:
    hold = PauseReason(code="SNOOZED", why="its owner has it snooze", until=NOW + 3600)
    assert hold_words(hold, NOW) == "snoozed until 09:00; sooner with: homefires resume"


def test_how_much_it_computes_and_for_what() -> None:
    assert duty_words(PeerStatus()) == ""
    asked = {"max_temperature_c": 75.0, "max_power_w": 0.0}
    assert duty_words(PeerStatus(duty=0.62, settings=asked)) == "computes 62 % of the time, to stay at or below 75 °C"
    hold = PauseReason(code="POWER", why="it rests")
    assert duty_words(PeerStatus(duty=0.5, settings=asked, holds=(hold,))) == "computes 50 % of the time"
    assert next_words(PeerStatus(duty=0.5, holds=(hold,)), NOW) == ""
    both = {"max_temperature_c": 75.0, "max_power_w": 180}
    assert duty_words(PeerStatus(duty=0.5, settings=both)).endswith("at or below 75 °C and 180 W")


@pytest.mark.parametrize(
    ("left_s", "hours"), [(-5, 1), (0, 1), (1800, 1), (3600, 3), (3541, 3), (10_800, 8), (7200, 3), (28_800, 1)]
)
def test_snoozing_again_is_longer_and_then_short_again(left_s: float, hours: int) -> None:
    assert next_snooze_h(left_s) == hours


FORECAST = RoundForecast(round=13, expected_s=62.0, low_s=55.0, high_s=135.0, took_s=61.2, foretold_s=60.0)


def test_a_round_has_a_length_an_interval_and_a_fact_beside_it() -> None:
    assert length_words(FORECAST) == "about 62 s, nine in ten between 55 s and 02:15"
    assert length_brief(FORECAST) == "about 62 s (55 s to 02:15)"
    assert before_words(FORECAST) == "round 12 took 61 s (60 s foretold)"
    assert before_words(replace(FORECAST, foretold_s=None)) == "round 12 took 61 s"


@pytest.mark.parametrize(
    ("late_s", "advice", "words", "brief"),
    [
        (None, "", "too early to say whether its part will be in time", "margin unknown"),
        (-12.0, "", "its part will be in time by 12 s", "12 s to spare"),
        (-1.0, "a", "its part will be in time by only 1 s", "1 s to spare"),
        (3.5, "a", "its part will be 3.5 s late", "3.5 s late"),
    ],
)
def test_the_margin_is_late_or_to_spare(late_s: float | None, advice: str, words: str, brief: str) -> None:
    forecast = replace(FORECAST, late_s=late_s, advice=advice)
    assert (margin_words(forecast), margin_brief(forecast)) == (words, brief)


def test_a_short_line_says_who_is_not_heard() -> None:
    why = "round 7 stands still after 3 ballots; 1 of 3 voters are heard; not heard: anna, bob"
    stalled = RoundStalled(round=6, ballots=3, rule="", about="", why=why)
    assert stall_brief(stalled, "") == "anna, bob not heard: round 7 stands still"
