"""First contact with other peers, and repeated dialling of those that may be away for a while."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from dht.addresses import peer_id_in
from dht.daemon import Daemon
from dht.errors import Unreachable

OTHERS_S = 1.0
"""Once one has answered the others have so much longer."""
REMEET_S = 15.0

Meet = Callable[[str], Awaitable[None]]
"""Has the board know a node to which there is a connection."""
LookAfter = Callable[[], Awaitable[None]]


async def dial_any(daemon: Daemon, addresses: Sequence[str], timeout_s: float) -> list[str]:
    """The addresses that answer. One is enough: then the others have OTHERS_S more. Raises Unreachable."""
    others = others_of(daemon, addresses)
    if not others:
        return []
    dials = {asyncio.create_task(daemon.connect(address, timeout_s)): address for address in others}
    waiting = set(dials)
    met: list[str] = []
    failures: list[Unreachable] = []
    try:
        while waiting:
            done, waiting = await asyncio.wait(
                waiting, timeout=OTHERS_S if met else None, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            for dial in done:
                error = dial.exception()
                if error is None:
                    met.append(dials[dial])
                elif isinstance(error, Unreachable):
                    failures.append(error)
                else:
                    raise error
    finally:
        for dial in waiting:
            dial.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    if not met:
        raise Unreachable(_nobody_at(others)) from failures[0]
    return met


SHOWN = 3
"""Addresses that are named where nobody answers."""


def _nobody_at(addresses: Sequence[str]) -> str:
    places = [address.rpartition("/p2p/")[0] for address in addresses]
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return (
        f"nobody answers at {', '.join(places[:SHOWN])}{more}; ask the organiser whether the node runs there, or try "
        "again later"
    )


async def keep_dialling(
    daemon: Daemon, meet: Meet, bootstrap: Sequence[str], earlier: Sequence[str], timeout_s: float,
    look_after: Sequence[LookAfter],
) -> None:  # fmt: skip
    """Dial a bootstrap node again that was away, since after its restart it knows nobody; and in turn the peers of
    an earlier life, since without bootstrap nodes two peers that started apart find each other only so. Each time
    `look` may do something else, and raises Unreachable if the daemon is gone."""
    always, in_turn = others_of(daemon, bootstrap), deque(others_of(daemon, earlier))
    while True:
        await asyncio.sleep(REMEET_S)
        in_turn.rotate(-1)
        again = (*always, *list(in_turn)[:1])
        await asyncio.gather(*(_meet_again(daemon, meet, address, timeout_s) for address in again))
        with suppress(Unreachable):
            for look in look_after:
                await look()


async def _meet_again(daemon: Daemon, meet: Meet, address: str, timeout_s: float) -> None:
    with suppress(Unreachable):
        await daemon.connect(address, timeout_s)
        await meet(peer_id_in(address))


def others_of(daemon: Daemon, addresses: Sequence[str]) -> list[str]:
    """Each once, and none of this node's own."""
    return [address for address in dict.fromkeys(addresses) if peer_id_in(address) != daemon.peer_id]
