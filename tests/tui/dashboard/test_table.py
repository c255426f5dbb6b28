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
        self.query_one(RowTable).show_rows(rows, self.row, cursor)

    def row(self, number: int) -> list[StyledLine]:
        self.asked.append(number)
        return [[(f"row {number}", "bold")]]

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


async def test_rows_of_two_lines_below_a_heading_and_one_that_has_more() -> None:
    """What is in sight, and what a click on each of its lines selects."""
    app = Bench()
    table = app.query_one
    async with app.run_test(size=(20, HEIGHT)) as pilot:

        def two_lines(number: int) -> list[StyledLine]:
            more = [[("more", "")]] if number == table(RowTable).cursor_row else []
            return [[(f"row {number}", "")], [(f"of {number}", "")], *more]

        def draw() -> list[str]:
            return [table(RowTable).render_line(y).text.strip() for y in range(HEIGHT)]

        table(RowTable).show_rows(ROWS, two_lines, 1, above=[[("heading", "")]], lines_each=2)
        assert draw() == ["heading", "row 0", "of 0", "row 1", "of 1", "more", "row 2", "of 2", "row 3", "of 3"]
        for y, row in ((0, 1), (5, 1), (2, 0), (9, 3), (6, 2)):
            await pilot.click(RowTable, offset=(2, y))
            assert table(RowTable).cursor_row == row, y
        await pilot.press("G")
        assert draw()[-3:] == ["row 99", "of 99", "more"]


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
