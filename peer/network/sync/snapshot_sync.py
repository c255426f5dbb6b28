"""A peer whose chain does not lead to where the others are: it takes a snapshot from several of them.

It happens while the round machine does not run: before a newcomer's first round, and when a peer
finds that nobody has any more what follows its own chain.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from dht.errors import BadInput, Unreachable
from dht.node import Node
from peer.consensus.codec.state_digest import FLOAT32_BYTES
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.messages import Heartbeat
from peer.network.sync.blob_download import BlobDownload, fetch_manifest, snapshot_shelf
from peer.network.sync.chain_status import ChainStatus, SnapshotChoice, SnapshotOffer, query_status
from peer.node.store.chain import ChainStore, start_chain_at
from peer.node.store.snapshots import SnapshotManifest
from peer.schema.events import AlertRaised, Event, PeerStateChanged

log = logging.getLogger(__name__)

LOOK_TRIES = 3
"""A peer that finds nobody on the board looks again so often before it goes on alone."""
LOOK_S = 5.0
LOOK_AGAIN_S = 1.0
TRY_AGAIN_S = 3.0
RESYNC = "RESYNC"

Others = dict[str, tuple[Heartbeat | None, tuple[str, ...]]]
"""By peer id: its HEAD, None before it takes part, and where it can be dialled."""


@dataclass
class SnapshotSync:
    """Finds out whether the chain on this disk can be followed, and brings a snapshot if not."""

    node: Node
    run: bytes
    read_others: Callable[[], Awaitable[Others]]
    """Who is on the board."""
    directory: Path
    layers: tuple[int, ...]
    """Elements of each layer of the model."""
    round_bytes: int
    """Encoded size of an update, on the average."""
    keep_rounds: int
    executor: Executor
    say: Callable[[Event], None]
    held: range | None = None
    """The layers that this home of a cluster needs; None for all."""
    refused: frozenset[bytes] = frozenset()
    """Digests of manifests that are not what they seemed to be."""
    _silent: set[str] = field(default_factory=set)
    """Donors that failed; they are asked again when nobody else is left."""

    async def find_need(self, disk: ChainStore) -> str:
        """Why this peer needs a snapshot: nobody has what follows its chain, or a newcomer has less to load; or ""."""
        is_newcomer = disk.head.round == 0 and self.node.peer_id not in disk.head.members
        others = await self._read_others(LOOK_TRIES if is_newcomer else 1)
        goal = max((head.round for head, _ in others.values() if head is not None), default=0)
        if goal - disk.head.round <= self.keep_rounds:
            return ""
        standings = await self._survey(disk, others)
        if is_cut_off(standings, disk.head.weight):
            return f"the others are at round {goal} and no longer have what follows round {disk.head.round} here"
        choice = choose_snapshot(standings, self._needed)
        if disk.head.round == 0 and choice is not None and is_shorter(choice, standings, 0, self.round_bytes):
            return f"{goal} updates are more to load than a snapshot"
        return ""

    async def bring(self, disk: ChainStore, why: str) -> SnapshotManifest:
        """Have a snapshot on disk, and the chain begin there; tries until somebody gives one. Raises DiskFull.

        Who has a past is told `why` its chain is given up.
        """
        if disk.head.round:
            text = f"{why}: this peer goes on from a snapshot and keeps what it has learned and nobody can have counted"
            self.say(AlertRaised(level="warning", code=RESYNC, text=text))
        while True:
            others = await self._read_others(1)
            choice = await self._choose(disk, others)
            if choice is None:
                self.say(PeerStateChanged(state="SYNCING", why="looking for peers that give a snapshot"))
                await asyncio.sleep(TRY_AGAIN_S)
                continue
            try:
                manifest = await self._fetch(choice, others)
            except Unreachable as error:
                log.info("%s", error)
                await asyncio.sleep(TRY_AGAIN_S)
                continue
            except BadInput as error:
                self.refused |= {choice.offer.manifest}
                self.say(AlertRaised(level="warning", code=RESYNC, text=f"{error}: refused"))
                continue
            start_chain_at(self.directory, manifest.base)
            return manifest

    async def _choose(self, disk: ChainStore, others: Others) -> SnapshotChoice | None:
        standings = await self._survey(disk, others)
        further = {peer: standing for peer, standing in standings.items() if standing.weight >= disk.head.weight}
        trusted = {peer: standing for peer, standing in further.items() if peer not in self._silent}
        choice = choose_snapshot(trusted, self._needed, self.refused)
        if choice is None:
            self._silent.clear()
        return choice or choose_snapshot(further, self._needed, self.refused)

    @property
    def _needed(self) -> range:
        return range(len(self.layers)) if self.held is None else self.held

    async def _fetch(self, choice: SnapshotChoice, others: Others) -> SnapshotManifest:
        manifest = await fetch_manifest(self.node, choice)
        about = (manifest.run, manifest.round, manifest.anchor, manifest.layers)
        if about != (self.run, choice.offer.round, choice.offer.anchor, self.layers):
            raise BadInput(f"the snapshot of round {choice.offer.round} is of another run or model")
        said = states_at(manifest.base.head, others)
        if 2 * said[manifest.state] < said.total():
            raise BadInput(f"the snapshot of round {choice.offer.round} is not of the state that voters report there")
        size_mb = 2 * FLOAT32_BYTES * sum(self.layers[layer] for layer in self._needed) / 1e6
        some = "" if self.held is None else "layers of "
        self.say(
            PeerStateChanged(
                state="SYNCING",
                why=f"taking {some}the snapshot of round {manifest.round} ({size_mb:,.0f} MB) "
                f"from {len(choice.donors)} peers",
            )
        )
        shelf = snapshot_shelf(self.directory, manifest)
        download = BlobDownload(shelf, self.node, manifest, self._needed, choice, self.executor, self.say)
        try:
            await download.run()
        finally:
            self._silent |= download.left_out
        return manifest

    async def _read_others(self, tries: int) -> Others:
        for left in reversed(range(tries)):
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    if (others := await self.read_others()) or not left:
                        return others
            await asyncio.sleep(LOOK_AGAIN_S)
        return {}

    async def _survey(self, disk: ChainStore, others: Others) -> dict[str, ChainStatus]:
        await asyncio.gather(*(self.node.meet(peer, addresses) for peer, (_, addresses) in others.items()))
        return await query_status(self.node, others, self._anchors(disk))

    def _anchors(self, disk: ChainStore) -> tuple[bytes, ...]:
        return tuple(head.anchor for head in reversed(disk.heads[-self.keep_rounds - 1 :]))


def states_at(head: ChainHead, others: Others) -> Counter[bytes]:
    """What those whom this anchor elected say of its state, as far as they stand there now."""
    heads = (others[peer][0] for peer in head.electorate if peer in others)
    return Counter(said.state for said in heads if said is not None and said.anchor == head.anchor and said.state)


def is_cut_off(standings: Mapping[str, ChainStatus], my_weight: int) -> bool:
    """Whether most have done more, and none of them still has what follows an anchor of mine."""
    ahead = [standing for standing in standings.values() if standing.weight > my_weight]
    return 2 * len(ahead) > len(standings) and all(standing.shared < 0 for standing in ahead)


def is_shorter(choice: SnapshotChoice, standings: Mapping[str, ChainStatus], my_round: int, round_bytes: int) -> bool:
    """Whether the snapshot and what follows it are fewer bytes than all updates since my round, of `round_bytes`."""
    goal = max(standing.round for standing in standings.values())
    return choice.offer.vector_bytes + (goal - choice.offer.round) * round_bytes < (goal - my_round) * round_bytes


def choose_snapshot(
    standings: Mapping[str, ChainStatus], needed: range, refused: frozenset[bytes] = frozenset()
) -> SnapshotChoice | None:
    """The newest snapshot that most of those who offer any have: two at least, if two answer. Together they have all
    `needed` layers of it."""
    offered: dict[int, dict[SnapshotOffer, dict[str, range | None]]] = defaultdict(lambda: defaultdict(dict))
    for peer, standing in sorted(standings.items()):
        for offer in standing.offers:
            if offer.manifest not in refused:
                offered[offer.round][offer][peer] = offer.layers
    offering = sum(bool(standing.offers) for standing in standings.values())
    for round in sorted(offered, reverse=True):
        alike = sorted(offered[round].items(), key=lambda item: len(item[1]), reverse=True)
        offer, donors = alike[0]
        spans = {peer: layers for peer, layers in donors.items() if layers is not None}
        is_there = len(spans) < len(donors) or set(needed) <= set(chain.from_iterable(spans.values()))
        if is_there and len(donors) >= min(2, len(standings)) and 2 * len(donors) > offering:
            return SnapshotChoice(offer=offer, donors=tuple(donors), spans=spans)
    return None
