"""A peer whose run has lost its quorum asks the organiser's node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest

from dht.access import RejectCode, RejectionLog
from dht.errors import Unreachable
from dht.identity import Identity, RunKeys
from dht.node import Node
from peer.consensus.organiser.restart_desk import QUESTION, packed_question
from peer.consensus.protocol.block import Restart, Roster, Stuck
from peer.consensus.protocol.encoding import digest, pack
from peer.network.link.organiser_line import TELL_S, OrganiserLine
from peer.schema.events import AlertRaised, Event

RUN, ORGANISER, ANCHOR = b"r" * 32, "organiser", digest("anchor")
ALICE = Identity.from_seed(b"a" * 32)
STUCK = Stuck(ALICE.peer_id, ANCHOR, (ALICE.peer_id,), 1).signed(RunKeys(ALICE, RUN))
ROSTER = Roster(0, (ALICE.peer_id,))
RESTART = Restart(ANCHOR, 1, (STUCK,), False, bytes(64))


class Organiser:
    """Its node, as this peer asks it: gives what it is told to, or is away (None in `answers` is nothing to say)."""

    def __init__(self, *answers: bytes | Unreachable | None) -> None:
        self.refusals = RejectionLog()
        self.refused: list[RejectCode] = []
        self.refusals.hear = lambda code, who, why: self.refused.append(code)
        self.requests: list[bytes] = []
        self.events: list[Event] = []
        self.now = 0.0
        self.is_asked, self.is_done = asyncio.Event(), asyncio.Event()
        self._answers = list(answers)

    async def ask(self, peer: str, name: str, timeout_s: float, most: int, request: bytes = b"") -> bytes | None:
        assert (peer, name) == (ORGANISER, QUESTION)
        self.requests.append(request)
        self.now += 5.0
        self.is_asked.set()
        given = self._answers.pop(0)
        if not self._answers:
            asyncio.get_running_loop().call_soon(self.is_done.set)
        if isinstance(given, Unreachable):
            raise given
        return given


@asynccontextmanager
async def line_to(organiser: Organiser) -> AsyncIterator[OrganiserLine]:
    line = OrganiserLine(
        cast(Node, organiser), ORGANISER, lambda: ROSTER, organiser.events.append, lambda: organiser.now
    )
    task = asyncio.create_task(line.follow())
    yield line
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def heard(organiser: Organiser, *asked: Stuck | None) -> list[Any]:
    """What a peer hears that asks these things, one after the other."""
    told: list[Any] = []
    async with line_to(organiser) as line:
        for stuck in asked:
            organiser.is_asked.clear()
            line.ask(stuck, told.append)
            async with asyncio.timeout(5):
                await organiser.is_asked.wait()
        async with asyncio.timeout(5):
            await organiser.is_done.wait()
    return told


async def test_a_node_that_answers_is_there_and_tells_the_restart_once_there_is_one() -> None:
    organiser = Organiser(b"", b"", pack(RESTART.packed()))
    assert await heard(organiser, None, STUCK, STUCK) == [None, None, RESTART]
    assert organiser.requests == [b"", packed_question(STUCK, ROSTER), packed_question(STUCK, ROSTER)]


@pytest.mark.parametrize("answer", [None, Unreachable("nobody answers")])
async def test_a_node_that_is_away_or_has_nothing_to_say_is_not_there(answer: Unreachable | None) -> None:
    """Else who seals could never go on."""
    organiser = Organiser(answer)
    assert await heard(organiser, STUCK) == []
    assert organiser.refused == []


async def test_what_is_no_restart_is_refused_by_name() -> None:
    organiser = Organiser(b"\xc1")
    assert await heard(organiser, STUCK) == []
    assert organiser.refused == [RejectCode.ORGANISER]


async def test_only_the_newest_question_is_put() -> None:
    organiser, told = Organiser(b""), []
    async with line_to(organiser) as line:
        line.ask(None, told.append)
        line.ask(STUCK, told.append)
        async with asyncio.timeout(5):
            await organiser.is_done.wait()
    assert organiser.requests == [packed_question(STUCK, ROSTER)]


async def test_people_are_told_once_what_the_run_waits_for_where_no_node_answers() -> None:
    away = Unreachable("nobody answers")
    few = int(TELL_S / 5.0) - 1
    organiser = Organiser(*[away] * few)
    await heard(organiser, *[None] * few)
    assert organiser.events == []
    organiser = Organiser(*[away] * 3 * few, b"")
    await heard(organiser, *[None] * (3 * few + 1))
    (event,) = organiser.events
    assert isinstance(event, AlertRaised)
    assert event.code == "NO_NODE"
    assert "homefires bootstrap" in event.text
