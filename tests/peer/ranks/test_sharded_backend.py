"""The lead of several ranks when they leave their devices and come back, as for a pause on GPUs."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from peer.fsdp.rank_messages import Command, LoadLayer, RankAnswer
from peer.ranks.rank_group import NoRoomInRank, RankGroup
from peer.ranks.sharded_backend import ShardedBackend
from peer.ranks.sharded_layerwise import ShardedLayerwise
from peer.testing.child_process import HANG_S
from tests.peer.ranks.conftest import MakeOn
from tests.saved import everything, same, words
from tests.stepping import step


@pytest.mark.outside
def test_what_leaves_its_devices_comes_back_with_every_bit(make_on: MakeOn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a try that found no room; meanwhile a checkpoint says the same, and no process computes."""
    monkeypatch.setattr(ShardedBackend, "can_leave", True)
    trainer = make_on("full 2")
    trainer.begin_round(("p0", "p1"))
    for _ in range(2):
        step(trainer)
    before, said = everything(trainer, b""), words(trainer, b"")
    trainer.leave_device()
    assert not trainer.status.on_device
    assert same(everything(trainer, b""), before) == []

    with monkeypatch.context() as full:
        full.setattr(RankGroup, "step", without_room)
        assert not trainer.take_device()
    assert not trainer.status.on_device, "half of it would be trained on"
    assert same(everything(trainer, b""), before) == []

    assert trainer.take_device()
    assert same(everything(trainer, b""), before) == []
    assert words(trainer, b"") == said
    step(trainer)
    assert same(everything(trainer, b""), before) != []


def without_room(group: RankGroup, *commands: Command) -> list[RankAnswer]:
    if any(isinstance(command, LoadLayer) and command.layer == 1 for command in commands):
        raise NoRoomInRank("CUDA out of memory")
    return group._ask("steps", commands, HANG_S)


class Lead:
    """Whose ranks do everything at once."""

    layers: tuple[Any, ...] = ()
    waited_s = 0.0

    def __init__(self) -> None:
        self.when_abandoned: list[bool] = []
        self.failed = lambda: False

    def begin_version(self) -> int:
        return 1

    def ask_round(self, command: Command) -> list[RankAnswer]:
        return []

    def abandon(self) -> None:
        self.when_abandoned.append(self.failed())


def test_why_an_update_failed_is_known_before_its_step_loses_its_ranks() -> None:
    """Else a mistake of ours would pass for a rank that was lost, and its device be left out."""
    lead, told = Lead(), list[BaseException | None]()
    lead.failed = lambda: bool(told)

    def fail() -> bytes:
        has_listener.result(HANG_S)
        raise AssertionError("ours")

    has_listener: Future[None] = Future()
    update = ShardedLayerwise(lead)
    running = update.begin(lambda layer: None, fail)
    running.add_done_callback(lambda ended: told.append(ended.exception()))
    has_listener.set_result(None)
    update.close()
    assert [str(error) for error in told] == ["ours"]
    assert lead.when_abandoned == [True]
