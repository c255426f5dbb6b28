"""Downloads one large file from several donors at once. Every chunk is checked, and an interrupted download resumes.

<folder>/<name>.part/     the chunks that have arrived, recognised by their digests

A peer that needs only some layers takes their chunks. Donors may hold only some, too, and are asked for those.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from dht.atomic_files import raising_disk_full, write_atomic
from dht.errors import DiskFull, Unreachable
from dht.streams.base import Asking
from peer.consensus.protocol.encoding import digest_of
from peer.network.sync.blob_server import BUSY, CHUNK, MANIFEST, ask_chunk
from peer.network.sync.chain_status import Donors, SnapshotChoice
from peer.node.store import snapshots
from peer.node.store.chunked_file import ChunkedFile, damaged_chunks
from peer.node.store.snapshots import MANIFEST_BYTES, VECTORS, SnapshotManifest
from peer.schema.events import AlertRaised, Event, TransferProgressed

DONORS = 4
"""At a time; further ones step in for those that are left out."""
LANES = 2
"""Chunks that one donor is asked for at a time."""
CHUNK_TIMEOUT_S = 30.0
MANIFEST_TIMEOUT_S = 120.0
"""For all donors together."""
MANIFEST_NEXT_S = 10.0
"""A donor that has not given the manifest in this time is not the only one to be asked."""
BUSY_S = 0.5
"""A donor that is busy is asked again after so long."""
BUSY_MOST = 120
"""A donor that is busy so often in a row is left out."""
FAILURES = 2
"""Who has not answered so many times in a row is left out."""
SAY_EVERY_S = 1.0


async def fetch_manifest(asker: Asking, choice: SnapshotChoice) -> SnapshotManifest:
    """The manifest of the chosen snapshot, from the first donor that gives it. Raises Unreachable. Donors are asked
    one after the other: the next as soon as the last one has nothing, or is slow."""
    waiting = deque(choice.donors)
    asked: set[asyncio.Task[SnapshotManifest | None]] = set()
    try:
        async with asyncio.timeout(MANIFEST_TIMEOUT_S):
            while waiting or asked:
                if waiting:
                    asked.add(asyncio.create_task(_ask_manifest(asker, waiting.popleft(), choice)))
                patience_s = MANIFEST_NEXT_S if waiting else None
                done, asked = await asyncio.wait(asked, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                for manifest in [task.result() for task in done]:
                    if manifest is not None:
                        return manifest
    except TimeoutError:
        pass  # those that are still at it are too slow
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    raise Unreachable(f"no peer gave the manifest of the snapshot of round {choice.offer.round}")


async def _ask_manifest(asker: Asking, donor: str, choice: SnapshotChoice) -> SnapshotManifest | None:
    try:
        packed = await asker.ask(donor, MANIFEST, MANIFEST_TIMEOUT_S, MANIFEST_BYTES, choice.offer.manifest)
        if packed is None or digest_of(packed) != choice.offer.manifest:
            return None
        return SnapshotManifest.from_bytes(packed)
    except (Unreachable, ValueError):
        return None


@dataclass(frozen=True)
class Shelf:
    """Where a download lies while it is incomplete, and how it is published."""

    folder: Path
    publish: Callable[[Path, range], Path]
    """Gives a folder with these layers complete its final name; returns the folder's new path."""
    layers_in: Callable[[Path], range]
    """The layers in a folder that was published already."""


def snapshot_shelf(directory: Path, manifest: SnapshotManifest) -> Shelf:
    """The shelf of a run directory."""
    return Shelf(
        directory / snapshots.FOLDER, lambda part, layers: snapshots.publish(directory, part, manifest, layers),
        lambda path: snapshots.layers_in(path, manifest),
    )  # fmt: skip


