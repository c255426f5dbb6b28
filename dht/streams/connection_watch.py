"""Tells which peers have become unreachable: the connection has closed, and a new one fails.

A process that dies closes its connections, and further dials to it are refused at once. A closed connection alone says
less: after a router forgot it, or a link process restarted, the peer is back within a second or two.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Container, Sequence

from dht.errors import Unreachable

LOOK_S = 1.0
"""How often the connections are looked at."""
CLOSED_S = 3.0
"""A peer counts as unreachable no sooner after its connection was seen to be gone: a peer that nobody can dial needs
that long to dial itself."""
DIAL_S = 3.0
"""A dial that takes longer has failed."""
REDIAL_S = 5.0
DIALS = 64
"""In one look, so that many who are gone cost no more than a few."""

log = logging.getLogger(__name__)


class ConnectionWatch:
    """Watches the peers that `wanted` names: those to which something was sent lately. `connections` says which are
    connected, `dial` tries to reach a peer; both raise Unreachable."""

    def __init__(
        self,
        wanted: Callable[[], Sequence[str]],
        connections: Callable[[], Awaitable[Container[str]]],
        dial: Callable[[str, float], Awaitable[object]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.unreachable: frozenset[str] = frozenset()
        self._wanted, self._connections, self._dial, self._clock = wanted, connections, dial, clock
        self._closed_at: dict[str, float] = {}
        """Since when each peer is known to have no connection."""
        self._dialled_at: dict[str, float] = {}
        self._failed: set[str] = set()
        """The peers that a dial has not reached since."""

    async def follow(self) -> None:
        """Check again and again."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Check which peers are connected, and dial those that are not. A daemon that is too busy to answer changes
        nothing."""
        wanted = self._wanted()
        try:
            connected = await self._connections() if wanted else ()
        except Unreachable as error:
            log.info("%s", error)
            return
        now = self._clock()
        self._closed_at = {peer: self._closed_at.get(peer, now) for peer in wanted if peer not in connected}
        self._dialled_at = {peer: at for peer, at in self._dialled_at.items() if peer in self._closed_at}
        self._failed &= self._closed_at.keys()
        self.unreachable = frozenset(peer for peer in self._failed if now - self._closed_at[peer] >= CLOSED_S)
        due = [peer for peer in self._closed_at if now - self._dialled_at.get(peer, float("-inf")) >= REDIAL_S]
        self._dialled_at.update(dict.fromkeys(due[:DIALS], now))
        await asyncio.gather(*map(self._try, due[:DIALS]))

    def heard(self, peer: str) -> None:
        """Something arrived from this peer: it is there, whatever was found before."""
        if peer in self.unreachable:
            self.unreachable -= {peer}
            self._failed.discard(peer)
            self._closed_at.pop(peer, None)

    async def _try(self, peer: str) -> None:
        try:
            await self._dial(peer, DIAL_S)
            self._failed.discard(peer)
        except Unreachable as error:
            log.info("%s", error)
            self._failed.add(peer)
