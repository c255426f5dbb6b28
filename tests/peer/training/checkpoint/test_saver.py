"""What a peer writes beside its training."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dht.errors import DiskFull
from peer.training.checkpoint.capture import Capture
from peer.training.checkpoint.saver import CheckpointSaver
from tests.peer.training.checkpoint.captured import CPU

WAIT_S = 60.0
HERE = Path("DIR/checkpoints/1")


class SlowShelf:
    """Checkpoints on a disk that waits until it is told to go on; then it has room or not."""

    def __init__(self) -> None:
        self.goes, self.room = threading.Event(), True
        self.written: list[int] = []

    def write(self, capture: Capture) -> Path:
        assert self.goes.wait(WAIT_S)
        if not self.room:
            raise DiskFull("no room for a checkpoint")
        self.written.append(capture.state["round"])
        return HERE


@pytest.fixture
def shelf() -> SlowShelf:
    return SlowShelf()


@pytest.fixture
def keeper(shelf: SlowShelf) -> CheckpointSaver:
    return CheckpointSaver(shelf)  # type: ignore[arg-type]


def take(round: int) -> Capture:
    return Capture(state={"round": round}, layers=[], rest={}, device=CPU)


def test_it_is_not_said_to_be_there_before_it_is_on_disk(keeper: CheckpointSaver, shelf: SlowShelf) -> None:
    saving = keeper.save(take(3), beside=True)
    assert not saving.done()
    shelf.goes.set()
    assert saving.result(WAIT_S) == HERE
    assert shelf.written == [3]


def test_who_waits_has_it_on_disk(keeper: CheckpointSaver, shelf: SlowShelf) -> None:
    """Also after one that is written beside training: in their order."""
    beside = keeper.save(take(2), beside=True)
    shelf.goes.set()
    saving = keeper.save(take(4), beside=False)
    assert saving.done()
    assert beside.result(WAIT_S) == saving.result(WAIT_S) == HERE
    assert shelf.written == [2, 4]


def test_after_a_full_disk_the_next_one_is_written(keeper: CheckpointSaver, shelf: SlowShelf) -> None:
    shelf.room = False
    shelf.goes.set()
    assert isinstance(keeper.save(take(3), beside=False).exception(WAIT_S), DiskFull)
    shelf.room = True
    keeper.save(take(4), beside=False).result(WAIT_S)
    assert shelf.written == [4]