class BlobDownload:
    """Fetches the file that `manifest` describes, or some of its `layers`."""

    def __init__(
        self, shelf: Shelf, asker: Asking, manifest: ChunkedFile, layers: range, choice: Donors, executor: Executor,
        say: Callable[[Event], None], what: str = "snapshot",
    ) -> None:  # fmt: skip
        self._shelf, self._asker, self._manifest, self._executor, self._say = shelf, asker, manifest, executor, say
        self._what, self._layers = what, layers
        self._digest = digest_of(manifest.to_bytes())
        self._waiting, self._spans = deque(choice.donors), choice.spans
        self._serving: list[str] = []
        self.left_out: set[str] = set()
        """Donors that lied, or stopped."""
        self._busy: set[str] = set()
        """Busy donors, which leave their slot to the next and come back last."""
        self._refusals: dict[str, int] = {}
        """How often in a row each was busy."""
        self._part = shelf.folder / (manifest.name + snapshots.PART)
        self._missing: dict[int, deque[int]] = {}
        """Chunks that no donor is asked for, by layer."""
        self._layer_of: dict[int, int] = {}
        self._asked: dict[int, set[str]] = {}
        """Requested chunks, and the donors that were asked."""
        self._done_bytes = self._total_bytes = 0
        self._said_at = float("-inf")

    async def run(self) -> Path:
        """Have the file on disk, or the wanted layers of it, under its name. Returns the folder. If more is here
        already, it stays. Raises Unreachable if no donor is left that has what is missing: what has arrived stays
        for the next try. Raises DiskFull."""
        loop = asyncio.get_running_loop()
        missing = set(await loop.run_in_executor(self._executor, self._prepare))
        for layer in self._layers:
            chunks = self._manifest.chunks_of(layer)
            self._layer_of |= dict.fromkeys(chunks, layer)
            self._missing[layer] = deque(chunk for chunk in chunks if chunk in missing)
        self._total_bytes = self._size_bytes(self._wanted())
        self._done_bytes = self._total_bytes - self._size_bytes(missing)
        with raising_disk_full(self._part), (self._part / VECTORS).open("r+b") as file:
            await self._fetch_all(file.fileno())
            await loop.run_in_executor(self._executor, os.fsync, file.fileno())
        self._tell(last=True)
        return self._shelf.publish(self._part, self._layers)

    def _wanted(self) -> list[int]:
        return [chunk for layer in self._layers for chunk in self._manifest.chunks_of(layer)]

    def _size_bytes(self, chunks: Iterable[int]) -> int:
        return sum(map(self._manifest.chunk_bytes, chunks))

    def _prepare(self) -> list[int]:
        """Make room, remove what is left of other downloads; returns the wanted chunks that are not here yet."""
        for old in self._shelf.folder.glob("*" + snapshots.PART):
            if old != self._part:
                shutil.rmtree(old)
        whole = self._part.with_suffix("")
        if whole.exists() and not self._part.exists():
            here = self._shelf.layers_in(whole)
            self._layers = here if set(self._layers) <= set(here) else self._layers
            whole.rename(self._part)  # a crash came before the chain began there
        self._part.mkdir(parents=True, exist_ok=True)
        missing = damaged_chunks(self._part / VECTORS, self._manifest, self._wanted())
        needed, free = self._size_bytes(missing), shutil.disk_usage(self._part).free
        if free < 1.2 * needed:
            raise DiskFull(f"no room for the {self._what}: {needed / 1e6:.0f} MB, {free / 1e6:.0f} MB are free")
        write_atomic(self._part / snapshots.MANIFEST, self._manifest.to_bytes())
        with raising_disk_full(self._part), (self._part / VECTORS).open("ab") as file:
            file.truncate(self._manifest.vector_bytes)
        return missing

    # ---- donors ----

    async def _fetch_all(self, file: int) -> None:
        slots = [asyncio.create_task(self._fill_slot(file)) for _ in range(min(DONORS, len(self._waiting)))]
        try:
            for slot in asyncio.as_completed(slots):
                await slot
                if self._is_done():
                    break
        finally:
            for slot in slots:
                slot.cancel()
            await asyncio.gather(*slots, return_exceptions=True)
        if not self._is_done():
            raise Unreachable(f"nobody is left who gives the {self._what}")

    async def _fill_slot(self, file: int) -> None:
        while self._waiting and not self._is_done():
            donor = self._waiting.popleft()
            self._serving.append(donor)
            async with asyncio.TaskGroup() as lanes:
                for _ in range(LANES):
                    lanes.create_task(self._take_from(donor, file))
            self._serving.remove(donor)
            if donor in self._busy and donor not in self.left_out:
                self._busy.discard(donor)
                self._waiting.append(donor)  # the others first

    async def _take_from(self, donor: str, file: int) -> None:
        """Chunks from one donor until there are no more to ask for, or the donor is left out."""
        failures = 0
        while donor not in self.left_out and (chunk := self._next(donor)) is not None:
            try:
                request = ask_chunk(self._digest, chunk)
                payload = await self._asker.ask(
                    donor, CHUNK, CHUNK_TIMEOUT_S, self._manifest.chunk_bytes(chunk), request
                )  # fmt: skip
            except Unreachable as error:
                failures += 1
                self._put_back(chunk, donor)
                if failures >= FAILURES:
                    self._leave_out(donor, f"stopped giving the {self._what} ({error})")
                continue
            if payload == BUSY:
                self._put_back(chunk, donor)
                await asyncio.sleep(BUSY_S)
                self._refusals[donor] = self._refusals.get(donor, 0) + 1
                if self._refusals[donor] > BUSY_MOST:
                    self._leave_out(donor, f"was too busy for long to give the {self._what}")
                elif self._waiting:
                    self._busy.add(donor)
                    return
            elif payload is None:
                self._put_back(chunk, donor)
                self._leave_out(donor, f"no longer has the {self._what}")
            elif digest_of(payload) != self._manifest.chunks[chunk]:
                self._put_back(chunk, donor)
                self._leave_out(donor, f"gave wrong bytes for chunk {chunk} of the {self._what}")
            else:
                failures = self._refusals[donor] = 0
                self._arrived(file, chunk, payload)

    def _next(self, donor: str) -> int | None:
        """A chunk that this donor has and no donor was asked for; at the end also one that another is slow to give."""
        span = self._spans.get(donor)
        for layer, chunks in self._missing.items():
            if chunks and (span is None or layer in span):
                chunk = chunks.popleft()
                self._asked.setdefault(chunk, set()).add(donor)
                return chunk
        others = (chunk for chunk, donors in self._asked.items() if donor not in donors)
        slow = next((chunk for chunk in others if span is None or self._layer_of[chunk] in span), None)
        if slow is not None:
            self._asked[slow].add(donor)
        return slow

    def _put_back(self, chunk: int, donor: str) -> None:
        donors = self._asked.get(chunk)
        if donors is None:
            return  # another donor has given it
        donors.discard(donor)
        if not donors:
            del self._asked[chunk]
            self._missing[self._layer_of[chunk]].appendleft(chunk)

    def _arrived(self, file: int, chunk: int, payload: bytes) -> None:
        if self._asked.pop(chunk, None) is None:
            return
        with raising_disk_full(self._part):
            written = os.pwrite(file, payload, self._manifest.offset_bytes(chunk))
        if written < len(payload):
            raise DiskFull(f"the disk that holds {self._part} is full")
        self._done_bytes += len(payload)
        self._tell()

    def _leave_out(self, donor: str, why: str) -> None:
        if donor not in self.left_out:
            self.left_out.add(donor)
            self._say(AlertRaised(level="warning", code="DONOR", text=f"{donor} {why}: others are asked"))

    def _is_done(self) -> bool:
        return not self._asked and not any(self._missing.values())

    def _tell(self, *, last: bool = False) -> None:
        now = time.monotonic()
        if not last and now - self._said_at < SAY_EVERY_S:
            return
        self._said_at = now
        source = ", ".join(donor[-8:] for donor in sorted(self._serving))
        self._say(
            TransferProgressed(
                what=self._what, source=source, bytes_done=self._done_bytes, bytes_total=self._total_bytes
            )
        )
