"""The penalty panel: which peer counted for less, by how much, why, and until when.

All peers compute the penalties of a round alike, and the update carries them; this module only puts them into words.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from textual.actions import SkipAction

from tui.dashboard.keys import bindings
from tui.dashboard.view import View, ViewWidget
from tui.dashboard.widgets.lines import StyledLine, cut, fit
from tui.dashboard.widgets.table import RowTable
from tui.swarm.figure_text import cost_words
from tui.swarm.phase_styles import penalty_code
from tui.swarm.snapshot import PenaltyRecord
from tui.text.event_text import counts_words, layer_words, until_words
from tui.text.explain import advice_of

LINES_EACH = 2

CATEGORIES = ("all", "errors", "late", "judge")
"""The filters of the list."""


def narrowed(penalties: Sequence[PenaltyRecord], category: str) -> list[PenaltyRecord]:
    return [penalty for penalty in reversed(penalties) if category in ("all", penalty_code(penalty.code).kind)]


class Penalties(RowTable, ViewWidget):
    """The list of penalties, the newest first; Enter explains the selected one."""

    BINDINGS = bindings("rounds.penalties")

    def __init__(self) -> None:
        super().__init__(id="penalties")
        self.category = "all"
        self.explained = False
        self._chosen: PenaltyRecord | None = None
        """None: always the newest."""
        self._listed: list[PenaltyRecord] = []

    def draw_view(self, view: View) -> None:
        width = self.size.width
        self._listed = listed = narrowed(view.swarm.penalty_log, self.category)
        above = [_heading(view, listed, self.category, width, focused=self.has_focus)]
        if not listed:
            nothing = "nobody counted for less" if self.category == "all" else f"none of category {self.category}"
            above.append([(f"  {nothing}", view.ink.muted)])
        at = listed.index(self._chosen) if self._chosen in listed else 0
        self.show_rows(len(listed), self._lines_of, at, above=above, lines_each=LINES_EACH)

    @property
    def chosen(self) -> PenaltyRecord | None:
        """The selected penalty; None if there is none in this category."""
        return self._listed[self.cursor_row] if self._listed else None

    def rows_wanted(self, view: View) -> int:
        listed = narrowed(view.swarm.penalty_log, self.category)
        return 1 + max(1, len(listed) * LINES_EACH) + (5 if self.explained else 0)

    def on_row_table_moved(self, message: RowTable.Moved) -> None:
        self._chosen = self._listed[message.row] if message.row else None
        self.view.select(self._listed[message.row].about)

    def on_row_table_entered(self) -> None:
        self.explained = not self.explained
        self.redraw()

    def action_category(self) -> None:
        self.category = CATEGORIES[(CATEGORIES.index(self.category) + 1) % len(CATEGORIES)]
        self._chosen = None
        self.redraw()

    def action_close(self) -> None:
        """Close the explanation. Without one, Esc belongs to the application."""
        if not self.explained:
            raise SkipAction
        self.explained = False
        self.redraw()

    on_focus = on_blur = ViewWidget.redraw

    def _lines_of(self, row: int) -> list[StyledLine]:
        penalty, width = self._listed[row], self.size.width
        explained = self.explained and row == self.cursor_row
        return [*_row(self.view, penalty, width), *(_explanation(self.view, penalty, width) if explained else [])]


def _heading(view: View, listed: list[PenaltyRecord], category: str, width: int, *, focused: bool) -> StyledLine:
    ink, dot = view.ink, view.glyphs.dot
    lasting = sum(penalty.until_round > view.swarm.round for penalty in listed)
    title = f"Penalties {dot} {lasting} now {dot} {len(listed) - lasting} over {dot} {category}"
    hint = "c category  enter explain" if width >= 60 else ""
    rule = view.glyphs.rest * max(0, width - cell_len(title) - cell_len(hint) - 3)
    return [(title, ink.strong if focused else ink.text), (f" {rule} ", ink.track), (hint, ink.muted)]


def _row(view: View, penalty: PenaltyRecord, width: int) -> list[StyledLine]:
    ink, glyphs, swarm = view.ink, view.glyphs, view.swarm
    lasts = penalty.until_round > swarm.round
    colour = (ink.bad if penalty.factor <= 0 else ink.warn) if lasts else ink.muted
    told = f"{penalty.imposed_in:<4} " if width < 60 else f"round {penalty.imposed_in:<4} "
    name = fit(swarm.label(penalty.about), 8 if width < 60 else 10 if width < 100 else 14, glyphs.ellipsis)
    who = ink.mine if penalty.about == view.me else ink.text
    what, until = (counts_words(penalty), colour), (until_words(penalty, swarm.round), ink.text)
    evidence, layer = (penalty.evidence, ink.text), (layer_words(penalty.layer), ink.muted)
    head: StyledLine = [
        (f"{glyphs.alert if lasts else ' '} ", colour), (told, ink.muted), (name, who),
        (f" {penalty.code:<12}", colour),
    ]  # fmt: skip
    if width < 60:
        lines = [head, _joined(view, "    ", what, until, evidence)]
    else:
        indent = " " * sum(cell_len(text) for text, _ in head[:2])
        cost = (cost_words(swarm, penalty), ink.muted)
        lines = [[*head, (f"{what[0]:<16}", colour), until], _joined(view, indent, evidence, layer, cost)]
    return [cut(line, width, glyphs.ellipsis) for line in lines]


def _joined(view: View, indent: str, *facts: tuple[str, str]) -> StyledLine:
    """Facts separated by dots; empty ones are left out."""
    dot = f" {view.glyphs.dot} "
    return [
        piece
        for number, fact in enumerate(fact for fact in facts if fact[0])
        for piece in ((dot if number else indent, view.ink.muted), fact)
    ]


def _explanation(view: View, penalty: PenaltyRecord, width: int) -> list[StyledLine]:
    advice, ink = advice_of(penalty.code), view.ink
    cost = cost_words(view.swarm, penalty)
    facts = [penalty.evidence, layer_words(penalty.layer), counts_words(penalty), cost]
    told = f" {view.glyphs.dot} ".join(fact for fact in facts if fact)
    rows = [("what", told), ("why", advice.meaning), ("to do", advice.remedy)]
    indent = "      " if width >= 60 else "  "
    return [
        [(f"{indent}{'' if number else label:<6}", ink.muted), (part, ink.text)]
        for label, text in rows
        for number, part in enumerate(textwrap.wrap(text, max(10, width - len(indent) - 6)))
    ]
