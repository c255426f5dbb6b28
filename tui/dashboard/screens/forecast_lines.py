"""What my peer expects of the round that it trains for: how long it takes, beside how long the last one took, and
whether its part will be in time."""

from __future__ import annotations

import textwrap

from rich.text import Text

from peer.events import RoundForecast
from tui.dashboard.view import View
from tui.dashboard.widgets.facts import FactSheet
from tui.dashboard.widgets.lines import StyledLine, cut
from tui.output.plain import format_seconds
from tui.swarm.snapshot import PeerView
from tui.text.forecast_phrases import before_words, length_brief, length_words, margin_brief, margin_words

MOST_ADVICE = 2
"""Lines of what helps."""


def draw_outlook(view: View, width: int, *, roomy: bool) -> list[Text]:
    """Above the lanes, of my peer or without one of mine of the selected one: a line on the round, one on the margin,
    and what helps. Where there is no room only what is late, or nearly so, has a line."""
    peer = view.mine or view.swarm.peers.get(view.selected)
    forecast = peer.expected if peer is not None else None
    if peer is None or forecast is None or not (roomy or forecast.advice):
        return []
    words, style = margin_words(forecast), _style(forecast, view)
    if not roomy:
        return [_line([(f"{view.glyphs.alert} round {forecast.round}: {words}", style)], width, view)]
    dot = f" {view.glyphs.dot} "
    whose = f" for {peer.label}" if view.mine is None else ""
    head: StyledLine = [
        (f"Round {forecast.round}{whose}", view.ink.strong),
        (f" {length_words(forecast)}", view.ink.text),
    ]
    if (so_far := _so_far(view, forecast)) is not None:
        over = so_far > forecast.high_s
        head.append((f"{dot}{format_seconds(so_far)} so far", view.ink.warn if over else view.ink.muted))
    margin: StyledLine = [("  ", ""), (words, style), (f"{dot}{before_words(forecast)}", view.ink.muted)]
    lines = [_line(head, width, view), _line(margin, width, view)]
    for text in textwrap.wrap(forecast.advice, max(20, width - 2))[:MOST_ADVICE]:
        lines.append(_line([("  ", ""), (text, view.ink.warn)], width, view))
    return lines


def add_outlook(sheet: FactSheet, view: View, mine: PeerView) -> None:
    """The same on the first screen; on the smallest page only what needs a look."""
    forecast = mine.expected
    if forecast is None or (view.mini and not forecast.advice):
        return
    sheet.row("forecast", (margin_brief(forecast), _style(forecast, view)), length_brief(forecast))
    if forecast.advice and not view.mini:
        sheet.prose("", forecast.advice, view.ink.warn)


def _so_far(view: View, forecast: RoundForecast) -> float | None:
    """Whole seconds since the round before was committed; None if that was not told."""
    last = view.swarm.history[-1] if view.swarm.history else None
    if last is None or last.round != forecast.round - 1:
        return None
    return max(0.0, float(int(view.now - last.t)))


def _style(forecast: RoundForecast, view: View) -> str:
    if forecast.late_s is None:
        return view.ink.muted
    return view.ink.warn if forecast.advice or forecast.late_s > 0 else view.ink.good


def _line(pieces: StyledLine, width: int, view: View) -> Text:
    return Text.assemble(*cut(pieces, width, view.glyphs.ellipsis))
