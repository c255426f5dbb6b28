"""A watcher with the organiser's key: what it shows, and whom it listens to."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dht.admission import issue_admission, read_admission
from dht.errors import Unreachable
from dht.identity import Identity
from dht.records import PeerRecord
from peer.tools.watch.watch_session import GUEST, LASTS_S, OrganiserPass

ORGANISER, WATCHER, ALICE, BOB, EVE = (Identity.from_seed(letter * 32) for letter in (b"o", b"w", b"a", b"b", b"e"))
RUN = b"r" * 32


class GuardedNode:
    """What a watcher uses of its node."""

    peer_id = WATCHER.peer_id

    def __init__(self, *, is_organiser_there: bool = True) -> None:
        self.served: dict[str, Callable[[], bytes]] = {}
        self.asked: list[tuple[str, str, bytes]] = []
        self._is_organiser_there = is_organiser_there

    def serve(self, name: str, provider: Callable[[], bytes]) -> None:
        self.served[name] = provider

    async def ask(self, peer: str, name: str, timeout_s: float, request: bytes) -> bytes | None:
        self.asked.append((peer, name, request))
        if not self._is_organiser_there:
            raise Unreachable("nobody there")
        return b""


def head(admission: bytes | None) -> PeerRecord:
    fields: dict[str, Any] = {"run": RUN, "anchor": b"", "round": 3, "weight": 0, "state": b"", "ready": True}
    fields |= {"tokens": 0, "steps": 0, "leaving": False}
    return PeerRecord(**fields, name="x", version="0", admission=admission)


async def test_it_shows_an_admission_that_the_organiser_has_signed_for_it() -> None:
    """To every peer that asks, and to the organiser's node, whether that is there or not."""
    for is_there in (True, False):
        node = GuardedNode(is_organiser_there=is_there)
        admitted = OrganiserPass(node, ORGANISER, RUN)  # type: ignore[arg-type]
        await admitted.show()
        ((peer, name, request),) = node.asked
        assert (peer, name) == (ORGANISER.peer_id, GUEST)
        for shown in (request, node.served["admission"]()):
            read = read_admission(shown, RUN, ORGANISER.peer_id, WATCHER.peer_id)
            assert LASTS_S - 60 < read.expires - time.time() <= LASTS_S


def test_it_listens_to_members_alone() -> None:
    """Anybody can write on the board; what one shows is of no use to another, nor when it is over."""
    alice, over = (issue_admission(ORGANISER, RUN, ALICE.peer_id, time.time() + s).to_bytes() for s in (60, -60))
    said = {ALICE.peer_id: head(alice), BOB.peer_id: head(None), EVE.peer_id: head(alice)}
    admitted = OrganiserPass(GuardedNode(), ORGANISER, RUN)  # type: ignore[arg-type]
    assert admitted.let_in(said).keys() == {ALICE.peer_id}
    late = OrganiserPass(GuardedNode(), ORGANISER, RUN)  # type: ignore[arg-type]
    assert late.let_in({ALICE.peer_id: head(over)}) == {}
