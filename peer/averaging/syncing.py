"""A peer whose chain does not lead to where the others are: it takes a snapshot from several of them.

It happens while the round machine does not run: before a newcomer's first round, and when a peer
finds that nobody has any more what follows its own chain.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

from dht.errors import BadInput, Unreachable
from dht.node import Node
from peer.averaging.chain import ChainOnDisk, adopt
from peer.averaging.downloading import Download, fetch_manifest
from peer.averaging.notices import Notices
from peer.averaging.snapshots import Manifest
from peer.averaging.surveying import Choice, choose, is_cut_off, is_shorter, survey
from peer.events import AlertRaised, Event, PeerStateChanged
from peer.rounds.messages import HeadSent

log = logging.getLogger(__name__)

LOOK_TRIES = 3
"""A peer that finds nobody on the board looks again so often before it goes on alone."""
LOOK_AGAIN_S = 1.0
TRY_AGAIN_S = 3.0
RESYNC = "RESYNC"


@dataclass
class Syncer:
    """Finds out whether the chain on this disk can be followed, and brings a snapshot if not."""

    node: Node
    notices: Notices
    directory: Path
    elements: int
    """Parameters of the model."""
    round_bytes: int
    """Encoded size of an update."""
    keep_rounds: int
    executor: Executor
    say: Callable[[Event], None]
    refused: frozenset[bytes] = frozenset()
    """Digests of manifests that are not what they seemed to be."""
    _silent: set[str] = field(default_factory=set)
    """Donors that failed; they are asked again when nobody else is left."""

    async def is_needed(self, disk: ChainOnDisk) -> bool:
        """Whether nobody has what follows this chain, or all of that is more than a newcomer need load."""
        others = await self._find_others(LOOK_TRIES if disk.head.round == 0 else 1)
        goal = max((head.round for head in others.values() if head is not None), default=0)
        if goal - disk.head.round <= self.keep_rounds:
            return False
        standings = await survey(self.node, others, self._anchors(disk))
        if is_cut_off(standings, disk.head.weight):
            return True
        choice = choose(standings)
        return disk.head.round == 0 and choice is not None and is_shorter(choice, standings, 0, self.round_bytes)

    async def bring(self, disk: ChainOnDisk) -> Manifest:
        """Have a snapshot on disk, and the chain begin there; tries until somebody gives one. Raises DiskFull."""
        while True:
            choice = await self._choose(disk)
            if choice is None:
                self.say(PeerStateChanged(state="SYNCING", why="looking for peers that give a snapshot"))
                await asyncio.sleep(TRY_AGAIN_S)
                continue
            try:
                manifest = await self._fetch(choice)
            except Unreachable as error:
                log.info("%s", error)
                await asyncio.sleep(LOOK_AGAIN_S)
                continue
            except BadInput as error:
                self.refused |= {choice.offer.manifest}
                self.say(AlertRaised(level="warning", code=RESYNC, text=f"{error}: refused"))
                continue
            adopt(self.directory, manifest.base)
            return manifest

    async def _choose(self, disk: ChainOnDisk) -> Choice | None:
        others = await self._find_others(1)
        standings = await survey(self.node, others, self._anchors(disk))
        further = {peer: standing for peer, standing in standings.items() if standing.weight > disk.head.weight}
        trusted = {peer: standing for peer, standing in further.items() if peer not in self._silent}
        choice = choose(trusted, self.refused)
        if choice is None:
            self._silent.clear()
        return choice or choose(further, self.refused)

    async def _fetch(self, choice: Choice) -> Manifest:
        manifest = await fetch_manifest(self.node, choice)
        about = (manifest.run, manifest.round, manifest.anchor, manifest.elements)
        if about != (self.notices.run, choice.offer.round, choice.offer.anchor, self.elements):
            raise BadInput(f"the snapshot of round {choice.offer.round} is of another run or model")
        self.say(
            PeerStateChanged(
                state="SYNCING",
                why=f"taking the snapshot of round {manifest.round} ({manifest.vector_bytes / 1e6:,.0f} MB) "
                f"from {len(choice.donors)} peers",
            )
        )
        download = Download(self.directory, self.node, manifest, choice.donors, self.executor, self.say)
        try:
            await download.run()
        finally:
            self._silent |= download.left_out
        return manifest

    async def _find_others(self, tries: int) -> dict[str, HeadSent | None]:
        """Who is on the board, dialled."""
        for _ in range(tries):
            found = await self.notices.read_others()
            if found:
                await asyncio.gather(*(self.node.meet(peer, addresses) for peer, (_, addresses) in found.items()))
                return {peer: head for peer, (head, _) in found.items()}
            await asyncio.sleep(LOOK_AGAIN_S)
        return {}

    def _anchors(self, disk: ChainOnDisk) -> tuple[bytes, ...]:
        """From which I could go on: as far back as a fork may lead."""
        return tuple(head.anchor for head in reversed(disk.heads[-self.keep_rounds - 1 :]))
