"""The lead of several ranks when they leave their devices and come back, as for a pause on GPUs."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest

from dht.errors import MemoryFull
from peer.consensus.protocol.encoding import digest
from peer.parallel.fsdp.rank_messages import Command, LoadLayer, PublishLayer, RankAnswer
from peer.parallel.ranks.rank_group import NoRoomInRank, RankGroup, RankLost
from peer.parallel.ranks.sharded_backend import ShardedBackend
from peer.parallel.ranks.sharded_layerwise import ShardedLayerwise
from peer.schema.spec import RunSpec
from peer.testing.child_process import HANG_S
from tests.decided import DecidedRound
from tests.peer.parallel.ranks.conftest import MakeOn
from tests.saved import everything, same, words
from tests.stepping import step, submit

ANCHOR = digest("anchor")


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


def shared_memories() -> int:
    """How many this process has open, which ranks would map."""
    opened = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum("memfd:homefires" in os.readlink(path) for path in opened)


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (NoRoomInRank("CUDA out of memory"), MemoryFull),
        (RankLost(0, "cuda", "has hung up", is_device=False), RankLost),
    ],
)
def test_ranks_that_do_not_begin_leave_nothing(
    why: Exception, told: type[Exception], make_on: MakeOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the memory either that they were to share: it is tried again in the same process."""

    def fail(*about: object) -> RankGroup:
        raise why

    monkeypatch.setattr("peer.parallel.ranks.sharded_backend.RankGroup", fail)
    before = shared_memories()
    with pytest.raises(told):
        make_on("full 2")
    assert shared_memories() == before


def without_room(group: RankGroup, *commands: Command) -> list[RankAnswer]:
    if any(isinstance(command, LoadLayer) and command.layer == 1 for command in commands):
        raise NoRoomInRank("CUDA out of memory")
    return group._ask("steps", commands, HANG_S)


@pytest.mark.outside
def test_a_rank_that_is_lost_beside_a_step_ends_step_and_update(
    make_on: MakeOn, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither waits for the other: the step for a layer that does not come, the update for a rank that is gone."""
    beside = dataclasses.replace(spec, round=dataclasses.replace(spec.round, overlap="streaming"))
    trainer = make_on("full 2", beside)
    trainer.begin_round(("p0", "p1"))
    step(trainer)
    submit(trainer, ANCHOR)
    decided = DecidedRound([trainer], ANCHOR)
    group, publish = trainer._backend.group, RankGroup.round  # type: ignore[attr-defined]
    killed = threading.Event()

    def kill_first(group: RankGroup, command: Command) -> list[RankAnswer]:
        if isinstance(command, PublishLayer) and not killed.is_set():
            os.kill(group.pids[1], signal.SIGKILL)
            killed.set()
        return publish(group, command)

    monkeypatch.setattr(RankGroup, "round", kill_first)
    trainer.apply(decided.update, decided.objects.__getitem__, beside=True)
    with pytest.raises(RankLost, match="rank 1 on cpu was killed by SIGKILL"):
        step(trainer)
    assert trainer.layers is not None
    assert isinstance(trainer.layers.exception(HANG_S), RankLost)
    assert killed.is_set()
    trainer.close()
    assert not any(psutil.pid_exists(pid) for pid in group.pids)


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

    def end_version(self) -> None:
        """Nobody waits for it."""

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
