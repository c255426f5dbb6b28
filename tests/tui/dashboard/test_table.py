"""A table with a cursor that draws only what is in sight."""

from __future__ import annotations

import pytest
from textual.app import App, ComposeResult

from tui.dashboard.widgets.lines import StyledLine
from tui.dashboard.widgets.table import RowTable

ROWS, HEIGHT = 100, 10


class Bench(App[None]):
    """A table of numbered rows, and what it told."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.told: list[object] = []

    def compose(self) -> ComposeResult:
        yield RowTable()

    def on_mount(self) -> None:
        self.query_one(RowTable).focus()
        self.show(ROWS)

    def show(self, rows: int, cursor: int | None = None) -> None:
        self.query_one(RowTable).show(rows, self.row, cursor)

    def row(self, number: int) -> StyledLine:
        self.asked.append(number)
        return [(f"row {number}", "bold")]

    def on_row_table_moved(self, message: RowTable.Moved) -> None:
        self.told.append(message)

    def on_row_table_entered(self, message: RowTable.Entered) -> None:
        self.told.append(message)


@pytest.mark.parametrize(
    ("keys", "row"),
    [("down", 1), ("j j k", 1), ("G", 99), ("G g", 0), ("pagedown", 9), ("pagedown pagedown pageup", 9), ("up", 0)],
)
async def test_keys_move_the_cursor(keys: str, row: int) -> None:
    app = Bench()
    async with app.run_test(size=(20, HEIGHT)) as pilot:
        await pilot.press(*keys.split())
        await pilot.pause()
        assert app.query_one(RowTable).cursor_row == row
        assert app.told[-1] == RowTable.Moved(row)


async def test_enter_tells_the_row() -> None:
    app = Bench()
    async with app.run_test(size=(20, HEIGHT)) as pilot:
        await pilot.press("down", "enter")
        await pilot.pause()
        assert app.told[-1] == RowTable.Entered(1)


async def test_only_rows_in_sight_are_asked_for() -> None:
    app = Bench()
    async with app.run_test(size=(20, HEIGHT)) as pilot:
        await pilot.pause()
        assert set(app.asked) == set(range(HEIGHT))
        app.asked.clear()
        await pilot.press("G")
        await pilot.pause()
        assert set(app.asked) == set(range(ROWS - HEIGHT, ROWS))


async def test_mouse_and_wheel() -> None:
    app = Bench()
    async with app.run_test(size=(20, HEIGHT)) as pilot:
        await pilot.click(RowTable, offset=(2, 4))
        await pilot.pause()
        assert app.query_one(RowTable).cursor_row == 4
        app.query_one(RowTable).on_mouse_scroll_down()
        assert app.query_one(RowTable).cursor_row == 7
        app.query_one(RowTable).on_mouse_scroll_up()
        assert app.query_one(RowTable).cursor_row == 4


async def test_fewer_rows_keep_the_cursor_inside_and_none_need_no_cursor() -> None:
    app = Bench()
    async with app.run_test(size=(20, HEIGHT)) as pilot:
        await pilot.press("G")
        app.show(5)
        assert app.query_one(RowTable).cursor_row == 4
        app.show(0)
        await pilot.press("down", "up", "enter", "G")
        await pilot.pause()
        assert app.query_one(RowTable).cursor_row == 0


async def test_rows_are_drawn_as_they_are_and_cut_at_the_edge() -> None:
    app = Bench()
    async with app.run_test(size=(4, HEIGHT)) as pilot:
        await pilot.pause()
        assert app.query_one(RowTable).render_line(3).text == "row "
