"""How the trainer is led to the head of the chain on its disk, wherever it stands."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from peer.network.link.channel import LinkLost
from peer.network.link.participation import resume_from, unless_left
from peer.node.store.chain import ChainStore, start_chain_at
from peer.node.store.kept_way import KeptWay
from peer.node.store.run_directory import ChainBase
from peer.schema.ipc import (
    AdoptSnapshot,
    BeginAt,
    Leave,
    OfferContribution,
    ReplayBlock,
    ReportProgress,
    ToLink,
    ToTrainer,
    decode_to_trainer,
    encode,
)
from tests.peer.consensus.rounds.build import HEAD
from tests.peer.network.sync.donors import chain_of, write_snapshot

ELSEWHERE = b"e" * 32
"""An anchor that no chain here has."""


@dataclass
class Pipe:
    """Remembers what the trainer is told; the trainer says what is put into `says`."""

    told: list[ToTrainer] = field(default_factory=list)
    says: asyncio.Queue[ToLink] = field(default_factory=asyncio.Queue)

    def send(self, message: ToTrainer) -> None:
        assert decode_to_trainer(encode(message)) == message
        self.told.append(message)

    async def receive(self) -> ToLink:
        return await self.says.get()


def led(disk: ChainStore, directory: Path, at: bytes) -> tuple[bool, list[ToTrainer]]:
    """Whether there is a way, and what the trainer hears."""
    pipe = Pipe()
    knows = resume_from(pipe, disk, directory, HEAD, at)  # type: ignore[arg-type]
    return knows, pipe.told


def replays(disk: ChainStore, after: int) -> list[ToTrainer]:
    return [ReplayBlock(block.to_bytes(), disk.head.round) for block in disk.blocks[after - disk.base.head.round :]]


def test_from_an_anchor_on_the_chain_it_replays_what_follows(tmp_path: Path) -> None:
    """A new trainer stands at the beginning."""
    disk = chain_of(tmp_path, 4)
    for at, round in ((b"", 0), (HEAD.anchor, 0), (disk.heads[3].anchor, 3), (disk.head.anchor, 4)):
        head = disk.heads[round]
        assert led(disk, tmp_path, at) == (True, [BeginAt(head.anchor, head.members), *replays(disk, round)])


def test_without_a_way_it_goes_on_from_a_snapshot_on_disk(tmp_path: Path) -> None:
    """The newest one that is whole and on the chain; also where the chain is another than the trainer followed."""
    disk = chain_of(tmp_path, 6)
    write_snapshot(tmp_path, disk, 3)
    write_snapshot(tmp_path, disk, 5)
    for damaged, round in ((False, 5), (True, 3)):
        if damaged:
            (path,) = (tmp_path / "snapshots").glob("00000005-*/vectors")
            path.write_bytes(b"")
        head = disk.heads[round]
        assert led(disk, tmp_path, ELSEWHERE) == (
            True,
            [
                BeginAt(ELSEWHERE, head.members),
                AdoptSnapshot(round, head.anchor, head.members),
                *replays(disk, round),
            ],
        )


@pytest.mark.parametrize("at", [b"", ELSEWHERE], ids=["new", "elsewhere"])
def test_a_pruned_chain_without_a_snapshot_leads_nowhere(tmp_path: Path, at: bytes) -> None:
    """The trainer is told where it stands, and that is all."""
    disk = chain_of(tmp_path, 6)
    start_chain_at(tmp_path, ChainBase.after(disk.updates_up_to(disk.heads[4].anchor)), KeptWay(0))
    disk = chain_of(tmp_path, 5)
    assert led(disk, tmp_path, at) == (False, [BeginAt(at or HEAD.anchor, disk.head.members)])


def test_checkpoints_of_another_run_are_told_as_before(tmp_path: Path) -> None:
    """With a whole chain and no snapshot `begin` names the genesis, which the trainer refuses."""
    disk = chain_of(tmp_path, 2)
    assert led(disk, tmp_path, ELSEWHERE) == (True, [BeginAt(HEAD.anchor, HEAD.members), *replays(disk, 0)])


async def test_waiting_ends_when_the_trainer_leaves() -> None:
    """What it still says of its round does not matter; the work is not left behind."""
    pipe, ended = Pipe(), asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    for said in (ReportProgress(0.5, None, 1.0, None), OfferContribution(ELSEWHERE), Leave(False)):
        pipe.says.put_nowait(said)
    with pytest.raises(LinkLost):
        await unless_left(pipe, forever())  # type: ignore[arg-type]
    assert ended.is_set()
    assert await unless_left(Pipe(), asyncio.sleep(0, "done")) == "done"  # type: ignore[arg-type]
