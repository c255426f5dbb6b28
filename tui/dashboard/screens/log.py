"""The log: what happened, newest last. It follows, unless the person scrolled up."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Input, RichLog

from tui.dashboard.keys import bindings
from tui.dashboard.view import FilterPanel, TextBlock, View
from tui.dashboard.words import level_style
from tui.swarm.snapshot import LogEntry
from tui.text.codes import pages_for
from tui.text.units import format_elapsed

LEVELS = {"all": ("info", "warning", "error"), "alerts": ("warning", "error"), "errors": ("error",)}
"""What each filter by level lets through."""

MAX_LINES = 500
"""Of what is wanted, the newest: a screen full is written before a person notices."""

WITH_CODES, CODE_CELLS = 80, 12
"""Cells from which on what kind an entry is has a column of its own, and those of the column."""


class LogPanel(FilterPanel):
    """A line that says what is filtered, and the log below it."""

    TITLE = "Log"
    BINDINGS = bindings("log")

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._level, self._kind = "all", ""
        self._written: list[LogEntry] = []
        self._written_for: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield TextBlock(id="log-line")
        yield TextBlock(id="log-about")
        yield Input(id="log-search", placeholder="only lines with this text", compact=True)
        yield RichLog(id="log-lines", max_lines=MAX_LINES, markup=False, highlight=False)

    def on_mount(self) -> None:
        self.query_one(RichLog).can_focus = False

    def draw_view(self, view: View) -> None:
        wanted = self._wanted(view.swarm.entries)
        self._write(wanted[-MAX_LINES:], view)
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
        kinds = ["", *sorted({entry.code for entry in self._view.swarm.entries if entry.code})] if self._view else [""]
        self._kind = kinds[(kinds.index(self._kind) + 1) % len(kinds)] if self._kind in kinds else ""
        self.redraw()

    def action_unfilter(self) -> None:
        super().action_unfilter()
        self._level, self._kind = "all", ""
        self.redraw()

    def action_first(self) -> None:
        log = self.query_one(RichLog)
        log.auto_scroll = False
        log.scroll_home(animate=False)

    def action_last(self) -> None:
        log = self.query_one(RichLog)
        log.auto_scroll = True
        log.scroll_end(animate=False)
        self.redraw()

    def action_move(self, lines: int) -> None:
        """So many lines down; whoever goes up stops following."""
        log = self.query_one(RichLog)
        log.auto_scroll = lines > 0 and log.scroll_offset.y + lines >= log.max_scroll_y
        log.scroll_relative(y=lines, animate=False)
        self.redraw()

    def _wanted(self, entries: Sequence[LogEntry]) -> list[LogEntry]:
        levels, word = LEVELS[self._level], self.wanted.lower()
        return [
            entry
            for entry in entries
            if entry.level in levels
            and self._kind in ("", entry.code)
            and word in f"{entry.code} {entry.text} {self._who(entry)}".lower()
        ]

    def _write(self, wanted: list[LogEntry], view: View) -> None:
        """Only what is new, unless something else is wanted than before."""
        log = self.query_one(RichLog)
        asked = (self._level, self._kind, self.wanted, view.width, view.ink)
        new = _appended(self._written, wanted) if asked == self._written_for else None
        if new is None:
            log.clear()
            new = wanted
        for entry in new:
            log.write(self._format(entry, view), width=max(40, view.width), scroll_end=log.auto_scroll)
        self._written, self._written_for = wanted, asked

    def _format(self, entry: LogEntry, view: View) -> Text:
        ink = view.ink
        time = format_elapsed(entry.t - (view.swarm.started_t or entry.t))
        who = self._who(entry)
        style = level_style(entry.level, ink)
        head = [(f"{time:>7}  ", ink.muted)]
        coded = f"{entry.code}: {entry.text}" if entry.code else entry.text
        if view.mini:
            head, texts = [(f"{time} ", ink.muted)], textwrap.wrap(f"{who} {coded}" if who else coded, 30)
        else:
            name = (f"{who[:12]:<13}", ink.mine if entry.peer == view.me else ink.strong)
            head += [(f"{entry.level:<8} ", style), name]
            if view.width >= WITH_CODES:
                head.append((f"{entry.code[:CODE_CELLS]:<{CODE_CELLS}} ", style))
                coded = entry.text
            texts = textwrap.wrap(coded, max(20, view.width - 5 - sum(len(text) for text, _ in head)))
        text_style = ink.text if entry.level == "info" or not view.mini else style
        indent = "\n" + " " * sum(len(text) for text, _ in head)
        return Text.assemble(*head, (indent.join(texts), text_style))

    def _who(self, entry: LogEntry) -> str:
        return self._view.swarm.label(entry.peer) if self._view is not None and entry.peer else ""

    def _line(self, view: View, shown: int) -> Text:
        """12 of 40 lines · all levels · all kinds · following"""
        following = "following" if self.query_one(RichLog).auto_scroll else "stopped; G follows"
        kind = self._kind or "all kinds"
        total, dot = len(view.swarm.entries), f" {view.glyphs.dot} "
        parts = [f"{shown} of {total}", {"all": "all levels"}.get(self._level, self._level), kind, following]
        skipped = f"{view.swarm.skipped} lines could not be read" if view.swarm.skipped else ""
        text = Text(dot.join(parts), style=view.ink.muted)
        return text.append(f"{dot}{skipped}" if skipped else "", style=view.ink.warn)


def _about(kind: str, view: View) -> Text:
    """What the one kind means that is shown, and what to do; nothing where room is scarce."""
    pages = [] if view.mini or view.short else [page for _, page in pages_for(kind)]
    said = " / ".join(page.short for page in pages)
    wrapped = [text for page in pages if page.remedy for text in textwrap.wrap(page.remedy, max(20, view.width - 5))]
    return Text("\n").join([Text(said, style=view.ink.text), *(Text(line, style=view.ink.muted) for line in wrapped)])


def _appended(before: list[LogEntry], after: list[LogEntry]) -> list[LogEntry] | None:
    """What `after` has beyond `before`, of which the oldest may have been dropped; None if it is another list."""
    if not before:
        return after
    for place in range(len(after) - 1, -1, -1):
        if after[place] is before[-1]:
            kept = before[-place - 1 :]
            same = len(kept) == place + 1 and all(old is new for old, new in zip(kept, after, strict=False))
            return after[place + 1 :] if same else None
    return None
