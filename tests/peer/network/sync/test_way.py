"""A peer gives the way along its chain to whoever asks, also of the blocks that it has dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from dht.errors import BadInput
from peer.consensus.codec.codec import Codec
from peer.consensus.organiser.light_chain import follow, packed_question, read_way
from peer.consensus.protocol.encoding import Keys
from peer.network.sync.blob_server import BlobServer
from peer.node.store.chain import ChainStore
from peer.node.store.kept_way import read_kept_way
from peer.testing.memory_peer import ModelKeys
from peer.testing.memory_swarm import ORGANISER
from tests.peer.consensus.organiser.test_light_chain import made
from tests.peer.consensus.rounds.build import PARTS
from tests.peer.network.sync.donors import AtOnce

KEYS: Keys = ModelKeys("newcomer")


def disk_of(folder: Path, quota_bytes: int = 1 << 40) -> ChainStore:
    """The chain of four founders of whom two are left; with snapshots of its last rounds but one."""
    genesis, blocks = made()
    disk = ChainStore(
        folder, genesis, PARTS, Codec("float32"), AtOnce(), lambda call: call(), keep_rounds=2, quota_bytes=quota_bytes
    )
    for block in blocks[disk.head.round :]:
        disk.commit(block, disk.head.after(block.update), frozenset())
        for round in (len(blocks) - 3, len(blocks) - 2):
            if disk.head.round == round:
                (folder / "snapshots" / f"{round:08d}-{disk.head.anchor.hex()}").mkdir(parents=True)
    return disk


def donor_of(folder: Path, quota_bytes: int = 1 << 40) -> BlobServer:
    donor = BlobServer(folder, cast(Any, None), 0)
    donor.disk = disk_of(folder, quota_bytes)
    return donor


async def asked(donor: BlobServer, start: int, end: int = 0) -> bytes | None:
    return await donor.way("somebody", packed_question(start, end))


async def test_for_a_stranger_whose_budget_is_used_up_no_way_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made on the event loop: thousands of blocks are looked through and packed."""
    donor = donor_of(tmp_path)
    donor.may_have = lambda peer, size_bytes: False
    monkeypatch.delattr(ChainStore, "way_between")
    assert await asked(donor, 0) is None


@pytest.mark.parametrize("quota_bytes", [0, 1 << 40])
async def test_its_way_leads_to_where_it_stands(quota_bytes: int, tmp_path: Path) -> None:
    """Also to any round in between that is still here; dropped are all blocks but the last."""
    genesis, blocks = made()
    donor = donor_of(tmp_path, quota_bytes)
    assert donor.disk is not None
    assert (len(donor.disk.blocks) < 5) == (quota_bytes == 0)
    given = await asked(donor, 0)
    assert given is not None
    assert follow(KEYS, ORGANISER, genesis, read_way(given)) == donor.disk.head
    assert len(read_way(given)) < len(blocks) / 3
    end = len(blocks) - 1
    given = await asked(donor, 0, end)
    assert given is not None
    assert follow(KEYS, ORGANISER, genesis, read_way(given)).round == end


async def test_what_it_has_not_it_does_not_give(tmp_path: Path) -> None:
    _, blocks = made()
    donor = donor_of(tmp_path, 0)
    assert donor.disk is not None
    assert await asked(donor, 0, donor.disk.base.head.round) is None, "that block is gone"
    assert await asked(donor, len(blocks)) is None, "nothing follows"
    assert await asked(donor, 0, len(blocks) + 1) is None
    assert await donor.way("somebody", b"nonsense") is None
    assert await asked(BlobServer(tmp_path, cast(Any, None), 0), 0) is None
    (tmp_path / "chain" / "way").unlink()
    donor.disk = disk_of(tmp_path, 0)
    assert await asked(donor, 0) is None, "what led to its base it does not know any more"
    assert await asked(donor, donor.disk.base.head.round) is not None


def test_a_damaged_way_is_named(tmp_path: Path) -> None:
    disk = disk_of(tmp_path, 0)
    path = tmp_path / "chain" / "way"
    assert read_kept_way(tmp_path / "chain", disk.base.head.round) == disk.way
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadInput, match=f"{path} is damaged"):
        disk_of(tmp_path, 0)
