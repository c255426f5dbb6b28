"""A peer's forecast in words: how long the round takes, whether its part will be in time, and what helps if not."""

from __future__ import annotations

from peer.events import RoundForecast
from tui.output.plain import format_seconds


def length_words(forecast: RoundForecast) -> str:
    """about 62 s, nine in ten between 55 s and 70 s"""
    between = f"between {format_seconds(forecast.low_s)} and {format_seconds(forecast.high_s)}"
    return f"about {format_seconds(forecast.expected_s)}, nine in ten {between}"


def length_brief(forecast: RoundForecast) -> str:
    """about 62 s (55 s to 70 s)"""
    low, high = format_seconds(forecast.low_s), format_seconds(forecast.high_s)
    return f"about {format_seconds(forecast.expected_s)} ({low} to {high})"


def margin_words(forecast: RoundForecast) -> str:
    """its part will be in time by 12 s; or that it will be late, or too early to say."""
    if forecast.late_s is None:
        return "too early to say whether its part will be in time"
    if forecast.late_s > 0:
        return f"its part will be {format_seconds(forecast.late_s)} late"
    narrow = "only " if forecast.advice else ""
    return f"its part will be in time by {narrow}{format_seconds(-forecast.late_s)}"


def margin_brief(forecast: RoundForecast) -> str:
    """The same in a few cells: 12 s to spare, 3 s late, margin unknown."""
    if forecast.late_s is None:
        return "margin unknown"
    word = "late" if forecast.late_s > 0 else "to spare"
    return f"{format_seconds(abs(forecast.late_s))} {word}"


def before_words(forecast: RoundForecast) -> str:
    """round 12 took 61 s (60 s foretold)"""
    took = f"round {forecast.round - 1} took {format_seconds(forecast.took_s)}"
    return f"{took} ({format_seconds(forecast.foretold_s)} foretold)" if forecast.foretold_s is not None else took
