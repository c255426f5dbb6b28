"""A page of labelled facts: labels on the left, values beside them, nothing wider than the page.

What does not fit on a line is left out, the last fact first, so a row names its most important fact first.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.text import Text

from tui.dashboard.appearance import draw_spark
from tui.dashboard.view import View
from tui.swarm.snapshot import PenaltyRecord, Point
from tui.text.event_text import counts_words, duty_words, hold_words, layer_words, next_words, until_words

GUTTER, NARROW_GUTTER = 12, 10
"""The cells of the labels, on a wide and on a narrow page."""

TALL = 34
"""The lines of a terminal from which on there are headings and charts."""

Piece = Text | str | tuple[str, str]
"""A fact: text with its own style, plain text, or (text, style)."""


class FactSheet:
    """Collects lines of at most `width` cells. A dense page has no headings, only labels."""

    def __init__(self, view: View, width: int, *, dense: bool = False) -> None:
        self._view, self._lines, self._dense = view, list[Text](), dense
        self.width = max(1, width)
        self.gutter = GUTTER if width >= 50 else NARROW_GUTTER

    @property
    def room(self) -> int:
        return max(1, self.width - self.gutter)

    @property
    def height(self) -> int:
        return len(self._lines)

    @property
    def text(self) -> Text:
        return Text("\n").join(self._lines)

    def heading(self, title: str, aside: str = "") -> None:
        """A heading for the lines below, with an empty line above it."""
        if self._lines:
            self.blank()
        if self._dense:
            return
        self._add(Text.assemble((title, self._view.ink.strong), (f"  {aside}" if aside else "", self._view.ink.muted)))

    def row(self, label: str, *facts: Piece) -> None:
        """Facts on one line, separated by dots; empty facts and those that do not fit are left out."""
        line = Text(f"{label:<{self.gutter - 1}} ", style=self._view.ink.muted)
        separator, first = f" {self._view.glyphs.dot} ", True
        for fact in facts:
            piece = _text(fact, self._view.ink.text)
            gap = 0 if first else len(separator)
            if not piece or (line.cell_len + gap + piece.cell_len > self.width and not first):
                continue
            line.append("" if first else separator, style=self._view.ink.track)
            line.append_text(piece)
            first = False
        self._add(line)

    def flow(self, label: str, *facts: Piece) -> None:
        """Facts on as many lines as needed; none if there are no facts."""
        line, room = list[Piece](), self.room
        for fact in (_text(fact, self._view.ink.text) for fact in facts if fact):
            if line and fact.cell_len > room:
                self.row(label, *line)
                label, line, room = "", [], self.room
            line.append(fact)
            room -= fact.cell_len + 3
        if line:
            self.row(label, *line)

    def nothing(self, label: str, text: str) -> None:
        """Say that there is nothing to report, below the heading, or on a dense page after the label."""
        fact = (f"{self._view.glyphs.done} {text}", self._view.ink.muted)
        if self._dense:
            self.row(label, fact)
        else:
            self.line(fact)

    def prose(self, label: str, text: str, style: str = "") -> None:
        """A sentence on as many lines as needed."""
        for number, line in enumerate(textwrap.wrap(text, self.room) or [""]):
            head = label if number == 0 else ""
            gutter = (f"{head:<{self.gutter - 1}} ", self._view.ink.muted)
            self._add(Text.assemble(gutter, (line, style or self._view.ink.text)))

    def trend(self, label: str, value: str, points: Sequence[Point], *facts: Piece) -> None:
        """A value, and a small curve of its development."""
        room = 24 if self.room >= 60 else 12
        spark = draw_spark([point.value for point in points], room, self._view.glyphs) if len(points) > 1 else ""
        text = Text(value, style=self._view.ink.strong)
        if spark and self.room > len(value) + room + 2:
            text.append(f"  {spark}", style=self._view.ink.good)
        self.row(label, text, *facts)

    def line(self, *pieces: Piece) -> None:
        """Pieces next to each other, from the left edge."""
        line = Text()
        for piece in pieces:
            line.append_text(_text(piece, self._view.ink.text))
        self._add(line)

    def blank(self) -> None:
        """An empty line, unless the page is too short or dense."""
        if not (self._view.short or self._dense):
            self._lines.append(Text())

    def _add(self, line: Text) -> None:
        line.truncate(self.width, overflow="ellipsis")
        self._lines.append(line)


def _text(piece: Piece, style: str) -> Text:
    if isinstance(piece, Text):
        return piece
    text, style = piece if isinstance(piece, tuple) else (piece, style)
    return Text(text, style=style)


def has_holds(view: View) -> bool:
    """Whether something keeps my peer, which has not stopped, from training all the time."""
    if view.status is None or (view.mine is not None and view.mine.stopped):
        return False
    return view.status.duty < 1 or bool(view.status.holds)


def add_holds(sheet: FactSheet, view: View, *, most: int) -> None:
    """What keeps my peer from training all the time, and when it trains again."""
    status, ink = view.status, view.ink
    if status is None or not has_holds(view):
        return
    if duty := duty_words(status):
        sheet.prose("duty", duty, ink.warn)
    for hold in status.holds[:most]:
        fits = len(hold.code) < sheet.gutter
        words = hold_words(hold, view.now)
        sheet.prose(hold.code if fits else "", words if fits else f"{hold.code}: {words}", ink.warn)
    if len(status.holds) > most:
        sheet.prose("", f"{len(status.holds) - most} more: homefires status", ink.muted)
    if (text := next_words(status, view.now)) and not view.short:
        sheet.prose("", text, ink.text)


def add_penalty(sheet: FactSheet, view: View, penalty: PenaltyRecord, about: str, style: str) -> None:
    """LATE peer-3 counts 50 %, until round 13 (1 left); below it the evidence. `about` names the peer or the round."""
    ink, lasts = view.ink, penalty.until_round > view.swarm.round
    sheet.line(
        (f"{penalty.code:<{sheet.gutter - 1}} ", ink.warn if lasts else ink.muted), (about, ink.strong),
        f"{counts_words(penalty)}, ",
        (until_words(penalty, view.swarm.round), ink.text if lasts else ink.muted),
    )  # fmt: skip
    sheet.prose("", f"{layer_words(penalty.layer)}: {penalty.evidence}", style)
