"""Reading a screen as a person does: its text, and how its cells are drawn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rich.segment import Segment
from textual.pilot import Pilot

from tui.dashboard.app import Dashboard, ExitReason


@asynccontextmanager
async def opened(app: Dashboard, *, size: tuple[int, int] = (120, 40)) -> AsyncIterator[Pilot[ExitReason]]:
    """The application after its source was read and drawn; notifications are shown."""
    async with app.run_test(size=size, notifications=True) as pilot:
        await settled(pilot)
        yield pilot


async def settled(pilot: Pilot[ExitReason]) -> None:
    """Everything that was asked for is done and drawn."""
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()
    await pilot.pause()
    while any(not worker.is_finished for worker in pilot.app.workers):  # what was answered may be asked further
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        await pilot.pause()


async def press(pilot: Pilot[ExitReason], *keys: str) -> None:
    """One key after the other, each until it is drawn."""
    for key in keys:
        await pilot.press(key)
        await settled(pilot)


def text_of(app: Dashboard) -> str:
    """All lines of the terminal."""
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines_of(app))


def lines_of(app: Dashboard) -> Sequence[Sequence[Segment]]:
    """All lines as segments of text in one style."""
    return app.screen._compositor.render_strips()
