"""Downloads the pretrained model of a run from its peers, for a machine that gets it nowhere else."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from pathlib import Path

from dht.errors import Unreachable
from dht.streams.base import Asking
from peer.consensus.protocol.encoding import digest_of
from peer.network.sync.blob_download import BlobDownload, Shelf
from peer.network.sync.blob_server import MANIFEST
from peer.network.sync.chain_status import Donors
from peer.node.store import start_blob
from peer.node.store.start_blob import StartManifest
from peer.schema.events import Event

ASK_S = 30.0
TRY_AGAIN_S = 2.0
LOOK_S = 0.5
WHAT = "model"


async def bring_start(
    digest: str, asker: Asking, read_others: Callable[[], Awaitable[Sequence[str]]], executor: Executor,
    say: Callable[[Event], None],
) -> None:  # fmt: skip
    """Have it in the cache; tries until some peer gives all of it. If another peer of this machine downloads it
    already, wait for that. Raises DiskFull."""
    async with _alone(start_blob.folder_of(f"{digest}.lock")):
        while not start_blob.is_here(digest):
            try:
                await _load(digest, asker, await read_others(), executor, say)
            except Unreachable:
                await asyncio.sleep(TRY_AGAIN_S)


async def _load(
    digest: str, asker: Asking, others: Sequence[str], executor: Executor, say: Callable[[Event], None]
) -> None:
    """Raises Unreachable if no peer has it, or too few are left that give it."""
    found = dict(zip(others, await asyncio.gather(*(_manifest(asker, peer, digest) for peer in others)), strict=True))
    donors = tuple(peer for peer, manifest in found.items() if manifest is not None)
    manifest = next((each for each in found.values() if each is not None), None)
    if manifest is None:
        raise Unreachable("nobody has the model from which this run starts")
    shelf = Shelf(
        start_blob.folder_of(f"{digest}.parts"), lambda part, layers: start_blob.publish(part, manifest),
        lambda path: manifest.pieces,
    )  # fmt: skip
    await BlobDownload(
        shelf, asker, manifest, manifest.pieces, Donors(donors=donors), executor, say, what=WHAT
    ).run()  # fmt: skip


async def _manifest(asker: Asking, peer: str, digest: str) -> StartManifest | None:
    """None from a peer that does not have it, or has another one."""
    try:
        packed = await asker.ask(peer, MANIFEST, ASK_S, start_blob.MANIFEST_BYTES, bytes.fromhex(digest))
        if packed is None or digest_of(packed).hex() != digest:
            return None
        return StartManifest.from_bytes(packed)
    except (Unreachable, ValueError):
        return None


@asynccontextmanager
async def _alone(path: Path) -> AsyncIterator[None]:
    """No other process of this machine is in here meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(LOOK_S)
        yield
