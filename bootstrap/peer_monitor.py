"""The peers that the board names: the health page shows them, and the node remembers them for its next start.

After a restart the node knows nobody, and at a new port nobody finds it. So it dials all peers of its earlier life at
once, and then one after the other as long as it runs, since they may be away for a while.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bootstrap.members import AdmissionBook, load_names, save_names
from bootstrap.organiser import OrdersFile
from bootstrap.status_page import Health
from dht.access import AccessList
from dht.addresses import can_be_dialled, peer_id_in
from dht.board import read_peers
from dht.errors import BadInput, DiskFull, Unreachable
from dht.node import Node
from dht.reach.peer_store import PeerStore
from dht.records import PeerRecord

PEERS_FILE = "peers.json"
"""In the organiser's folder: whom its node met, and where."""
LOOK_S = 10.0
DIAL_S = 5.0
NOTE_MOST = 4
"""Peers at a time that are written down, any of those who are here: ids cost nothing, and each is a write."""

log = logging.getLogger(__name__)


def is_relayed(peer: str, book: AdmissionBook | None, orders: OrdersFile, guests: AccessList, now_s: float) -> bool:
    """Whether this node relays for the peer, because it and others cannot dial each other: for members, and for
    `guests` that have shown an admission which is not in the book."""
    if peer in orders.look().quarantined:
        return False
    return book is None or peer in book.members(now_s) or guests.why_not(peer) is None


def _names_in(directory: Path) -> dict[str, str]:
    """The names of members; the node itself needs none."""
    try:
        return load_names(directory)
    except BadInput as error:
        log.warning("%s", error)
        return {}


class PeerMonitor:
    """Reads the board for a node. `book` is its list of members, in a run that has one."""

    def __init__(
        self, node: Node, directory: Path, book: AdmissionBook | None, orders: OrdersFile, health: Health
    ) -> None:
        self.health = health
        self._node, self._book, self._orders = node, book, orders
        self._directory, self._names = directory, _names_in(directory)
        self._remembered = PeerStore(directory / PEERS_FILE)
        self._in_turn = deque(self._remembered.addresses)
        self._look_at = 0.0

    async def heads(self) -> dict[str, PeerRecord]:
        """What each peer on the board says about itself, by peer id, with peers in quarantine."""
        heads = await read_peers(self._node.board)
        self.health.see(heads)
        return heads

    def let_in(self, heads: Mapping[str, PeerRecord]) -> dict[str, PeerRecord]:
        """The same for peers whose records are believed."""
        kept_out, members = self._orders.look().quarantined, self._members()
        return {
            peer: head for peer, head in heads.items() if peer not in kept_out and (members is None or peer in members)
        }

    async def heads_let_in(self) -> dict[str, PeerRecord]:
        return self.let_in(await self.heads())

    async def meet_again(self) -> None:
        """Dial all peers that were met in an earlier life; those that do not answer within DIAL_S are tried again
        later."""
        await asyncio.gather(*map(self._reach, self._in_turn))

    async def look(self) -> None:
        """If LOOK_S have passed, see which peers are there: show them, remember some, dial one of those met earlier."""
        if time.monotonic() < self._look_at:
            return
        heads = await self.heads_let_in()
        await self._remember(heads)
        self._note_names(heads)
        self._in_turn.rotate(-1)
        for address in list(self._in_turn)[:1]:
            await self._reach(address)
        self._look_at = time.monotonic() + LOOK_S

    async def _reach(self, address: str) -> None:
        with suppress(Unreachable):
            await self._node.reach(address, DIAL_S)

    async def _remember(self, heads: Mapping[str, PeerRecord]) -> None:
        """Write down the addresses of connected peers whose addresses are new."""
        try:
            connected = await self._node.connections()
        except Unreachable as error:
            log.info("%s", error)
            return
        known = set(self._remembered.addresses)
        moved = [
            peer
            for peer, head in heads.items()
            if peer in connected and not known.issuperset(_addresses_of(peer, head))
        ]
        for peer in random.sample(moved, min(NOTE_MOST, len(moved))):
            self._remembered.note(peer, heads[peer].addrs)

    def _note_names(self, heads: Mapping[str, PeerRecord]) -> None:
        members = self._members() or ()
        names = self._names | {peer: head.name for peer, head in heads.items() if peer in members and head.name}
        if names == self._names:
            return
        try:
            save_names(self._directory, names)
        except DiskFull as error:
            log.warning("what members call themselves is not on disk: %s", error)
            return
        self._names = names

    def members(self) -> frozenset[str]:
        """The peers that the organiser has admitted; none where everybody may take part."""
        return self._members() or frozenset()

    def _members(self) -> frozenset[str] | None:
        """None where everybody may take part."""
        return None if self._book is None else self._book.members(time.time())


def _addresses_of(peer: str, head: PeerRecord) -> list[str]:
    return [address for address in head.addrs if can_be_dialled(address) and peer_id_in(address) == peer]
