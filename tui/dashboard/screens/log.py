"""The log of events, newest last. It follows new lines unless the person scrolled up."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Input

from tui.dashboard.keys import bindings
from tui.dashboard.styles import level_style
from tui.dashboard.view import FilterPanel, TextBlock, View
from tui.dashboard.widgets.lines import LineView, StyledLine
from tui.swarm.snapshot import LogEntry
from tui.text.explain import pages_for
from tui.text.units import format_elapsed

LEVELS = {"all": ("info", "warning", "error"), "alerts": ("warning", "error"), "errors": ("error",)}
"""The levels that each filter shows."""

MAX_ENTRIES = 500
"""At most this number of the newest entries is shown: so many are wrapped without a noticeable delay."""

WITH_CODES, CODE_CELLS = 80, 12
"""The width in cells from which on the kind of an entry has its own column, and the cells of that column."""


class LogPanel(FilterPanel):
    """A line with the active filters, and the log below it."""

    TITLE = "Log"
    BINDINGS = bindings("log")

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._level, self._kind = "all", ""
        self._wrapped: dict[tuple[LogEntry, str], list[StyledLine]] = {}
        """The lines of the last drawing, by entry and author."""
        self._wrapped_for: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield TextBlock(id="log-line")
        yield TextBlock(id="log-about")
        yield Input(id="log-search", placeholder="only lines with this text", compact=True)
        with VerticalScroll(id="log-lines", can_focus=False) as scroll:
            scroll.anchor()
            yield LineView()

    @property
    def _scroll(self) -> VerticalScroll:
        return self.query_one(VerticalScroll)

    def draw_view(self, view: View) -> None:
        wanted = self._wanted(view.swarm.entries)
        lines = self._wrap(wanted[-MAX_ENTRIES:], view)
        log = self.query_one(LineView)
        log.styles.height = len(lines)
        log.draw(lines)
        self.query_one("#log-line", TextBlock).draw(self._line(view, len(wanted)))
        about = self.query_one("#log-about", TextBlock)
        about.draw(_about(self._kind, view))
        about.display = bool(about.text)

    def only_alerts(self) -> None:
        self._level, self._kind = "alerts", ""
        self.query_one(Input).value = ""

    def action_level(self) -> None:
        levels = list(LEVELS)
        self._level = levels[(levels.index(self._level) + 1) % len(levels)]
        self.redraw()

    def action_kind(self) -> None:
        kinds = ["", *sorted({entry.code for entry in self.view.swarm.entries if entry.code})]
        self._kind = kinds[(kinds.index(self._kind) + 1) % len(kinds)] if self._kind in kinds else ""
        self.redraw()

    def action_unfilter(self) -> None:
        super().action_unfilter()
        self._level, self._kind = "all", ""
        self.redraw()

    def action_first(self) -> None:
        self._scroll.scroll_home(animate=False, immediate=True)
        self.redraw()

    def action_last(self) -> None:
        self._scroll.scroll_end(animate=False, immediate=True)
        self.redraw()

    def action_move(self, lines: int) -> None:
        """Scroll down by this number of lines. Scrolling up stops following until the end is reached again."""
        self._scroll.scroll_relative(y=lines, animate=False, immediate=True)
        self.redraw()

    def _wanted(self, entries: Sequence[LogEntry]) -> list[LogEntry]:
        levels, word = LEVELS[self._level], self.wanted.lower()
        return [
            entry
            for entry in entries
            if entry.level in levels
            and self._kind in ("", entry.code)
            and (not word or word in f"{entry.code} {entry.text} {self._who(entry)}".lower())
        ]

    def _wrap(self, wanted: Sequence[LogEntry], view: View) -> list[StyledLine]:
        """All lines. Only new entries are wrapped, unless the page has changed."""
        page = (view.width, view.ink, view.me, view.swarm.started_t)
        known = self._wrapped if page == self._wrapped_for else {}
        keys = [(entry, self._who(entry)) for entry in wanted]
        self._wrapped = {key: known.get(key) or _lines_of(*key, view) for key in keys}
        self._wrapped_for = page
        return [line for key in keys for line in self._wrapped[key]]

    def _who(self, entry: LogEntry) -> str:
        return self.view.swarm.label(entry.peer) if entry.peer else ""

    def _line(self, view: View, shown: int) -> Text:
        """12 of 40 lines · all levels · all kinds · following"""
        following = "following" if self._scroll.is_vertical_scroll_end else "stopped; G follows"
        kind = self._kind or "all kinds"
        total, dot = len(view.swarm.entries), f" {view.glyphs.dot} "
        parts = [f"{shown} of {total}", {"all": "all levels"}.get(self._level, self._level), kind, following]
        skipped = f"{view.swarm.skipped} lines could not be read" if view.swarm.skipped else ""
        text = Text(dot.join(parts), style=view.ink.muted)
        return text.append(f"{dot}{skipped}" if skipped else "", style=view.ink.warn)


def _about(kind: str, view: View) -> Text:
    """What the only visible kind means, and what to do; nothing if there is little space."""
    pages = [] if view.mini or view.short else [page for _, page in pages_for(kind)]
    said = " / ".join(page.short for page in pages)
    wrapped = [text for page in pages if page.remedy for text in textwrap.wrap(page.remedy, max(20, view.width - 5))]
    return Text("\n").join([Text(said, style=view.ink.text), *(Text(line, style=view.ink.muted) for line in wrapped)])


def _lines_of(entry: LogEntry, who: str, view: View) -> list[StyledLine]:
    """01:15  warning  peer-1       STALE        what happened, on as many lines as needed"""
    ink = view.ink
    time = format_elapsed(entry.t - (view.swarm.started_t or entry.t))
    style = level_style(entry.level, ink)
    coded = f"{entry.code}: {entry.text}" if entry.code else entry.text
    head: StyledLine = [(f"{time:>7}  ", ink.muted)]
    if view.mini:
        head, texts = [(f"{time} ", ink.muted)], textwrap.wrap(f"{who} {coded}" if who else coded, 30)
    else:
        head.append((f"{entry.level:<8} ", style))
        head.append((f"{who[:12]:<13}", ink.mine if entry.peer == view.me else ink.strong))
        if view.width >= WITH_CODES:
            head.append((f"{entry.code[:CODE_CELLS]:<{CODE_CELLS}} ", style))
            coded = entry.text
        texts = textwrap.wrap(coded, max(20, view.width - 5 - sum(len(text) for text, _ in head)))
    text_style = ink.text if entry.level == "info" or not view.mini else style
    first, *more = texts or [""]
    indent = " " * sum(len(text) for text, _ in head)
    return [[*head, (first, text_style)], *([(indent + text, text_style)] for text in more)]
