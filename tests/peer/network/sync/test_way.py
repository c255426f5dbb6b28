"""A peer gives the way along its chain to whoever asks from which round on, if it still has that."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.consensus.organiser.light_chain import NUMBER_BYTES, follow, read_way
from peer.consensus.protocol.encoding import Keys
from peer.network.sync.blob_server import BlobServer
from peer.node.store.chain import ChainStore
from peer.testing.memory_peer import ModelKeys
from peer.testing.memory_swarm import ORGANISER, World

KEYS: Keys = ModelKeys("newcomer")


@pytest.fixture(scope="module")
def world() -> World:
    made = World(1, 3)
    made.scheduler.run_until(80.0)
    return made


def donor_of(world: World, folder: Path, first: int = 0) -> BlobServer:
    """A peer that has dropped the blocks before the one of this index."""
    blocks = world.peers[0].disk.blocks
    heads = [world.genesis]
    for block in blocks:
        heads.append(heads[-1].after(block.update))
    disk: Any = SimpleNamespace(base=SimpleNamespace(head=heads[first]), blocks=blocks[first:], heads=heads[first:])
    donor = BlobServer(folder, cast(Any, None), 0)
    donor.disk = cast(ChainStore, disk)
    return donor


async def asked(donor: BlobServer, round: int) -> bytes | None:
    return await donor.way("somebody", round.to_bytes(NUMBER_BYTES, "big"))


async def test_its_way_leads_to_where_it_stands(world: World, tmp_path: Path) -> None:
    donor, newest = donor_of(world, tmp_path), world.peers[0].disk.blocks[-1]
    given = await asked(donor, 0)
    assert given is not None
    head = follow(KEYS, ORGANISER, world.genesis, read_way(given))
    assert head.round == newest.update.round
    assert len(read_way(given)) == 1, "nobody came or left"


async def test_what_it_has_not_it_does_not_give(world: World, tmp_path: Path) -> None:
    donor = donor_of(world, tmp_path, first=3)
    assert await asked(donor, 2) is None
    assert await asked(donor, 3) is not None
    assert await asked(donor, world.peers[0].disk.blocks[-1].update.round) is None, "nothing follows"
    assert await asked(BlobServer(tmp_path, cast(Any, None), 0), 0) is None
