"""A worker's side of its cluster: it offers itself to its lead again and again, and learns which layers to hold."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping

from dht.errors import Unreachable
from dht.node import Node
from dht.records import PeerRecord
from peer.network.link.channel import LinkEnd
from peer.network.link.cluster_invite import ClusterInvite
from peer.schema.cluster_messages import ANSWER_BYTES, ASK, OfferWork, pack_offer, unpack_word
from peer.schema.ipc import Assignment, HomeLost, HomesMissing, SeekWork, StagesAssigned, Waiting

ASK_EVERY_S = 2.0
ASK_S = 4.0
MISSES = 3
"""A lead that does not answer so often in a row is gone."""


class WorkSeeker:
    """Asks its lead for a stage, and whether it still holds it."""

    def __init__(
        self, node: Node, pipe: LinkEnd, invite: ClusterInvite, name: str,
        read_heads: Callable[[], Awaitable[Mapping[str, PeerRecord]]], assigned: Callable[[Assignment], None],
        patience_s: float | None = None, upload_mbps: float = 0.0,
    ) -> None:  # fmt: skip
        """`assigned` is called with what it is to hold, whenever that changes. After `patience_s` without anything to
        hold, or once its lead refuses it, the trainer is told so; None: it waits for its lead for ever. `upload_mbps`:
        offered while the node knows none of its own."""
        self._patience_s, self._upload_mbps = patience_s, upload_mbps
        self._node, self._pipe, self._invite, self._name = node, pipe, invite, name
        self._read_heads, self._assigned = read_heads, assigned
        self._seeks: SeekWork | None = None
        self._is_known = asyncio.Event()
        """Set once its trainer has said what it may offer: no home is offered before."""
        pipe.on_work = self._know
        self._epoch, self._is_refused = 0, False
        self._missed = 0
        self._waits_for = ""
        """What the trainer was told last."""

    async def follow(self) -> None:
        await self._is_known.wait()
        began_at = time.monotonic()
        while True:
            await self._ask()
            is_late = not self._epoch and time.monotonic() - began_at > (self._patience_s or math.inf)
            if self._patience_s is not None and (is_late or self._is_refused):
                self._pipe.send(HomesMissing((self._invite.lead,)))
                self._patience_s = None
            await asyncio.sleep(ASK_EVERY_S)

    def _know(self, seek: SeekWork) -> None:
        self._seeks = seek
        self._is_known.set()

    async def _ask(self) -> None:
        seek = self._seeks
        assert seek is not None, "nothing is asked before the trainer has said what it may offer"
        offer = OfferWork(
            self._invite.secret, self._name[:64], seek.memory_gb, seek.tokens_per_s,
            self._node.upload_bps / 1e6 or self._upload_mbps, self._epoch,
        )  # fmt: skip
        try:
            packed = await self._node.ask(self._invite.lead, ASK, ASK_S, ANSWER_BYTES, pack_offer(offer))
        except Unreachable as error:
            await self._miss(str(error))
            return
        try:
            word = unpack_word(packed or b"")
        except ValueError:
            await self._miss("the lead of the cluster leads none now")
            return
        self._missed, self._is_refused = 0, bool(word.refused)
        if word.refused:
            self._wait(word.refused)
        elif word.assignment is None:
            self._wait("waiting for the other homes of the cluster")
        elif word.assignment.epoch > self._epoch and word.assignment.of(self._node.peer_id) is not None:
            self._epoch, self._waits_for = word.assignment.epoch, ""
            self._assigned(word.assignment)
            self._pipe.send(StagesAssigned(word.assignment))

    def _wait(self, why: str) -> None:
        if why != self._waits_for:
            self._waits_for = why
            self._pipe.send(Waiting(why))

    async def _miss(self, why: str) -> None:
        """Look for another way to the lead; report once it is gone."""
        self._missed += 1
        if self._missed == MISSES:
            self._pipe.send(HomeLost(self._invite.lead, f"does not answer: {why}"))
        if not self._epoch:
            self._wait("looking for the lead of the cluster, which does not answer")
        head = (await self._read_heads()).get(self._invite.lead)
        if head is not None:
            await self._node.meet(self._invite.lead, head.ways(self._invite.lead))
