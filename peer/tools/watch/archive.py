"""Archives checkpoints of a run without taking part in it: some of the snapshots that its peers write.

KEEP/round-00000016/    a run directory that begins and ends at that anchor: `homefires export` takes it
KEEP/next/              an unfinished download; an interrupted one resumes there

A snapshot is downloaded from several donors in hashed chunks, and only for an anchor that a certified chain names with
the digest of its state.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from dht.atomic_files import raising_disk_full, sync_folder, write_atomic
from dht.errors import BadInput, DiskFull, Unreachable
from dht.streams.base import Asking
from peer.consensus.protocol.block import Block
from peer.consensus.protocol.head import ChainEntry, ChainHead
from peer.network.sync.blob_download import BlobDownload, fetch_manifest, snapshot_shelf
from peer.network.sync.chain_status import SnapshotChoice, query_status
from peer.network.sync.snapshot_sync import offered
from peer.node.store import snapshots
from peer.node.store.run_directory import ChainBase, base_path, block_path, pointer_bytes
from peer.node.store.snapshots import SnapshotManifest
from peer.schema.events import AlertRaised, CheckpointWritten, Event

PREFIX = "round-"
NEXT = "next"
CODE = "KEEP"


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Which checkpoints stay: the newest, and of all others the first of every so many rounds (0: none)."""

    last: int = 3
    every: int = 0

    def __post_init__(self) -> None:
        if self.last < 1:
            raise BadInput(f"--keep-last is {self.last}; at least 1 checkpoint is kept")
        if self.every < 0:
            raise BadInput(f"--keep-every is {self.every}; it is a number of rounds, or 0")

    def kept(self, rounds: Iterable[int]) -> set[int]:
        ordered = sorted(rounds)
        spans: dict[int, int] = {}
        for round in ordered if self.every else ():
            spans.setdefault(round // self.every, round)
        return {*ordered[-self.last :], *spans.values()}


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What every kept folder holds besides the checkpoint: the files as a peer has them."""

    run: bytes
    spec: bytes
    genesis: bytes


class Archive:
    """The folder where checkpoints are kept."""

    def __init__(
        self, folder: Path, asker: Asking, agreement: Agreement, first: ChainHead, retention: Retention,
        executor: Executor, say: Callable[[Event], None],
    ) -> None:  # fmt: skip
        self._folder, self._asker, self._agreement, self._first = folder, asker, agreement, first
        self._retention, self._executor, self._say = retention, executor, say
        self._refused: frozenset[bytes] = frozenset()
        self._warned = ""

    def rounds(self) -> list[int]:
        names = (path.name.removeprefix(PREFIX) for path in self._folder.glob(f"{PREFIX}*"))
        return sorted(int(name) for name in names if name.isdecimal())

    async def look(self, steps: Sequence[ChainEntry], layers: tuple[int, ...], peers: Iterable[str]) -> bool:
        """Take the newest snapshot that peers offer if it is of one of these checked rounds and newer than all here.

        `layers` are the elements of each layer of the model.
        Whether one was taken. What stands against it is told once, and tried again at the next look.
        """
        try:
            return await self._take(steps, layers, peers)
        except (Unreachable, DiskFull, BadInput) as error:
            self._warn(f"no checkpoint was kept: {error}")
            return False

    async def _take(self, steps: Sequence[ChainEntry], layers: tuple[int, ...], peers: Iterable[str]) -> bool:
        # The update after a round says what its state is.
        places = {step.block.update.parent: index for index, step in enumerate(steps) if index}
        standings = await query_status(self._asker, peers, ())
        newest = max(self.rounds(), default=0)
        choice = next(
            (
                item for item in offered(standings, range(len(layers)))
                if item.offer.round > newest and item.offer.anchor in places
                and item.offer.manifest not in self._refused
            ),
            None,
        )  # fmt: skip
        if choice is None:
            return False
        place = places[choice.offer.anchor]
        manifest = await fetch_manifest(self._asker, choice)
        about = (manifest.run, manifest.round, manifest.anchor, manifest.layers, manifest.state)
        certified = steps[place].block.update.state
        if about != (self._agreement.run, choice.offer.round, choice.offer.anchor, layers, certified):
            self._refused |= {choice.offer.manifest}
            raise BadInput(f"the snapshot of round {choice.offer.round} is not the one that its voters certified")
        await self._fetch(manifest, choice)
        self._publish(manifest, steps[:place])
        return True

    async def _fetch(self, manifest: SnapshotManifest, choice: SnapshotChoice) -> None:
        scratch = self._folder / NEXT
        with raising_disk_full(self._folder):
            (scratch / snapshots.FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
        for whole in (scratch / snapshots.FOLDER).glob("*-*"):
            if not whole.name.startswith(manifest.name):
                shutil.rmtree(whole)
        shelf, layers = snapshot_shelf(scratch, manifest), range(len(manifest.layers))
        await BlobDownload(shelf, self._asker, manifest, layers, choice, self._executor, self._say).run()

    def _publish(self, manifest: SnapshotManifest, checked: Sequence[ChainEntry]) -> None:
        """Make a run directory of it, under its name at last, and drop what is kept no longer."""
        scratch, path = self._folder / NEXT, self._folder / f"{PREFIX}{manifest.round:08d}"
        with raising_disk_full(self._folder):
            write_atomic(scratch / "spec.toml", self._agreement.spec)
            write_atomic(scratch / "genesis", self._agreement.genesis)
            base, blocks = _chain(manifest, self._first, checked)
            _write_chain(scratch, base, manifest.base.head, blocks)
            scratch.rename(path)
            sync_folder(self._folder)
        kept = self._retention.kept(self.rounds())
        for round in self.rounds():
            if round not in kept:
                shutil.rmtree(self._folder / f"{PREFIX}{round:08d}")
        self._warned = ""
        self._say(CheckpointWritten(round=manifest.round, path=str(path), bytes=manifest.vector_bytes))

    def _warn(self, text: str) -> None:
        if text != self._warned:
            self._warned = text
            self._say(AlertRaised(level="warning", code=CODE, text=text))


def _chain(
    manifest: SnapshotManifest, first: ChainHead, checked: Sequence[ChainEntry]
) -> tuple[ChainBase, list[Block]]:
    """Where the blocks of a kept folder begin, and those blocks: as many certificates as were checked.

    The base needs the update that led to it, which the manifest has.
    """
    for step in checked:
        before = [update for update in manifest.base.before if update.round <= step.before.round]
        if step.before == first or before:
            base = ChainBase(head=first) if step.before == first else ChainBase.after(before)
            return base, [later.block for later in checked if later.before.round >= step.before.round]
    return manifest.base, []


def _write_chain(directory: Path, base: ChainBase, head: ChainHead, blocks: Sequence[Block]) -> None:
    (directory / "chain").mkdir(exist_ok=True)
    for path in (directory / "chain").iterdir():
        path.unlink()
    for block in blocks:
        write_atomic(block_path(directory, block.update.round), block.to_bytes())
    if base.before:
        write_atomic(base_path(directory, base.head.anchor), base.to_bytes())
    write_atomic(directory / "HEAD", pointer_bytes(head, base))
