"""A lead's side of its cluster: which homes offer to work, which are still there, and what they are told."""

from __future__ import annotations

import hmac
import time
from collections.abc import Sequence
from dataclasses import dataclass

from dht.node import Node
from dht.records import MAX_MEASURE, SoughtHomes
from dht.streams.rpc import RateLimit
from peer.network.link.channel import LinkEnd
from peer.network.link.cluster_invite import ASSEMBLE_S, ClusterInvite, FoundCluster
from peer.network.link.discovery import Announcer
from peer.schema.cluster_messages import (
    ASK,
    GATHER,
    ClusterWord,
    GatherWord,
    OfferWork,
    pack_gather,
    pack_word,
    unpack_offer,
)
from peer.schema.ipc import Assignment, HomeLost, HomeOffer, HomesMissing, HomesOffered

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
        self._expelled: frozenset[str] = frozenset()
        node.answer(ASK, self.answer)

    @property
    def present(self) -> frozenset[str]:
        """The homes that are here."""
        return frozenset(self._present)

    @property
    def is_assigned(self) -> bool:
        return self._assignment is not None

    def assigned(self, assignment: Assignment) -> None:
        """From now on tell this assignment to all of its homes."""
        self._assignment = assignment

    def expel(self, homes: Sequence[str]) -> None:
        """From now on these count as absent, whatever they offer."""
        self._expelled = frozenset(homes)
        self._present = {peer: present for peer, present in self._present.items() if peer not in self._expelled}
        self.look()

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
        if peer in self._expelled:
            text = "this cluster's lead found garbage in what this home sent, and gives it no layers until it restarts"
            return pack_word(ClusterWord(refused=text))
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


class OpenPlaces:
    """The part of a found cluster's lead that says on the board how many homes it lacks, and gives its line to
    whoever asks: in a run that is open to all this cluster is, too."""

    def __init__(
        self, node: Node, pipe: LinkEnd, notices: Announcer, invite: ClusterInvite, found: FoundCluster, offers: Offers
    ) -> None:
        self._pipe, self._notices, self._invite = pipe, notices, invite
        self._found, self._offers = found, offers
        self._until = time.monotonic() + ASSEMBLE_S
        node.answer(GATHER, self._answer)

    async def _answer(self, peer: str, request: bytes) -> bytes | None:
        return pack_gather(GatherWord(self._invite.text(), self._found.order))

    def look(self) -> None:
        """Say what is lacking now, and once if the cluster does not form."""
        here, needed = self._offers.present, len(self._found.order) - 1
        self._notices.homes.said = SoughtHomes(
            leads=True, free=max(0, needed - len(here)), expects=min(self._found.tokens_per_s, MAX_MEASURE)
        )
        may_fail = not self._found.is_formed and not self._offers.is_assigned
        if may_fail and time.monotonic() > self._until:
            self._until = float("inf")
            self._pipe.send(HomesMissing(tuple(peer for peer in self._found.order[1:] if peer not in here)))
