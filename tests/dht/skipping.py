"""Tests of one process alone whose clock jumps: nothing is waited for that will only be later."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Says that the time has passed for which it would have waited."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select()
        ready = super().select(0)
        if not ready:
            self.skipped_s += max(0.0, timeout)
        return ready


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop that goes on at once to what is due next when there is nothing else to do."""

    def __init__(self) -> None:
        self._skipping = _Selector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return super().time() + self._skipping.skipped_s


def without_waiting(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The test on a loop of this kind. It must not depend on other processes, whose clocks do not jump."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def story() -> None:
            await test(*arguments, **named)

        with asyncio.Runner(loop_factory=SkippingLoop) as runner:
            runner.run(story())

    return run
