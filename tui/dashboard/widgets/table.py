"""A table of hundreds of rows with a cursor. It asks only for the rows in sight, and draws only those that changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.message import Message

from tui.dashboard.keys import bindings
from tui.dashboard.widgets.lines import LineView, StyledLine

WHEEL_ROWS = 3


class RowTable(LineView, can_focus=True):
    """`show` says how many rows there are and gives each one that comes in sight."""

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
        self._row: Callable[[int], StyledLine] | None = None

    def show(self, row_count: int, row: Callable[[int], StyledLine], cursor_row: int | None) -> None:
        """Draw `row_count` rows with the cursor on one of them, or where it was if None."""
        self.row_count, self._row = row_count, row
        self._put_cursor(self.cursor_row if cursor_row is None else cursor_row)
        self._paint()

    def line_style(self, y: int) -> Style:
        style = super().line_style(y)
        at_cursor = self.row_count and y + self._top == self.cursor_row
        return style + self.get_component_rich_style("table--cursor") if at_cursor else style

    @property
    def cursor_y(self) -> int:
        """The line of this widget that the cursor is on."""
        return self.cursor_row - self._top

    def action_enter(self) -> None:
        if self.row_count:
            self.post_message(self.Entered(self.cursor_row))

    def action_move(self, by: int) -> None:
        self._move_to(self.cursor_row + by)

    def action_page(self, direction: int) -> None:
        self._move_to(self.cursor_row + direction * max(1, self.size.height - 1))

    def action_go(self, row: int) -> None:
        """To a row from the top, or if negative from the end."""
        self._move_to(row if row >= 0 else self.row_count + row)

    def on_click(self, event: events.Click) -> None:
        self._move_to(self._top + event.y)

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
        """Where the cursor is, within the table, and the rows around it that are in sight."""
        before = self.cursor_row, self._top
        height = max(1, self.size.height)
        self.cursor_row = min(max(row, 0), max(0, self.row_count - 1))
        top = min(self._top, max(0, self.row_count - height))
        self._top = min(max(top, self.cursor_row - height + 1), self.cursor_row)
        if before != (self.cursor_row, self._top):
            self.refresh()

    def _paint(self) -> None:
        if self._row is not None and self.size.height:
            last = min(self._top + self.size.height, self.row_count)
            self.draw([self._row(row) for row in range(self._top, last)])
