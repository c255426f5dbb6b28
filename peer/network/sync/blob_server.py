"""What a peer gives to newcomers: the status of its chain, the way along it, manifests and chunks of its snapshots.

It answers on streams of their own and waits while this peer exchanges parts of a round, so that a download never slows
those who train.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dht.errors import BadInput
from dht.node import Node
from peer.consensus.organiser import light_chain
from peer.consensus.protocol.encoding import DIGEST, DIGEST_BYTES, digest_of, each, integer, octets, pack, row
from peer.network.sync.chain_status import (
    ANCHORS_MOST,
    CHAIN_STATUS,
    OFFERS_MOST,
    ChainStatus,
    SnapshotOffer,
    _unpacked,
)
from peer.node.store import snapshots
from peer.node.store.chain import ChainStore
from peer.node.store.chunked_file import ChunkedFile, chunk_at
from peer.node.store.snapshots import SnapshotManifest

MANIFEST = "manifest"
CHUNK = "chunk"
BUSY = b""
"""Answers a question that may be put again later."""
TAKERS = 4
"""Peers that are given chunks at a time; so many strangers besides those whom the run knows."""
TURN_S = 30.0
"""After so long a stranger that takes chunks is put off while others wait, and comes back after as long."""
TAKER_S = 10.0
"""Who has not asked for so long is no taker any more."""
HOLD_S = 60.0
"""A snapshot that somebody takes can be read for so long after the last question, though newer ones replace it."""
QUIET_S = 5.0
"""A question waits this long for the exchange of a round to end; then it is put off."""
POLL_S = 0.05


def ask_chunk(manifest: bytes, chunk: int) -> bytes:
    """The request for CHUNK."""
    return pack((manifest, chunk))


@dataclass
class OpenBlob:
    """A file that is kept open."""

    manifest: ChunkedFile
    vectors: BinaryIO
    asked_at: float


class BlobServer:
    """Answers the requests of newcomers from one run directory."""

    def __init__(self, directory: Path, executor: Executor, upload_bps: int) -> None:
        self.disk: ChainStore | None = None
        """The chain; None while this peer has none."""
        self.is_exchanging: Callable[[], bool] = lambda: False
        """Whether a round needs the line now."""
        self.may_have: Callable[[str, int], bool] = lambda peer, size_bytes: True
        """Whether a peer may have an answer of so many bytes; answers with snapshots have a rate of their own."""
        self._directory, self._executor, self._upload_bps = directory, executor, upload_bps
        self._manifests: dict[str, tuple[SnapshotOffer, SnapshotManifest]] = {}
        """By the folder's name: the offer of a snapshot, and its manifest."""
        self._kept: dict[bytes, tuple[Path, ChunkedFile]] = {}
        """By the manifest's digest: files that are given as long as they exist."""
        self._held: dict[bytes, OpenBlob] = {}
        """By the manifest's digest: files that some peer downloads."""
        self.is_known: Callable[[str], bool] = lambda peer: False
        """Whether a peer has a part in the run, or was admitted."""
        self._takers: dict[str, tuple[float, float]] = {}
        """Since when each peer downloads chunks, and when it asked last."""
        self._put_off: dict[str, float] = {}
        """Peers that have had a turn, and until when others come first."""
        self._refused_at = float("-inf")
        """When a peer was last refused for want of room."""
        self._free_at = 0.0

    def keep(self, path: Path, manifest: ChunkedFile) -> None:
        """Give this file, too, to peers that know its digest."""
        self._kept[digest_of(manifest.to_bytes())] = path, manifest

    def listen(self, node: Node) -> None:
        node.answer(CHAIN_STATUS, self.standing)
        node.answer(light_chain.QUESTION, self.way)
        node.answer(MANIFEST, self.manifest)
        node.answer(CHUNK, self.chunk)

    def allow(self, upload_bps: int) -> None:
        """Set the rate; 0 gives nothing."""
        self._upload_bps = upload_bps

    def close(self) -> None:
        self.disk = None
        self._manifests.clear()
        while self._held:
            self._held.popitem()[1].vectors.close()

    async def standing(self, peer: str, request: bytes) -> bytes | None:
        if self.disk is None:
            return None
        try:
            anchors = each(DIGEST, ANCHORS_MOST)(_unpacked(request))
        except ValueError:
            return None
        known = self.disk.ancestors
        offers = self._offered(known)
        return ChainStatus(
            round=self.disk.head.round,
            shared=next((known[anchor] for anchor in anchors if anchor in known), -1),
            offers=tuple(offers if self._upload_bps else ())[-OFFERS_MOST:],
        ).to_bytes()  # fmt: skip

    async def way(self, peer: str, request: bytes) -> bytes | None:
        """The way between the rounds of the request; nothing if this peer does not have all of it."""
        if self.disk is None or not self.may_have(peer, 0):  # it is made and packed for those alone who get it
            return None
        try:
            way = self.disk.way_between(*light_chain.read_question(request))
        except ValueError:
            return None
        packed = light_chain.packed_way(way) if way else b""
        return packed if packed and self.may_have(peer, len(packed)) else None

    async def manifest(self, peer: str, request: bytes) -> bytes | None:
        """The manifest with this digest; nothing while others are served."""
        if not self._takes_on(peer) or (held := self._hold(request)) is None:
            return None
        return held.manifest.to_bytes()

    async def chunk(self, peer: str, request: bytes) -> bytes | None:
        """One chunk of a snapshot; BUSY if others are served or a round needs the line."""
        try:
            digest, number = row(_unpacked(request), 2)
            held = self._hold(octets(digest, DIGEST_BYTES))
            if held is None:
                return None
            integer(number, 0, len(held.manifest.chunks) - 1)
        except ValueError:
            return None
        if not self._takes_on(peer) or not await self._is_free(held.manifest.chunk_bytes(number)):
            return BUSY
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._executor, chunk_at, held.vectors.fileno(), held.manifest, number
        )  # fmt: skip

    def _hold(self, digest: bytes) -> OpenBlob | None:
        """Keep a snapshot open while some peer downloads it: the trainer removes it when it has written two newer
        ones."""
        if digest not in self._held:
            path, manifest = self._kept.get(digest) or self._snapshot(digest)
            if path is None or manifest is None or not path.exists():
                return None
            self._held[digest] = OpenBlob(manifest, path.open("rb"), time.monotonic())
            asyncio.get_running_loop().call_later(HOLD_S, self._let_go, digest)
        self._held[digest].asked_at = time.monotonic()
        return self._held[digest]

    def _snapshot(self, digest: bytes) -> tuple[Path | None, ChunkedFile | None]:
        for name, (offer, manifest) in self._manifests.items():
            if offer.manifest == digest:
                return self._directory / snapshots.FOLDER / name / snapshots.VECTORS, manifest
        return None, None

    def _let_go(self, digest: bytes) -> None:
        if digest not in self._held:
            return
        rest_s = self._held[digest].asked_at + HOLD_S - time.monotonic()
        if rest_s > 0:
            asyncio.get_running_loop().call_later(rest_s, self._let_go, digest)
        else:
            self._held.pop(digest).vectors.close()

    def _offered(self, known: dict[bytes, int]) -> list[SnapshotOffer]:
        """Snapshots on my chain, oldest first. One that is damaged, or is removed meanwhile, is not offered."""
        assert self.disk is not None
        head = self.disk.head
        names = {snapshots.path_of(self._directory, *item).name for item in snapshots.names(self._directory)}
        self._manifests = {name: item for name, item in self._manifests.items() if name in names}
        for name in sorted(names - self._manifests.keys()):
            path = self._directory / snapshots.FOLDER / name
            with suppress(BadInput):
                manifest = snapshots.read_manifest(path)
                here = snapshots.layers_in(path, manifest)
                self._manifests[name] = _offer_of(manifest, here), manifest
        offers = (self._manifests[name][0] for name in sorted(self._manifests))
        # The block after it says what its state is.
        return [offer for offer in offers if known.get(offer.anchor, head.round) < head.round]

    def _takes_on(self, peer: str) -> bool:
        if not self._upload_bps:
            return False
        now, known = time.monotonic(), self.is_known(peer)
        self._takers = {other: times for other, times in self._takers.items() if now - times[1] < TAKER_S}
        self._put_off = {other: until for other, until in self._put_off.items() if now < until}
        others_wait = now - self._refused_at < TAKER_S
        began, _ = self._takers.get(peer, (now, now))
        if not known and others_wait and now - began > TURN_S:
            del self._takers[peer]
            self._put_off[peer] = now + TURN_S
        if peer in self._put_off and others_wait:
            return False
        alike = sum(self.is_known(other) is known for other in self._takers)
        if peer not in self._takers and alike >= TAKERS:
            self._refused_at = now
            return False
        self._takers[peer] = began, now
        return True

    async def _is_free(self, size_bytes: int) -> bool:
        """Wait until no round needs the line and the rate allows so many more bytes; False if that takes long."""
        until = time.monotonic() + QUIET_S
        while (now := time.monotonic()) < until and self._upload_bps:
            if self.is_exchanging():
                await asyncio.sleep(POLL_S)
            elif now < self._free_at:
                await asyncio.sleep(min(self._free_at, until) - now)
            else:
                self._free_at = now + size_bytes * 8 / self._upload_bps
                return True
        return False


def _offer_of(manifest: SnapshotManifest, here: range) -> SnapshotOffer:
    return SnapshotOffer(
        round=manifest.round, anchor=manifest.anchor, manifest=digest_of(manifest.to_bytes()),
        vector_bytes=manifest.vector_bytes, layers=None if len(here) == len(manifest.layers) else here,
    )  # fmt: skip
