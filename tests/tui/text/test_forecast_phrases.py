"""A forecast in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.events import RoundForecast
from tui.text.phrases import before_words, length_brief, length_words, margin_brief, margin_words

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
