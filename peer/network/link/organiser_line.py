"""The way to the organiser's node for a peer whose run has lost its quorum."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dht.access import RejectCode
from dht.errors import Unreachable
from dht.node import Node
from peer.consensus.protocol.block import Restart, Roster, Stuck
from peer.consensus.protocol.restart_desk import MAX_RESTART_BYTES, QUESTION, packed_question, read_restart

log = logging.getLogger(__name__)

ASK_S = 4.0
"""It is asked every five seconds."""

Answered = Callable[[Restart | None], None]


class OrganiserLine:
    """`peer.consensus.rounds.driver.OrganiserPort` of a link: one question at a time, always the newest."""

    def __init__(self, node: Node, organiser: str, roster: Callable[[], Roster]) -> None:
        """`roster` is that of the chain."""
        self._node, self._organiser, self._roster = node, organiser, roster
        self._question: tuple[Stuck | None, Answered] | None = None
        self._is_asked = asyncio.Event()

    def ask(self, stuck: Stuck | None, answered: Answered) -> None:
        self._question = stuck, answered
        self._is_asked.set()

    async def follow(self) -> None:
        """Put the questions, for as long as this peer takes part."""
        while True:
            await self._is_asked.wait()
            self._is_asked.clear()
            if self._question is not None:
                await self._put(*self._question)

    async def _put(self, stuck: Stuck | None, answered: Answered) -> None:
        question = packed_question(stuck, self._roster())
        try:
            given = await self._node.ask(self._organiser, QUESTION, ASK_S, MAX_RESTART_BYTES, request=question)
        except Unreachable as error:
            log.info("the organiser's node: %s", error)
            return
        if given is None:
            return  # it answers such questions not, or not yet
        try:
            restart = read_restart(given) if given else None
        except ValueError as error:
            self._node.refusals(RejectCode.ORGANISER, self._organiser, f"it gives what is no Restart: {error}")
            return
        answered(restart)
