"""A lead's side of its cluster: which homes offer to work, which are still there, and what they are told."""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass

from dht.node import Node
from dht.streams.rpc import RateLimit
from peer.network.link.channel import LinkEnd
from peer.network.link.cluster_invite import ClusterInvite
from peer.network.link.cluster_messages import ASK, ClusterWord, OfferWork, pack_word, unpack_offer
from peer.schema.ipc import Assignment, HomeLost, HomeOffer, HomesOffered

LOOK_S = 1.0
SILENT_S = 8.0
"""A home that asks every two seconds and has not asked for so long is gone."""
MOST_HOMES = 64
WRONG = RateLimit(at_once=4, each=8, everybody=64, window_s=60.0, clock=time.monotonic)
"""Of wrong secrets: more are not even looked at."""


@dataclass(frozen=True)
class _Present:
    offer: HomeOffer
    at: float


class Offers:
    """The homes that work in a lead's cluster, or offer to. Answers each with the assignment."""

    def __init__(self, node: Node, pipe: LinkEnd, invite: ClusterInvite) -> None:
        self._pipe, self._invite = pipe, invite
        self._present: dict[str, _Present] = {}
        self._told: tuple[HomeOffer, ...] | None = None
        self._assignment: Assignment | None = None
        node.answer(ASK, self.answer)

    def assigned(self, assignment: Assignment) -> None:
        """From now on tell this assignment to all of its homes."""
        self._assignment = assignment

    async def answer(self, peer: str, request: bytes) -> bytes | None:
        """The answer to an authenticated peer. None for a peer that sends no offer, or too many wrong secrets."""
        try:
            offer = unpack_offer(request)
        except ValueError:
            return None
        if not hmac.compare_digest(offer.secret, self._invite.secret):
            if not WRONG.grant(peer, 1):
                return None
            return pack_word(ClusterWord(refused="this cluster's lead knows another secret; ask for a new line"))
        if peer not in self._present and len(self._present) >= MOST_HOMES:
            return pack_word(ClusterWord(refused="this cluster has more homes than it can use"))
        self._note(peer, offer)
        assignment = self._assignment
        return pack_word(ClusterWord(assignment if assignment is not None and assignment.of(peer) else None))

    def _note(self, peer: str, offer: OfferWork) -> None:
        home = HomeOffer(peer, offer.name, offer.memory_gb, offer.tokens_per_s, offer.upload_mbps)
        self._present[peer] = _Present(home, time.monotonic())
        self.look()

    def look(self) -> None:
        """Report which homes have come and which are gone."""
        now = time.monotonic()
        gone = [peer for peer, present in self._present.items() if now - present.at > SILENT_S]
        for peer in gone:
            del self._present[peer]
            self.lost(peer, f"has not been heard for {SILENT_S:.0f} s")
        offers = tuple(self._present[peer].offer for peer in sorted(self._present))
        if offers != self._told:
            self._told = offers
            self._pipe.send(HomesOffered(offers))

    def lost(self, peer: str, why: str) -> None:
        """Homes that hold a stage and no longer answer."""
        if self._assignment is not None and self._assignment.of(peer) is not None:
            self._pipe.send(HomeLost(peer, why))
