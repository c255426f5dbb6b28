"""A run that asks for an admission, watched with its organiser's key: it admits the watcher, a day at a time.

Peers ask whoever comes for its admission, and check that the organiser has signed it. Those behind routers are met
through the organiser's node, which relays for members, and for whoever shows it an admission.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress

from dht.access import AccessList
from dht.admission import issue_admission
from dht.errors import Unreachable
from dht.identity import Identity
from dht.node import Node
from dht.records import Malformed, PeerRecord
from peer.link.gatekeeper import ADMISSION

GUEST = "guest"
"""Under this name the organiser's node takes an admission that is in no book of its own."""
LASTS_S = 86400.0
SHOW_S = 60.0
"""The organiser's node forgets it when it restarts."""
ASK_S = 5.0


class OrganiserPass:
    """The admission of a watcher, signed anew whenever somebody asks for it; and whom else the organiser has let in."""

    def __init__(self, node: Node, organiser: Identity, run: bytes) -> None:
        self._node, self._organiser, self._run = node, organiser, run
        self._roster = AccessList(run, organiser.peer_id, asks_admission=True)
        node.serve(ADMISSION, self._signed)

    def _signed(self) -> bytes:
        return issue_admission(self._organiser, self._run, self._node.peer_id, time.time() + LASTS_S).to_bytes()

    async def keep(self) -> None:
        """Show it to the organiser's node again and again."""
        while True:
            await self.show()
            await asyncio.sleep(SHOW_S)

    async def show(self) -> None:
        """Show it once; if the organiser's node is away, peers behind routers are not met."""
        with suppress(Unreachable):
            await self._node.ask(self._organiser.peer_id, GUEST, ASK_S, request=self._signed())

    def let_in(self, heads: Mapping[str, PeerRecord]) -> dict[str, PeerRecord]:
        """Of what is said on the board, where anybody can write, what members of the run say."""
        for peer, head in heads.items():
            with suppress(Malformed):
                self._roster.learn(peer, head.admission or b"")
        return {peer: head for peer, head in heads.items() if self._roster.why_not(peer) is None}
