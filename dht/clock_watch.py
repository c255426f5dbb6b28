"""Whether this machine's clock stays right while its link is at work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from dht.clock import LOOK_S, ClockWatch
from dht.errors import Unreachable
from dht.node import Node

WITNESSES = 2
"""So many must disagree with a clock that has not jumped: of two machines either may be wrong."""


async def watch_clock(node: Node, others: Callable[[], Iterable[str]], watch: ClockWatch) -> None:
    """Until it is wrong; then raises ClockOff.

    Asked are all of `others` to whom there is a connection: whom rounds need, and the nodes of the invite. Anybody
    else, or a few of them, might hold peers up by lying about the time.
    """
    while True:
        await asyncio.sleep(LOOK_S)
        if not watch.is_due:
            continue
        then = watch.now()
        connected: Iterable[str] = ()
        with suppress(Unreachable):
            connected = await node.connections()
        near = sorted(set(others()) & set(connected))
        if await node.compare_clocks(near, least=1 if watch.has_jumped else WITNESSES):
            watch.compared(then)
