"""How the organiser's list of known peers reaches a peer.

The organiser's node gives it to everybody who asks. Afterwards voters pass it on to each other, and the chain carries
it. The round machine checks its signature.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dht.access import RejectCode
from dht.atomic_files import write_atomic
from dht.errors import BadInput, DiskFull, Unreachable
from dht.node import Node
from peer.consensus.organiser.rosters import MAX_ROSTER_BYTES, NUMBER_BYTES, QUESTION
from peer.consensus.protocol.block import NO_ROSTER, Roster
from peer.consensus.protocol.encoding import pack, unpack

log = logging.getLogger(__name__)

FILE = "roster"
"""In the folder of a peer."""
ASK_S = 5.0
HEAR_S = 10.0


class RosterLine:
    """`newest` is what this peer knows of; `heard` is called with a list that may be newer, checked by nobody yet."""

    def __init__(
        self, node: Node, organiser: str, directory: Path, newest: Callable[[], Roster], heard: Callable[[Roster], None]
    ) -> None:
        self._node, self._organiser, self._path = node, organiser, directory / FILE
        self._newest, self._heard = newest, heard
        self._kept = NO_ROSTER

    def load(self) -> None:
        """Hear what the folder keeps. Raises BadInput if it is damaged."""
        if self._path.exists():
            try:
                self._kept = Roster.unpacked(unpack(self._path.read_bytes()))
            except ValueError as error:
                why = "move it away, the newest list comes from the others"
                raise BadInput(f"{self._path} is damaged ({error}); {why}") from error
            self._heard(self._kept)

    def keep(self) -> None:
        """Have the newest on disk: the chain may not carry it yet when this peer starts again."""
        newest = self._newest()
        if newest.number <= self._kept.number:
            return
        self._kept = newest
        try:
            write_atomic(self._path, pack(newest.packed()))
        except DiskFull as error:
            log.warning("the organiser's list is not on disk: %s", error)

    async def follow(self) -> None:
        """Ask the organiser's node again and again, while there is a way to it."""
        while True:
            await self._ask()
            await asyncio.sleep(HEAR_S)

    async def _ask(self) -> None:
        number = self._newest().number.to_bytes(NUMBER_BYTES, "big")
        with suppress(Unreachable):  # it may be away for weeks
            if self._organiser not in await self._node.connections():
                return
            given = await self._node.ask(self._organiser, QUESTION, ASK_S, MAX_ROSTER_BYTES, number)
            if given:
                self._take(given)

    def _take(self, given: bytes) -> None:
        try:
            self._heard(Roster.unpacked(unpack(given)))
        except ValueError as error:
            self._node.refusals(RejectCode.ORGANISER, self._organiser, f"it gives what is no list: {error}")
