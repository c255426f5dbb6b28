"""The organiser's list on its way to a peer: asked for, passed to the machine, kept for the next life."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from dht.access import RejectCode, RejectionLog
from dht.errors import BadInput, Unreachable
from dht.node import Node
from peer.consensus.organiser.rosters import NUMBER_BYTES, QUESTION
from peer.consensus.protocol.block import NO_ROSTER, Roster
from peer.consensus.protocol.encoding import pack
from peer.network.link.roster_line import FILE, RosterLine

ORGANISER = "organiser"
NEWER = Roster(7, ("a", "b"), ("c",), bytes(64))


class Organiser:
    """Its node, as this peer asks it; without an answer it is away."""

    def __init__(self, answer: bytes | None = None, *, is_connected: bool = True) -> None:
        self.refusals = RejectionLog()
        self.refused: list[RejectCode] = []
        self.refusals.hear = lambda code, who, why: self.refused.append(code)
        self.asked: list[int] = []
        self.is_looked_for = asyncio.Event()
        self._answer, self._is_connected = answer, is_connected

    async def connections(self) -> dict[str, str]:
        asyncio.get_running_loop().call_soon(self.is_looked_for.set)
        return {ORGANISER: "outgoing"} if self._is_connected else {}

    async def ask(self, peer: str, name: str, timeout_s: float, most: int, request: bytes = b"") -> bytes | None:
        assert (peer, name, len(request)) == (ORGANISER, QUESTION, NUMBER_BYTES)
        self.asked.append(int.from_bytes(request, "big"))
        if self._answer is None:
            raise Unreachable("nobody answers")
        return self._answer


class Peer:
    """Its machine takes every list that it has not signed itself."""

    def __init__(self, organiser: Organiser, folder: Path) -> None:
        self.newest = NO_ROSTER
        self.line = RosterLine(cast(Node, organiser), ORGANISER, folder, lambda: self.newest, self.hear)

    def hear(self, roster: Roster) -> None:
        self.newest = roster


async def looked_once(peer: Peer, organiser: Organiser) -> None:
    task = asyncio.create_task(peer.line.follow())
    async with asyncio.timeout(5):
        await organiser.is_looked_for.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_newer_list_is_heard_and_kept_and_heard_again_in_the_next_life(tmp_path: Path) -> None:
    organiser = Organiser(pack(NEWER.packed()))
    peer = Peer(organiser, tmp_path)
    peer.line.load()
    await looked_once(peer, organiser)
    assert (peer.newest, organiser.asked) == (NEWER, [0])
    peer.line.keep()
    later = Peer(Organiser(), tmp_path)
    later.line.load()
    assert later.newest == NEWER


async def test_a_node_that_is_away_is_not_dialled_and_its_silence_is_no_fault(tmp_path: Path) -> None:
    for organiser in (Organiser(is_connected=False), Organiser()):
        peer = Peer(organiser, tmp_path)
        await looked_once(peer, organiser)
        assert (peer.newest, organiser.refused) == (NO_ROSTER, [])
    assert organiser.asked == [0]


async def test_what_is_no_list_is_refused_by_name(tmp_path: Path) -> None:
    organiser = Organiser(b"\xc1")
    await looked_once(Peer(organiser, tmp_path), organiser)
    assert organiser.refused == [RejectCode.ORGANISER]


async def test_what_others_passed_on_is_kept_too_and_a_damaged_file_is_told(tmp_path: Path) -> None:
    peer = Peer(Organiser(), tmp_path)
    peer.newest = NEWER
    peer.line.keep()
    (tmp_path / FILE).write_bytes(b"no list")
    with pytest.raises(BadInput, match="roster is damaged"):
        Peer(Organiser(), tmp_path).line.load()
