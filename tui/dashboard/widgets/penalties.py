"""The penalty panel: who counted for less, by how much, for what, and until when.

Everybody computes the penalties of a round alike, and the update carries them; this only puts them into words.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual.actions import SkipAction

from tui.dashboard.keys import bindings
from tui.dashboard.view import View, ViewWidget
from tui.dashboard.widgets.lines import StyledLine, cut, fit
from tui.dashboard.widgets.table import RowTable
from tui.swarm.sentences import cost_words
from tui.swarm.snapshot import PenaltyRecord
from tui.swarm.vocabulary import penalty_code
from tui.text.codes import advice_of
from tui.text.phrases import counts_words, layer_words, until_words

UNCUT = 100
"""Cells from which on hardly anything of a penalty's lines is cut, so that it need not be said again."""

ONE_LINE = 170
"""Cells from which on a penalty takes one line; below, two."""

CATEGORIES = ("all", "errors", "late", "judge")
"""What the list can be narrowed to."""


def narrowed(penalties: Sequence[PenaltyRecord], category: str) -> list[PenaltyRecord]:
    return [penalty for penalty in reversed(penalties) if category in ("all", penalty_code(penalty.code).kind)]


class Penalties(RowTable, ViewWidget):
    """The list, newest first, with the selected one explained on Enter."""

    BINDINGS = bindings("rounds.penalties")

    def __init__(self) -> None:
        super().__init__(id="penalties")
        self.category = "all"
        self.explained = False
        self._chosen: PenaltyRecord | None = None
        """None: the newest, whichever that is."""
        self._listed: list[PenaltyRecord] = []

    def draw_view(self, view: View) -> None:
        width = self.size.width
        self._listed = listed = narrowed(view.swarm.penalty_log, self.category)
        above = [_heading(view, listed, self.category, width, focused=self.has_focus)]
        if not listed:
            nothing = "nobody counted for less" if self.category == "all" else f"none of category {self.category}"
            above.append([(f"  {nothing}", view.ink.muted)])
        at = listed.index(self._chosen) if self._chosen in listed else 0
        self.show_rows(len(listed), self._lines_of, at, above=above, lines_each=_lines_each(width))

    @property
    def chosen(self) -> PenaltyRecord | None:
        """The penalty that is selected, None if there is none in this category."""
        return self._listed[self.cursor_row] if self._listed else None

    def rows_wanted(self, view: View) -> int:
        listed = narrowed(view.swarm.penalty_log, self.category)
        return 1 + max(1, len(listed) * _lines_each(self.size.width)) + (5 if self.explained else 0)

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
        """Close the explanation; without one, Esc is the application's."""
        if not self.explained:
            raise SkipAction
        self.explained = False
        self.redraw()

    on_focus = on_blur = ViewWidget.redraw

    def _lines_of(self, row: int) -> list[StyledLine]:
        penalty, width = self._listed[row], self.size.width
        explained = self.explained and row == self.cursor_row
        return [*_row(self.view, penalty, width), *(_explanation(self.view, penalty, width) if explained else [])]


BESIDE_EVIDENCE = 138
"""Cells of the other columns of a penalty in one line."""


def _lines_each(width: int) -> int:
    return 1 if width >= ONE_LINE else 2


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
    name = fit(swarm.label(penalty.about), 8 if width < 60 else 10 if width < UNCUT else 14, glyphs.ellipsis)
    who = ink.mine if penalty.about == view.me else ink.text
    factor, until = counts_words(penalty), until_words(penalty, swarm.round)
    layer, cost = layer_words(penalty.layer), cost_words(swarm, penalty)
    head: StyledLine = [
        (f"{glyphs.alert if lasts else ' '} ", colour), (told, ink.muted), (name, who),
        (f" {penalty.code:<12}", colour),
    ]  # fmt: skip
    if width < 60:
        lines = [head, _joined(view, "    ", (factor, colour), (until, ink.text), (penalty.evidence, ink.text))]
    elif width < ONE_LINE:
        indent = " " * sum(cell_len(text) for text, _ in head[:2])
        facts = [(penalty.evidence, ink.text), (layer, ink.muted)]
        first = [*head, (f"{factor:<16}", colour), (until, ink.text)]
        if width >= UNCUT:
            first.append((" " * (25 - len(until)) + cost, ink.muted))
        elif cost:
            facts.append((cost, ink.muted))
        lines = [first, _joined(view, indent, *facts)]
    else:
        evidence = fit(penalty.evidence, min(60, width - BESIDE_EVIDENCE), glyphs.ellipsis)
        tail = f" {fit(layer, 16, glyphs.ellipsis)} {until:<25} {cost}"
        lines = [[*head, (f"{factor:<17}", colour), (evidence, ink.text), (tail, ink.muted)]]
    return [cut(line, width, glyphs.ellipsis) for line in lines]


def _joined(view: View, indent: str, *facts: tuple[str, str]) -> StyledLine:
    """Facts with a dot between them."""
    pieces: StyledLine = [(indent, "")]
    for number, fact in enumerate(facts):
        pieces += [(f" {view.glyphs.dot} ", view.ink.muted)] if number else []
        pieces.append(fact)
    return pieces


def _explanation(view: View, penalty: PenaltyRecord, width: int) -> list[StyledLine]:
    advice, ink = advice_of(penalty.code), view.ink
    cost = cost_words(view.swarm, penalty)
    facts = [penalty.evidence, layer_words(penalty.layer), counts_words(penalty), cost]
    told = f" {view.glyphs.dot} ".join(fact for fact in facts if fact)
    rows: list[tuple[str, str, str]] = [("what  ", told, ink.text)] if width < UNCUT else []
    rows += [("why   ", advice.meaning, ink.text), ("to do ", advice.remedy, ink.text)]
    indent = "      " if width >= 60 else "  "
    lines: list[StyledLine] = []
    for label, text, style in rows:
        for number, part in enumerate(_wrapped(text, max(10, width - len(indent) - len(label)))):
            lines.append([(indent + (label if number == 0 else " " * len(label)), ink.muted), (part, style)])
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
