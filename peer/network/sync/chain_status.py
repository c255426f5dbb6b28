"""What peers report about their chains and snapshots, and how to ask for it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgpack

from dht.errors import Unreachable
from dht.streams.base import Asking
from peer.consensus.protocol.encoding import DIGEST_BYTES, MAX_ENTRIES, integer, octets, pack, row, rows

ASK_TIMEOUT_S = 8.0
ASK_MOST = 16
CHAIN_STATUS = "chain-status"
STANDING_BYTES = 1 << 12
ANCHORS_MOST = 64
OFFERS_MOST = 4


@dataclass(frozen=True, kw_only=True)
class SnapshotOffer:
    """A snapshot that a peer can give."""

    round: int
    anchor: bytes
    manifest: bytes
    """Digest of its manifest."""
    vector_bytes: int
    layers: range | None = field(default=None, compare=False)
    """The layers that this peer has of it, if it is a home of a cluster; None for all."""


@dataclass(frozen=True, kw_only=True)
class ChainStatus:
    """What a peer reports about its chain."""

    round: int
    shared: int
    """Round of the newest of the asker's anchors that is on this chain; -1 for none."""
    offers: tuple[SnapshotOffer, ...]

    def to_bytes(self) -> bytes:
        return pack((self.round, self.shared, tuple(map(_offer_row, self.offers))))

    @classmethod
    def from_bytes(cls, packed: bytes) -> ChainStatus:
        """Raises ValueError."""
        round, shared, offers = row(_unpacked(packed), 3)
        return cls(
            round=integer(round, 0), shared=integer(shared, -1),
            offers=tuple(_offer(item) for item in rows(offers, OFFERS_MOST)),
        )  # fmt: skip


def ask_chain_status(anchors: tuple[bytes, ...]) -> bytes:
    """The request for STANDING; the newest of my anchors first."""
    return pack(anchors[:ANCHORS_MOST])


def _offer_row(offer: SnapshotOffer) -> tuple[object, ...]:
    span = () if offer.layers is None else (offer.layers[0], offer.layers[-1])
    return (offer.round, offer.anchor, offer.manifest, offer.vector_bytes, *span)


def _offer(value: object) -> SnapshotOffer:
    is_span = isinstance(value, tuple) and len(value) == 6
    round, anchor, manifest, vector_bytes, *span = row(value, 6 if is_span else 4)
    first, last = span or (0, 0)
    return SnapshotOffer(
        round=integer(round, 1), anchor=octets(anchor, DIGEST_BYTES), manifest=octets(manifest, DIGEST_BYTES),
        vector_bytes=integer(vector_bytes, 8),
        layers=range(integer(first, 0, MAX_ENTRIES), integer(last, first, MAX_ENTRIES) + 1) if span else None,
    )  # fmt: skip


def _unpacked(packed: bytes) -> object:
    """Raises ValueError."""
    try:
        return msgpack.unpackb(packed, use_list=False, max_array_len=ANCHORS_MOST, max_map_len=0, max_ext_len=0)
    except msgpack.UnpackException as error:
        raise ValueError(f"not msgpack: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Donors:
    """The donors of a file."""

    donors: tuple[str, ...]
    spans: Mapping[str, range] = field(default_factory=dict)
    """The layers of donors that have only some."""


@dataclass(frozen=True, kw_only=True)
class SnapshotChoice(Donors):
    """A snapshot, and its donors."""

    offer: SnapshotOffer


def whom_to_ask(peers: Iterable[str], first: Sequence[str]) -> tuple[str, ...]:
    """At most ASK_MOST of these peers. Ids cost nothing: if there are too many peers, those in `first` come before
    others, and of the others it is a random choice each time."""
    everybody = set(peers)
    known = [peer for peer in dict.fromkeys(first) if peer in everybody]
    others = sorted(everybody.difference(known))
    return (*known, *random.sample(others, len(others)))[:ASK_MOST]


async def query_status(asker: Asking, peers: Iterable[str], anchors: tuple[bytes, ...]) -> dict[str, ChainStatus]:
    """What these peers, or some of them, say of their chains, by peer; who does not answer, or says nonsense, is left
    out."""
    asked = tuple(peers)[:ASK_MOST]
    answers = await asyncio.gather(*(_ask(asker, peer, ask_chain_status(anchors)) for peer in asked))
    return {peer: answer for peer, answer in zip(asked, answers, strict=True) if answer is not None}


async def _ask(asker: Asking, peer: str, request: bytes) -> ChainStatus | None:
    try:
        answer = await asker.ask(peer, CHAIN_STATUS, ASK_TIMEOUT_S, STANDING_BYTES, request)
        return None if answer is None else ChainStatus.from_bytes(answer)
    except (Unreachable, ValueError):
        return None
