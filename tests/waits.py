"""Waits for what nothing reports: it is looked at again and again, and a hang is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from peer.testing.child_process import HANG_S

LOOK_S = 0.02


def look_until(happened: Callable[[], object], what: str) -> None:
    """Raises AssertionError that names `what` after `HANG_S`."""
    deadline = time.monotonic() + HANG_S
    while not happened():
        assert time.monotonic() < deadline, f"{what} after {HANG_S:.0f} s"
        time.sleep(LOOK_S)


async def until(happened: Callable[[], object]) -> None:
    """The same where an event loop runs meanwhile. Raises TimeoutError."""
    async with asyncio.timeout(HANG_S):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
