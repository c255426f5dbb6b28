"""What a peer writes beside its training."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from dht.errors import DiskFull
from peer.events import AlertRaised, CheckpointWritten, Event
from peer.train import saver
from peer.train.checkpoint import Checkpoint
from peer.train.saver import CheckpointSaver
from tests.peer.story import NoSnapshots

WAIT_S = 60.0


class SlowShelf:
    """Checkpoints on a disk that waits until it is told to go on; then it has room or not."""

    def __init__(self) -> None:
        self.goes, self.room = threading.Event(), True
        self.written: list[float] = []

    def due(self, *, round_ends: bool) -> bool:
        return True

    def write(self, checkpoint: Checkpoint) -> Path:
        assert self.goes.wait(WAIT_S)
        if not self.room:
            raise DiskFull("no room for a checkpoint")
        self.written.append(float(checkpoint.tensors["optimizer"]["moment"].sum()))
        return Path("DIR/checkpoints/1")


@pytest.fixture
def shelf() -> SlowShelf:
    return SlowShelf()


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def keeper(shelf: SlowShelf, events: list[Event]) -> CheckpointSaver:
    return CheckpointSaver(shelf, NoSnapshots(), events.append)  # type: ignore[arg-type]


def checkpoint(moment: torch.Tensor) -> Checkpoint:
    return Checkpoint(state={"round": 3}, tensors={"optimizer": {"moment": moment}})


def tell(keeper: CheckpointSaver, events: list[Event], count: int) -> None:
    """Until so many events are told."""
    give_up = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        keeper.tell()
        if len(events) >= count:
            return
        give_up.wait(0.01)
    raise AssertionError(f"told {events}")


def test_what_training_changes_meanwhile_is_not_in_the_checkpoint(
    keeper: CheckpointSaver, shelf: SlowShelf, events: list[Event]
) -> None:
    """And nothing is told, and none is due, before it is on disk."""
    moment = torch.ones(4)
    keeper.write(checkpoint(moment))
    moment.add_(1)
    assert events == []
    assert not keeper.due(round_ends=True)
    shelf.goes.set()
    tell(keeper, events, 1)
    assert shelf.written == [4.0]
    assert events == [CheckpointWritten(round=3, path="DIR/checkpoints/1", bytes=16)]
    assert keeper.due(round_ends=True)


@pytest.mark.parametrize("asked", [{"wait": True}, {"last": True}])
def test_who_waits_has_it_on_disk(
    keeper: CheckpointSaver, shelf: SlowShelf, events: list[Event], asked: dict[str, bool]
) -> None:
    shelf.goes.set()
    keeper.write(checkpoint(torch.ones(4)), **asked)
    assert shelf.written == [4.0]
    assert len(events) == 1


def test_a_large_one_is_not_copied(
    keeper: CheckpointSaver, shelf: SlowShelf, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be no room for it in memory: training waits."""
    monkeypatch.setattr(saver, "available_bytes", lambda: 3 * 16 - 1)
    shelf.goes.set()
    keeper.write(checkpoint(torch.ones(4)))
    assert len(events) == 1


def test_a_full_disk_is_told_once_and_the_next_one_is_written(
    keeper: CheckpointSaver, shelf: SlowShelf, events: list[Event]
) -> None:
    shelf.room = False
    shelf.goes.set()
    keeper.write(checkpoint(torch.ones(4)), wait=True)
    keeper.write(checkpoint(torch.ones(4)), wait=True)
    assert [type(event) for event in events] == [AlertRaised]
    shelf.room = True
    keeper.write(checkpoint(torch.ones(4)), wait=True)
    assert shelf.written == [4.0]
