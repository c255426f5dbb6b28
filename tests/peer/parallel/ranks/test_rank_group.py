"""A lead and its ranks, each a process: whatever one of them does, none is left behind, and the right one is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from peer.parallel.fsdp.rank_channel import RankChannel
from peer.parallel.fsdp.rank_messages import CopyLayer, FinishStep, StandAtAnchor
from peer.parallel.fsdp.shared_parameters import Arena
from peer.parallel.ranks import rank_group
from peer.parallel.ranks.rank_group import NoRoomInRank, RankGroup, RankLost
from peer.schema.spec import RunSpec
from peer.testing.child_process import HANG_S, ORPHAN_S, processes_of, wait_for_ends
from tests import warm
from tests.peer.parallel.ranks.stranded_lead import RANKS, batch, setups, start

pytestmark = pytest.mark.outside

HUNG_S = 2.0
"""For a rank that is stopped: how long its lead waits here."""


@pytest.fixture
def group(spec: RunSpec, tmp_path: Path) -> Iterator[RankGroup]:
    """Of two ranks; afterwards nothing of it is left: no process, no file, no descriptor."""
    warm.Popen.parent.get_ready()
    before = descriptors()
    one, arena = start(spec, tmp_path)
    yield one
    one.stop()
    arena.close()
    assert processes_of(tmp_path) == []
    assert descriptors() <= before
    assert not Path(one._folder.name).exists()


def descriptors() -> set[tuple[str, str]]:
    """By number, with what each is of. Those of trainers before may be closed at any time, with threads that end."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # of the listing itself, or closed meanwhile
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def stepping(group: RankGroup, spec: RunSpec) -> tuple[threading.Thread, list[BaseException]]:
    """A thread that makes one step after the other until that is not possible any more, and with what it ends."""
    ended: list[BaseException] = []
    has_begun = threading.Event()

    def work() -> None:
        try:
            while True:
                group.step(batch(spec))
                group.step(FinishStep(learning_rate=0.1, scale=1.0))
                has_begun.set()
        except RankLost as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert has_begun.wait(HANG_S)
    return thread, ended


@pytest.mark.parametrize("victim", range(RANKS))
def test_a_killed_rank_is_named_and_takes_the_others_along(
    group: RankGroup, spec: RunSpec, victim: int, tmp_path: Path
) -> None:
    """Also by a thread that only hears that another rank has lost its connection."""
    assert len(processes_of(tmp_path)) == RANKS
    thread, ended = stepping(group, spec)
    os.kill(group.pids[victim], signal.SIGKILL)
    thread.join(HANG_S)
    (error,) = ended
    assert isinstance(error, RankLost)
    assert (error.rank, error.is_device) == (victim, False)
    assert str(error) == f"rank {victim} on cpu was killed by SIGKILL"
    assert processes_of(tmp_path) == []
    with pytest.raises(RankLost, match=f"rank {victim} on cpu was killed by SIGKILL"):
        group.round(CopyLayer(layer=0))  # though now all were


def test_a_rank_that_cannot_go_on_says_why(group: RankGroup) -> None:
    """A command that belongs to a round is none of steps."""
    with pytest.raises(RankLost, match=r"rank \d on cpu cannot go on: .*CopyLayer is no command of steps"):
        group.step(CopyLayer(layer=0))


def test_a_rank_that_hangs_is_given_up(
    group: RankGroup, spec: RunSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    group.step(batch(spec))
    monkeypatch.setattr(rank_group, "ANSWER_S", HUNG_S)
    os.kill(group.pids[1], signal.SIGSTOP)
    began_at = time.monotonic()
    with pytest.raises(RankLost, match=r"has not answered within 2 s"):
        group.step(batch(spec))
    assert time.monotonic() - began_at >= HUNG_S
    assert processes_of(tmp_path) == []


def test_a_group_whose_rank_hangs_can_be_stopped(
    group: RankGroup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody waits for a whole step's time for one that is idle."""
    monkeypatch.setattr(rank_group, "STOP_S", HUNG_S)
    os.kill(group.pids[0], signal.SIGSTOP)
    group.stop()
    assert processes_of(tmp_path) == []


def test_a_rank_without_room_leaves_parameters_to_be_copied(group: RankGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a step that is told apart; in a round there is nothing to fall back on."""
    full = rank_group.NoRoomThere("CUDA out of memory")
    with monkeypatch.context() as patch:
        patch.setattr(RankChannel, "hear", lambda channel: full)
        with pytest.raises(NoRoomInRank, match="CUDA out of memory"):
            group.step(StandAtAnchor())
    assert len(group.round(CopyLayer(layer=0))) == RANKS
    monkeypatch.setattr(RankChannel, "hear", lambda channel: full)
    with pytest.raises(RankLost, match=r"rank \d on cpu has no room for an update: CUDA out of memory"):
        group.round(CopyLayer(layer=0))


def test_closing_it_ends_a_step_that_is_under_way(group: RankGroup, spec: RunSpec) -> None:
    thread, ended = stepping(group, spec)
    group.close()
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert len(ended) == 1


def test_what_does_not_begin_leaves_nothing(spec: RunSpec, tmp_path: Path) -> None:
    """One of two ranks has a device that there is not."""
    warm.Popen.parent.get_ready()
    before = descriptors()
    told = setups(spec)
    arena = Arena.create(told[0].sizes, told[0].payload_bytes, None)
    with pytest.raises(RankLost, match="rank 1 on cuda:63 cannot go on: BadInput"):
        RankGroup([told[0], replace(told[1], device="cuda:63")], arena.file, tmp_path)
    arena.close()
    assert processes_of(tmp_path) == []
    assert descriptors() <= before


# ---- the lead ends ----


def test_ranks_end_with_a_lead_that_is_killed(tmp_path: Path) -> None:
    """Whatever they wait for."""
    argv = [sys.executable, "-m", "tests.peer.parallel.ranks.stranded_lead", str(tmp_path)]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        ranks = [each for each in processes_of(tmp_path) if each.pid != process.pid]
        assert len(ranks) == RANKS
        process.kill()
        process.wait(HANG_S)
        assert wait_for_ends(ranks, ORPHAN_S) == []
