"""What a peer writes beside its training."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from dht.errors import DiskFull
from peer.checkpoint import saver
from peer.checkpoint.checkpoint import Checkpoint
from peer.checkpoint.saver import CheckpointSaver

WAIT_S = 60.0
HERE = Path("DIR/checkpoints/1")


class SlowShelf:
    """Checkpoints on a disk that waits until it is told to go on; then it has room or not."""

    def __init__(self) -> None:
        self.goes, self.room = threading.Event(), True
        self.written: list[float] = []

    def write(self, checkpoint: Checkpoint) -> Path:
        assert self.goes.wait(WAIT_S)
        if not self.room:
            raise DiskFull("no room for a checkpoint")
        self.written.append(float(checkpoint.tensors["optimizer"]["moment"].sum()))
        return HERE


@pytest.fixture
def shelf() -> SlowShelf:
    return SlowShelf()


@pytest.fixture
def keeper(shelf: SlowShelf) -> CheckpointSaver:
    return CheckpointSaver(shelf)  # type: ignore[arg-type]


def checkpoint(moment: torch.Tensor) -> Checkpoint:
    return Checkpoint(state={"round": 3}, tensors={"optimizer": {"moment": moment}})


def test_what_training_changes_meanwhile_is_not_in_the_checkpoint(keeper: CheckpointSaver, shelf: SlowShelf) -> None:
    """And it is not said to be there before it is on disk."""
    moment = torch.ones(4)
    saving = keeper.save(checkpoint(moment), beside=True)
    moment.add_(1)
    assert not saving.done()
    shelf.goes.set()
    assert saving.result(WAIT_S) == HERE
    assert shelf.written == [4.0]


def test_who_waits_has_it_on_disk(keeper: CheckpointSaver, shelf: SlowShelf) -> None:
    """Also after one that is written beside training: in their order."""
    beside = keeper.save(checkpoint(torch.ones(2)), beside=True)
    shelf.goes.set()
    saving = keeper.save(checkpoint(torch.ones(4)), beside=False)
    assert saving.done()
    assert beside.result(WAIT_S) == saving.result(WAIT_S) == HERE
    assert shelf.written == [2.0, 4.0]


def test_a_large_one_is_not_copied(keeper: CheckpointSaver, shelf: SlowShelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be no room for it in memory: training waits."""
    monkeypatch.setattr(saver, "available_bytes", lambda: 3 * 16 - 1)
    shelf.goes.set()
    assert keeper.save(checkpoint(torch.ones(4)), beside=True).done()


def test_after_a_full_disk_the_next_one_is_written(keeper: CheckpointSaver, shelf: SlowShelf) -> None:
    shelf.room = False
    shelf.goes.set()
    assert isinstance(keeper.save(checkpoint(torch.ones(4)), beside=False).exception(WAIT_S), DiskFull)
    shelf.room = True
    keeper.save(checkpoint(torch.ones(4)), beside=False).result(WAIT_S)
    assert shelf.written == [4.0]
