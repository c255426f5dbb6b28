"""Downloads a snapshot that voters have certified, for a peer whose own chain does not lead to the others'.

This happens while the round machine does not run: before a newcomer's first round, and when a peer finds that no other
peer still has the blocks after its own head. It does not matter who gives the snapshot: the update after it, on a chain
that is certified from where this peer stands, names its anchor and its state.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dht.errors import BadInput, RunOver, Unreachable
from dht.node import Node
from peer.consensus.codec.state_digest import FLOAT32_BYTES
from peer.consensus.organiser.checkpoints import ChainCheckpoint
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.messages import Heartbeat
from peer.consensus.protocol.rules import Rules
from peer.network.sync.blob_download import BlobDownload, fetch_manifest, snapshot_shelf
from peer.network.sync.certified_way import TWO_CHAINS, CertifiedWay, Follower, TwoWays, may_leave, newest, start_for
from peer.network.sync.chain_status import ChainStatus, SnapshotChoice, SnapshotOffer, query_status, whom_to_ask
from peer.network.sync.checkpoint_keeper import CheckpointKeeper
from peer.node.store.chain import ChainStore, start_chain_at
from peer.node.store.kept_way import KeptWay
from peer.node.store.snapshots import SnapshotManifest
from peer.schema.events import AlertRaised, Event, PeerStateChanged

log = logging.getLogger(__name__)

LOOK_TRIES = 3
"""A peer that finds nobody on the board looks again so often before it goes on alone."""
LOOK_S = 5.0
LOOK_AGAIN_S = 1.0
MEET_S = 10.0
"""Whoever is not reached within this time is asked without: a name on the board may have addresses that swallow all."""
TRY_AGAIN_S = 3.0
NEWER_S = 5.0
"""So long newer snapshots are waited for, once the way to one is here."""
OLD_S = 3600.0
"""Of a snapshot after which nothing was decided for so long people are told."""
RESYNC = "RESYNC"

Others = dict[str, tuple[Heartbeat | None, tuple[str, ...]]]
"""By peer id: its HEAD, None before it takes part, and where it can be dialled."""


@dataclass
class SnapshotSync:
    """Finds out whether the chain on this disk can be followed, and brings a snapshot if not."""

    node: Node
    run: bytes
    rules: Rules
    read_others: Callable[[], Awaitable[Others]]
    """Reads the peers on the board."""
    directory: Path
    layers: tuple[int, ...]
    """Elements of each layer of the model."""
    round_bytes: int
    """Mean encoded size of an update."""
    executor: Executor
    say: Callable[[Event], None]
    checkpoints: CheckpointKeeper
    rounds: int = 0
    """Of the run; 0 if it has no end."""
    held: range | None = None
    """The layers that this home of a cluster needs; None for all."""
    _refused: set[bytes] = field(default_factory=set)
    """Digests of manifests that turned out to be false."""
    _silent: set[str] = field(default_factory=set)
    """Donors that failed; they are asked again when no other is left."""
    _told: str = ""

    async def find_need(self, disk: ChainStore) -> str:
        """Why this peer needs a snapshot: no peer has what follows its chain, or a newcomer has less to download; or
        "". Raises RunOver."""
        signed = self.checkpoints.newest
        if signed is not None and not _agrees(disk, signed):
            return f"the organiser has signed another model of round {signed.round} than this chain has"
        is_newcomer = disk.head.round == 0 and self.node.peer_id not in disk.head.members
        others = await self._read_others(LOOK_TRIES if is_newcomer else 1)
        said = max((head.round for head, _ in others.values() if head is not None), default=0)
        is_near = said - disk.head.round <= self.rules.keep_rounds
        # What peers said that have finished and left stays on the board for a while.
        may_be_over = disk.head.round < self.rounds and (not others or said >= self.rounds)
        if is_near and not may_be_over and (disk.head.round or not self.checkpoints.is_due):
            return ""
        standings, ways = await self._find_ways(disk, others)
        goal = newest(ways.values())
        if goal - disk.head.round <= self.rules.keep_rounds:
            return ""
        if all(standings[peer].shared < 0 for peer in ways):
            return _lost(goal, disk)
        choice = await self._choose(disk, standings) if disk.head.round == 0 else None
        if choice is not None and is_shorter(choice.offer, goal, self.round_bytes):
            return f"{goal} updates are more to load than a snapshot"
        return ""

    async def find_loss(self, disk: ChainStore, is_told: bool = True) -> str:
        """Why the chain on this disk must be given up; or "" if no peer has more that is certified. `is_told`: the
        machine says that nobody shows what follows. Otherwise a peer that says it has that is believed. Raises
        RunOver."""
        standings, ways = await self._find_ways(disk, await self._read_others(1))
        goal = newest(ways.values())
        has_next = not is_told and any(standings[peer].shared >= 0 for peer in ways)
        return _lost(goal, disk) if goal > disk.head.round and not has_next else ""

    async def bring(self, disk: ChainStore, why: str) -> SnapshotManifest:
        """Have a snapshot on disk, and let the chain begin there; tries until some peer gives one. A peer with a
        past is told `why` its chain is given up. Raises DiskFull, RunOver."""
        if disk.head.round:
            text = f"{why}: this peer goes on from a snapshot and keeps what it has learned and nobody can have counted"
            self.say(AlertRaised(level="warning", code=RESYNC, text=text))
        while True:
            choice = await self._choose(disk, await self._survey(disk, await self._read_others(1)))
            if choice is None:
                self.say(PeerStateChanged(state="SYNCING", why="looking for peers that give a snapshot"))
                await asyncio.sleep(TRY_AGAIN_S)
                await self._find_ways(disk, await self._read_others(1))  # the others may have finished meanwhile
                continue
            try:
                manifest = await self._fetch(choice)
            except Unreachable as error:
                log.info("%s", error)
                await asyncio.sleep(TRY_AGAIN_S)
                continue
            except BadInput as error:
                self._refused.add(choice.offer.manifest)
                self._silent |= set(choice.donors)
                self.say(AlertRaised(level="warning", code=RESYNC, text=f"{error}: refused"))
                continue
            start_chain_at(self.directory, manifest.base, kept_way(disk, choice.way))
            return manifest

    # ---- what is certified ----

    async def _find_ways(
        self, disk: ChainStore, others: Others
    ) -> tuple[dict[str, ChainStatus], dict[str, CertifiedWay]]:
        """What peers report about their chains, and the certified ways of those that are further. While two ways
        part it waits until one of them is gone, or the organiser has signed a checkpoint. Raises RunOver."""
        while True:
            standings = await self._survey(disk, others)
            try:
                ways = await self._follower.follow_all(standings, self._starts(disk))
            except TwoWays as error:
                self._tell_once(f"{error}: this peer follows none of them; ask the organiser for a new invite")
                await asyncio.sleep(TRY_AGAIN_S)
                others = await self._read_others(1)
                continue
            # The organiser's node has neither blocks nor snapshots: it says where the others stood.
            shown = ways.pop(self.rules.organiser, None)
            if shown is not None and not ways and 0 < self.rounds <= shown.head.round:
                raise RunOver(
                    f"the others have finished the run with round {shown.head.round} while this peer stood at round "
                    f"{disk.head.round}, and nobody is left who gives what is missing; ask one of them for the model"
                )
            return standings, ways

    async def _choose(self, disk: ChainStore, standings: Mapping[str, ChainStatus]) -> CertifiedChoice | None:
        """The newest snapshot on a chain that is certified from mine on, with all needed layers available."""
        for donors in ({*standings} - self._silent, {*standings}):
            candidates = [
                item for item in offered({peer: standings[peer] for peer in donors}, self._needed)
                if item.offer.round > self._starts(disk)[-1].round and item.offer.manifest not in self._refused
            ]  # fmt: skip
            ways = await first_in_order([self._way_to(disk, standings, item) for item in candidates], NEWER_S)
            for item, way in zip(candidates, ways, strict=True):
                if way is not None:
                    return CertifiedChoice(offer=item.offer, donors=item.donors, spans=item.spans, way=way)
            self._silent.clear()
        return None

    async def _way_to(
        self, disk: ChainStore, standings: Mapping[str, ChainStatus], item: SnapshotChoice
    ) -> CertifiedWay | None:
        """The way to the block after this snapshot, from any of its donors that shows it: the others may lie, or be
        slow."""
        heads, end = self._starts(disk), item.offer.round + 1

        async def shown(peer: str) -> CertifiedWay | None:
            way = await self._follower.follow(peer, start_for(standings[peer].shared, heads), end)
            is_right = way is not None and way.blocks[-1].update.parent == item.offer.anchor
            return way if way is not None and is_right and may_leave(heads[-1], way) else None

        ways = await first_in_order(map(shown, item.donors), 0.0)
        return next(filter(None, ways), None)

    def _starts(self, disk: ChainStore) -> tuple[ChainHead, ...]:
        """The heads from which certificates are followed: those on this disk, or one that the organiser signed and
        that is newer, or contradicts them."""
        signed = self.checkpoints.newest
        is_needed = signed is not None and (signed.round > disk.head.round or not _agrees(disk, signed))
        return (signed.head,) if signed is not None and is_needed else tuple(disk.heads)

    @property
    def _follower(self) -> Follower:
        return Follower(
            asker=self.node, keys=self.rules.keys, organiser=self.rules.organiser, tell=self._tell_once
        )  # fmt: skip

    @property
    def _needed(self) -> range:
        return range(len(self.layers)) if self.held is None else self.held

    async def _fetch(self, choice: CertifiedChoice) -> SnapshotManifest:
        manifest = await fetch_manifest(self.node, choice)
        about = (manifest.run, manifest.round, manifest.anchor, manifest.layers)
        if about != (self.run, choice.offer.round, choice.offer.anchor, self.layers):
            raise BadInput(f"the snapshot of round {choice.offer.round} is of another run or model")
        # From these follow how long this peer waits and what it thinks of others, as all do who were there.
        if len(manifest.base.before) < min(manifest.round, self.rules.keep_rounds + 1):
            raise BadInput(f"the snapshot of round {choice.offer.round} leaves updates out that led to it")
        after = choice.way.blocks[-1].update
        if manifest.state != after.state:
            raise BadInput(f"the snapshot of round {choice.offer.round} is not of the state that its voters certified")
        size_mb = 2 * FLOAT32_BYTES * sum(self.layers[layer] for layer in self._needed) / 1e6
        some = "" if self.held is None else "layers of "
        old_s = time.time() - after.time
        since = f"; nothing was decided for {old_s / 3600:,.0f} hours" if after.time and old_s > OLD_S else ""
        self.say(
            PeerStateChanged(
                state="SYNCING",
                why=f"taking {some}the snapshot of round {manifest.round} ({size_mb:,.0f} MB) "
                f"from {len(choice.donors)} peers{since}",
            )
        )
        shelf = snapshot_shelf(self.directory, manifest)
        download = BlobDownload(shelf, self.node, manifest, self._needed, choice, self.executor, self.say)
        try:
            await download.run()
        finally:
            self._silent |= download.left_out
        return manifest

    def _tell_once(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self.say(AlertRaised(level="error", code=TWO_CHAINS, text=text))

    async def _read_others(self, tries: int) -> Others:
        for left in reversed(range(tries)):
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    if (others := await self.read_others()) or not left:
                        return others
            await asyncio.sleep(LOOK_AGAIN_S)
        return {}

    async def _survey(self, disk: ChainStore, others: Others) -> dict[str, ChainStatus]:
        """The reports of peers, after the organiser's newest checkpoint was asked for. A newcomer waits here for the
        one in its invite."""
        while True:
            known = self._starts(disk)[-1]
            first = (self.rules.organiser, *known.electorate, *known.roster.known)
            asked = whom_to_ask((*others, self.rules.organiser), first)
            await self._meet({peer: others[peer][1] for peer in asked if peer in others})
            await self.checkpoints.hear(asked)
            if disk.head.round or not self.checkpoints.is_due:
                return await query_status(self.node, asked, self._anchors(disk))
            round, _ = self.checkpoints.oldest
            why = f"nobody shows the organiser's checkpoint of round {round}, which the invite names, or a newer one"
            self.say(PeerStateChanged(state="SYNCING", why=why))
            await asyncio.sleep(TRY_AGAIN_S)
            others = await self._read_others(1)

    async def _meet(self, found_at: Mapping[str, Sequence[str]]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(MEET_S):
                await asyncio.gather(*(self.node.meet(peer, addresses) for peer, addresses in found_at.items()))

    def _anchors(self, disk: ChainStore) -> tuple[bytes, ...]:
        return tuple(head.anchor for head in reversed(disk.heads[-self.rules.keep_rounds - 1 :]))


@dataclass(frozen=True, kw_only=True)
class CertifiedChoice(SnapshotChoice):
    """A snapshot, and the way to the block after it."""

    way: CertifiedWay


async def first_in_order(
    answers: Iterable[Coroutine[None, None, CertifiedWay | None]], earlier_s: float
) -> list[CertifiedWay | None]:
    """Their results as soon as one is not None and those before it are here, too, or `earlier_s` have passed; None for
    who was not waited for."""
    tasks = [asyncio.create_task(answer) for answer in answers]
    try:
        for answer in asyncio.as_completed(tasks):
            if await answer is not None:
                break
        first = next((place for place, task in enumerate(tasks) if task.done() and task.result() is not None), 0)
        if first:
            await asyncio.wait(tasks[:first], timeout=earlier_s)
        return [task.result() if task.done() else None for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def kept_way(disk: ChainStore, way: CertifiedWay) -> KeptWay:
    """What leads to the chain that begins where this way ends, from as far back as this disk knows."""
    if way.start in disk.heads:
        before = disk.way.and_then(disk.blocks[: way.start.round - disk.base.head.round], disk.base.head)
    else:  # it begins at the organiser's checkpoint
        before = KeptWay(way.start.round)
    return before.and_then(way.blocks[:-1], way.start)  # who showed it may have shown every block


def is_shorter(offer: SnapshotOffer, goal: int, round_bytes: int) -> bool:
    """Whether a snapshot and what follows it are fewer bytes than all updates up to round `goal`, of `round_bytes`."""
    return offer.vector_bytes + (goal - offer.round) * round_bytes < goal * round_bytes


def offered(standings: Mapping[str, ChainStatus], needed: range) -> list[SnapshotChoice]:
    """The snapshots whose `needed` layers are all available, the newest first, then those with most donors."""
    donors: dict[SnapshotOffer, dict[str, range | None]] = defaultdict(dict)
    for peer, standing in sorted(standings.items()):
        for offer in standing.offers:
            donors[offer][peer] = offer.layers
    found = []
    for offer, layers_of in donors.items():
        spans = {peer: layers for peer, layers in layers_of.items() if layers is not None}
        if len(spans) < len(layers_of) or all(any(layer in span for span in spans.values()) for layer in needed):
            found.append(SnapshotChoice(offer=offer, donors=tuple(layers_of), spans=spans))
    return sorted(found, key=lambda item: (-item.offer.round, -len(item.donors)))


def _agrees(disk: ChainStore, signed: ChainCheckpoint) -> bool:
    """Whether this chain goes through what the organiser has signed, as far as its blocks are here."""
    return all(head.anchor == signed.anchor for head in disk.heads if head.round == signed.round)


def _lost(goal: int, disk: ChainStore) -> str:
    return f"the others are at round {goal} and no longer have what follows round {disk.head.round} here"
