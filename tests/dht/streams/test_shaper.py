"""A cap that its owner changes holds from then on, also for what waits already."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dht.streams.shaper import CHUNK_BYTES, Lane, Shaper

KBPS = 8e3
"""A thousand bytes per second."""


class Timers:
    """A clock that goes on to the next timer when everybody waits for it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._waiting: list[tuple[float, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Any:
        timer = (self.now + seconds, callback)
        self._waiting.append(timer)

        class Handle:
            def cancel(handle) -> None:
                if timer in self._waiting:
                    self._waiting.remove(timer)

        return Handle()

    async def run(self, until: float, *tasks: asyncio.Task[None]) -> None:
        """Until then, or until all of them are done."""
        while True:
            for _ in range(5):
                await asyncio.sleep(0)
            if all(task.done() for task in tasks) or not self._waiting:
                return
            timer = min(self._waiting, key=lambda item: item[0])
            if timer[0] > until:
                return
            self._waiting.remove(timer)
            self.now = timer[0]
            timer[1]()


@pytest.fixture
async def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    timers = Timers()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", timers.call_later)
    return timers


def taking(line: Shaper, size_bytes: int) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(line.take(Lane.BULK, "bob", size_bytes))


async def test_a_cap_that_is_set_holds_at_once(timers: Timers) -> None:
    """Never more than rate times time and one burst, which is two of the smallest pieces here."""
    line = Shaper(clock=timers)
    await line.take(Lane.BULK, "bob", 10**9)
    line.allow(1000 * KBPS)
    began_at = timers.now
    task = taking(line, 3_000_000)
    await timers.run(began_at + 60, task)
    assert task.done()
    assert timers.now - began_at == pytest.approx(3.0 - 0.1, abs=0.1)


async def test_a_cap_that_is_lowered_holds_for_what_waits(timers: Timers) -> None:
    """Pieces that were cut for a quick line pass on a slow one, each in its time."""
    line = Shaper(10_000 * KBPS, clock=timers)
    assert line.chunk_bytes == CHUNK_BYTES
    task = taking(line, 10_000_000)
    await timers.run(timers.now + 0.5, task)
    line.allow(100 * KBPS)
    changed_at = timers.now
    await timers.run(changed_at + 20.0, task)
    assert not task.done()
    line.allow(10_000 * KBPS)
    raised_at = timers.now
    await timers.run(raised_at + 10, task)
    assert task.done()
    assert timers.now - raised_at < 0.7, "of the 5 MB that were left, 2 MB passed in those 20 s"


async def test_a_cap_that_is_lowered_twice_still_lets_the_pieces_of_the_first_pass(timers: Timers) -> None:
    """A piece that was cut for a quick line is larger than what a slow one lets pass at once."""
    line = Shaper(10_000 * KBPS, clock=timers)
    tasks = [taking(line, 64_000) for _ in range(40)]
    await timers.run(timers.now, *tasks)
    line.allow(100 * KBPS)
    line.allow(50 * KBPS)
    await timers.run(timers.now + 60, *tasks)
    assert all(task.done() for task in tasks)


async def test_a_cap_that_is_taken_away_lets_all_pass(timers: Timers) -> None:
    line = Shaper(100 * KBPS, clock=timers)
    task = taking(line, 10**9)
    await timers.run(timers.now + 1, task)
    assert not task.done()
    line.allow(0)
    await timers.run(timers.now, task)
    assert task.done()
    assert (line.bps, line.chunk_bytes) == (0, CHUNK_BYTES)
