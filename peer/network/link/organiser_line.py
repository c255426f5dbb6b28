"""Reaches the organiser's node for a peer whose run has lost its quorum."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from math import inf

from dht.access import RejectCode
from dht.errors import Unreachable
from dht.node import Node
from peer.consensus.organiser.restart_desk import MAX_RESTART_BYTES, QUESTION, packed_question, read_restart
from peer.consensus.protocol.block import Restart, Roster, Stuck
from peer.schema.events import AlertRaised, Event

log = logging.getLogger(__name__)

ASK_S = 4.0
"""It is asked every five seconds."""

TELL_S = 60.0
"""Once the node has not answered for so long people are told what the run waits for."""
OVER_S = 30.0
"""Who is asked no more has its quorum again."""

Answered = Callable[[Restart | None], None]


class OrganiserLine:
    """`peer.consensus.rounds.driver.OrganiserPort` of a link: one request at a time, always the newest."""

    def __init__(
        self, node: Node, organiser: str, roster: Callable[[], Roster], report: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`roster` is that of the chain."""
        self._report, self._clock = report, clock
        self._asked_at, self._silent_since, self._is_told = -inf, inf, False
        self._node, self._organiser, self._roster = node, organiser, roster
        self._question: tuple[Stuck | None, Answered] | None = None
        self._is_asked = asyncio.Event()

    def ask(self, stuck: Stuck | None, answered: Answered) -> None:
        now = self._clock()
        if now - self._asked_at > OVER_S:
            self._silent_since, self._is_told = now, False
        self._asked_at = now
        self._question = stuck, answered
        self._is_asked.set()

    async def follow(self) -> None:
        """Send the requests, as long as this peer takes part."""
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
            given = None
        if given is None:  # it answers such questions not, or not yet
            self._tell_if_silent()
            return
        self._silent_since, self._is_told = self._clock(), False
        try:
            restart = read_restart(given) if given else None
        except ValueError as error:
            self._node.refusals(RejectCode.ORGANISER, self._organiser, f"it gives what is no Restart: {error}")
            return
        answered(restart)

    def _tell_if_silent(self) -> None:
        if self._is_told or self._clock() - self._silent_since < TELL_S:
            return
        self._is_told = True
        text = (
            "too few voters are here to decide, and the organiser's node does not answer: the run waits until those "
            "come back who are away, or its organiser starts the node (homefires bootstrap); training goes on"
        )
        self._report(AlertRaised(level="warning", code="NO_NODE", text=text))
