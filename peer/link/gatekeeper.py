"""Whom this link serves: asks strangers for their admission, hears what the organiser orders, and passes it on.

Nobody needs the organiser's node for that: a peer shows its own admission, and orders pass from peer to peer.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dht.access import AccessList, RejectCode
from dht.admission import (
    MAX_ADMISSION_BYTES,
    MAX_ORDERS_BYTES,
    QuarantineList,
    load_quarantine,
    read_quarantine,
    save_quarantine,
)
from dht.errors import DiskFull, Unreachable
from dht.node import Node
from dht.reach.dial_back import KNOCK
from dht.records import Malformed, PeerRecord
from peer.events import AlertRaised

log = logging.getLogger(__name__)

ADMISSION = "admission"
"""Under this name a peer shows its own."""
ORDERS = "quarantine"
"""Under this name everybody gives the newest orders, if they are newer than the number in the request."""
OPEN = frozenset({"spec", ADMISSION, ORDERS, "time", KNOCK, ""})
"""What anybody may ask. The empty name is that of a question that measures a round trip."""
ASK_S = 5.0
ASKED_AT_ONCE = 16
"""Strangers, and peers that say to have newer orders. One more has to wait."""
HEAR_S = 10.0
NUMBER_BYTES = 8


class Gatekeeper:
    """Stands between a node and the other peers of the run. `changed` is called with new orders and the ones before."""

    def __init__(self, node: Node, roster: AccessList, directory: Path, run: bytes, organiser: str) -> None:
        self.roster = roster
        self.changed: Callable[[QuarantineList, QuarantineList], None] = lambda orders, before: None
        self._node, self._path = node, directory / ORDERS
        self._run, self._organiser = run, organiser
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._further: dict[str, int] = {}
        """Who says on the board that it has newer orders, and which."""

    def stand(self) -> None:
        """From now on. Raises BadInput if what the folder keeps is damaged."""
        self.roster.obey(load_quarantine(self._path, self._run, self._organiser))
        self._node.guard(self.lets_in, OPEN)
        self._node.answer(ORDERS, self._give_orders)

    # ---- who may come in ----

    async def lets_in(self, peer: str) -> bool:
        """Whether a peer may open streams and ask; one that is not known is asked for its admission."""
        refused = self.roster.why_not(peer)
        if refused is not None and refused[0] is RejectCode.STRANGER:
            await self._ask_admission(peer)
            refused = self.roster.why_not(peer)
        if refused is not None:
            self._node.refusals(refused[0], peer, refused[1])
        return refused is None

    async def _ask_admission(self, peer: str) -> None:
        if peer not in self._asking and len(self._asking) >= ASKED_AT_ONCE:
            return
        if peer not in self._asking:
            self._asking[peer] = asyncio.create_task(self._learn(peer))
            self._asking[peer].add_done_callback(lambda _: self._asking.pop(peer, None))
        await asyncio.wait([self._asking[peer]])

    async def _learn(self, peer: str) -> None:
        try:
            shown = await self._node.ask(peer, ADMISSION, ASK_S, MAX_ADMISSION_BYTES)
            if shown is not None:
                self.roster.learn(peer, shown)
        except Unreachable as error:
            log.info("%s", error)
        except Malformed as error:
            self._node.refusals(RejectCode.STRANGER, peer, f"what it shows is no admission: {error}")

    def takes(self, peer: str, said: PeerRecord) -> bool:
        """Whether what a peer says of itself on the board is listened to; looks at what it says of orders, too."""
        if said.admission is not None and self.roster.asks_admission:
            with suppress(Malformed):
                self.roster.learn(peer, said.admission)
        refused = self.roster.why_not(peer)
        if refused is not None:
            self._node.refusals(refused[0], peer, refused[1])
        elif said.orders is not None and said.orders > self.roster.orders.number:
            self._further[peer] = said.orders
        return refused is None

    def show_out(self) -> None:
        """Cut the streams of those who are kept out and whom no round needs any more."""
        for peer in self.roster.kept_out() - set(self.roster.needed()):
            self._node.cut(peer)

    # ---- what the organiser orders ----

    async def follow(self) -> None:
        """Ask again and again: the organiser's node, and who has heard of newer orders."""
        while True:
            await self.hear()
            await asyncio.sleep(HEAR_S)

    async def hear(self) -> None:
        """Ask once, whoever may know more."""
        connected: set[str] = set()
        with suppress(Unreachable):
            connected = set(await self._node.connections())
        asked = [peer for peer in self._further if self._further[peer] > self.roster.orders.number]
        self._further.clear()
        # In an open run anybody says so: whom a round needs is asked before those of whom nothing is known.
        needed = self.roster.needed()
        asked.sort(key=lambda peer: (peer not in needed, random.random()))
        asked = [*({self._organiser} & connected), *asked[:ASKED_AT_ONCE]]
        await asyncio.gather(*(self._ask_orders(peer) for peer in dict.fromkeys(asked)))

    async def _ask_orders(self, peer: str) -> None:
        number = self.roster.orders.number.to_bytes(NUMBER_BYTES, "big")
        try:
            given = await self._node.ask(peer, ORDERS, ASK_S, MAX_ORDERS_BYTES, number)
            if given:
                self._obey(read_quarantine(given, self._run, self._organiser))
        except Unreachable as error:
            log.info("%s", error)
        except Malformed as error:
            self._node.refusals(RejectCode.ORGANISER, peer, f"it gives orders that count for nobody: {error}")

    def _obey(self, orders: QuarantineList) -> None:
        before = self.roster.orders
        if not self.roster.obey(orders):
            return
        try:
            save_quarantine(self._path, orders)
        except DiskFull as error:
            log.warning("the organiser's orders are not on disk: %s", error)
        self.changed(orders, before)

    async def _give_orders(self, peer: str, request: bytes) -> bytes | None:
        orders = self.roster.orders
        return orders.to_bytes() if orders.number > int.from_bytes(request[:NUMBER_BYTES], "big") else None


def quarantine_alerts(orders: QuarantineList, before: QuarantineList, me: str) -> list[AlertRaised]:
    """What people hear of it: who came into quarantine and why, and who is out again."""
    alerts = []
    for peer, reason in sorted(orders.quarantined.items()):
        if before.quarantined.get(peer) == reason:
            continue
        who = "this peer" if peer == me else peer
        level = "error" if peer == me else "warning"
        text = f"the organiser has put {who} in quarantine: {reason}; nobody works with it until that is lifted"
        alerts.append(AlertRaised(level=level, code=RejectCode.QUARANTINE, text=text))
    for peer in sorted(before.quarantined.keys() - orders.quarantined.keys()):
        who = "this peer" if peer == me else peer
        alerts.append(AlertRaised(level="info", code=RejectCode.QUARANTINE, text=f"the quarantine of {who} is lifted"))
    return alerts
