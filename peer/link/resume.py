"""How the trainer is led from where it stands to the head of the chain on this disk."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from dht.errors import BadInput
from peer.link.channel import LinkEnd, LinkLost
from peer.rounds.state import ChainHead
from peer.store import snapshots
from peer.store.chain import ChainStore

T = TypeVar("T")


def resume_from(pipe: LinkEnd, disk: ChainStore, directory: Path, genesis: ChainHead, at: bytes) -> bool:
    """Have the trainer, which stands at anchor `at` (empty: at its first parameters), come to the head of the chain.

    It replays what was decided since. From a branch that was left it goes back first, and where it has
    no way to the chain it goes on from a snapshot. Returns False if there is none on this disk.
    """
    undone = disk.undone(at or genesis.anchor)
    if undone is None and (stands := _newest_snapshot(disk, directory)) is not None:
        pipe.send("begin", at or genesis.anchor, stands.members)
        pipe.send("snapshot", stands.round, stands.anchor, stands.members)
    elif undone is None and disk.base.before:
        pipe.send("begin", at or genesis.anchor, disk.head.members)
        return False
    elif undone is None:
        stands = genesis
        pipe.send("begin", genesis.anchor, genesis.members)
    else:
        stands = disk.head_at(undone[-1].update.parent if undone else at or genesis.anchor)
        pipe.send("begin", at or genesis.anchor, stands.members)
        if undone:
            pipe.send("undo", tuple(block.to_bytes() for block in undone), stands.anchor, stands.members)
    for block in disk.blocks[stands.round - disk.base.head.round :]:
        pipe.send("replay", block.to_bytes(), disk.head.round)
    return True


def _newest_snapshot(disk: ChainStore, directory: Path) -> ChainHead | None:
    """Where the newest intact snapshot on the chain was taken."""
    for round, anchor in reversed(snapshots.names(directory)):
        if disk.ancestors.get(anchor) == round:
            path = snapshots.path_of(directory, round, anchor)
            try:
                snapshots.read_vectors(path, snapshots.read_manifest(path))
            except BadInput:
                continue
            return disk.head_at(anchor)
    return None


async def unless_left(pipe: LinkEnd, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. Raises LinkLost at once when the trainer leaves or ends; it has nothing else to say yet."""
    doing = asyncio.create_task(work)
    hearing = asyncio.create_task(_until_it_leaves(pipe))
    try:
        await asyncio.wait({doing, hearing}, return_when=asyncio.FIRST_COMPLETED)
        if hearing.done():
            await hearing
        return await doing
    finally:
        doing.cancel()
        hearing.cancel()
        await asyncio.gather(doing, hearing, return_exceptions=True)


async def _until_it_leaves(pipe: LinkEnd) -> None:
    """What it said while it still trained is about an anchor that does not count any more."""
    kind = ""
    while kind not in ("leave", "finish"):
        kind, *_ = await pipe.receive()
    raise LinkLost
