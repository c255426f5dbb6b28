"""A table of hundreds of rows with a cursor. It asks only for visible rows, and draws only those that changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.message import Message

from tui.dashboard.keys import bindings
from tui.dashboard.widgets.lines import LineView, StyledLine

WHEEL_ROWS = 3


class RowTable(LineView, can_focus=True):
    """A table with a cursor. `show_rows` sets the number of rows, and a function for those that are visible."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"table--cursor"}
    BINDINGS = bindings("table")

    @dataclass
    class Moved(Message):
        row: int

    @dataclass
    class Entered(Message):
        row: int

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.row_count = 0
        self.cursor_row = 0
        self._top = 0
        self._row: Callable[[int], Sequence[StyledLine]] = lambda row: ()
        self._above: Sequence[StyledLine] = ()
        self._lines_each, self._more_at_cursor = 1, 0

    def show_rows(
        self, row_count: int, row: Callable[[int], Sequence[StyledLine]], cursor_row: int | None, *,
        above: Sequence[StyledLine] = (), lines_each: int = 1,
    ) -> None:  # fmt: skip
        """Draw `row_count` rows below the lines `above`, with the cursor on `cursor_row`, or where it was if that is
        None.

        A row has `lines_each` lines; the one at the cursor may have more.
        """
        self.row_count, self._row, self._above, self._lines_each = row_count, row, above, lines_each
        self._put_cursor(self.cursor_row if cursor_row is None else cursor_row)
        self._paint()

    def line_style(self, y: int) -> Style:
        style = super().line_style(y)
        at_cursor = self.row_count and self.cursor_y <= y < self.cursor_y + self._lines_each
        return style + self.get_component_rich_style("table--cursor") if at_cursor else style

    @property
    def cursor_y(self) -> int:
        """The first line of this widget at the cursor."""
        return len(self._above) + (self.cursor_row - self._top) * self._lines_each

    @property
    def _room(self) -> int:
        """The number of visible rows."""
        return max(1, (self.size.height - len(self._above) - self._more_at_cursor) // self._lines_each)

    def action_enter(self) -> None:
        if self.row_count:
            self.post_message(self.Entered(self.cursor_row))

    def action_move(self, by: int) -> None:
        self._move_to(self.cursor_row + by)

    def action_page(self, direction: int) -> None:
        self._move_to(self.cursor_row + direction * max(1, self._room - 1))

    def action_go(self, row: int) -> None:
        """Move to a row, counted from the top, or from the end if negative."""
        self._move_to(row if row >= 0 else self.row_count + row)

    def on_click(self, event: events.Click) -> None:
        y, ends_y = event.y, self.cursor_y + self._lines_each
        if y >= ends_y:
            y = max(ends_y - 1, y - self._more_at_cursor)
        if y >= len(self._above):
            self._move_to(self._top + (y - len(self._above)) // self._lines_each)

    def on_mouse_scroll_down(self) -> None:
        self.action_move(WHEEL_ROWS)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-WHEEL_ROWS)

    def on_resize(self) -> None:
        self._put_cursor(self.cursor_row)
        self._paint()

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def _move_to(self, row: int) -> None:
        if not self.row_count:
            return
        self._put_cursor(row)
        self._paint()
        self.post_message(self.Moved(self.cursor_row))

    def _put_cursor(self, row: int) -> None:
        """Put the cursor on a row within the table, and scroll so that it is visible."""
        before = self.cursor_row, self._top
        self.cursor_row = min(max(row, 0), max(0, self.row_count - 1))
        self._more_at_cursor = len(self._row(self.cursor_row)) - self._lines_each if self.row_count else 0
        top = min(self._top, max(0, self.row_count - self._room))
        self._top = min(max(top, self.cursor_row - self._room + 1), self.cursor_row)
        if before != (self.cursor_row, self._top):
            self.refresh()

    def _paint(self) -> None:
        if self.size.height:
            rows = range(self._top, min(self._top + self._room, self.row_count))
            self.draw([*self._above, *(line for row in rows for line in self._row(row))])
