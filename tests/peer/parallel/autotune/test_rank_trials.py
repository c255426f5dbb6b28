"""A dry run with real ranks: on the processor, whose ranks count bytes as if it were several devices."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import psutil
import pytest
import torch

from dht.errors import HomefiresError, MemoryFull
from peer.parallel.autotune.cache import Unwanted, run_python
from peer.parallel.autotune.rank_trials import DryDevices, RankTrials, fit_devices, fit_ranks
from peer.parallel.autotune.search import Trial
from peer.parallel.autotune.trial import basis_of
from peer.parallel.ranks.rank_choice import choose_ranks
from peer.parallel.ranks.rank_group import RankGroup
from peer.planning.plan.sharding_strategy import Sharding, ShardingStrategy, strategies_of
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec, dump, load
from peer.training.model.footprint import size_of
from peer.training.train.autotune_result import Tuned, from_json

pytestmark = pytest.mark.outside

CPUS = (torch.device("cpu"), torch.device("cpu"))
ENDED_S = 10.0


@pytest.fixture
def spec() -> RunSpec:
    micro = load("micro")
    inner = dataclasses.replace(micro.inner, sequences=4, accumulation=2)
    return dataclasses.replace(micro, inner=inner, model=dataclasses.replace(micro.model, context=16))


def tried(spec: RunSpec, ways: tuple[ShardingStrategy, ...], *room_bytes: int, kinds: str = "aa") -> Tuned:
    devices = DryDevices(names=("cpu", "cpu"), kinds=tuple(kinds), room_bytes=room_bytes or (0, 0))
    return fit_ranks(spec, devices, ways, basis_of(spec, ("cpu", "cpu"), CPUS))


def have_room(monkeypatch: pytest.MonkeyPatch, *room_bytes: int) -> None:
    words = ("peer.testing.small_memory_rank", "--room", ",".join(map(str, room_bytes)))
    monkeypatch.setattr(RankGroup, "program", words)


def test_a_way_is_found_and_taken(spec: RunSpec) -> None:
    """On devices that do not tell of their memory."""
    found = fit_devices(spec, ("cpu", "cpu"), sharding="auto", offload=False)
    assert (found.sharding, found.most, found.speeds) in [("replicated", (), ()), ("full", (), ())]
    assert 2 <= found.sequences <= 8
    assert math.isclose(found.tokens_per_s * found.step_s, 8 * spec.model.context)
    assert from_json(found.to_json()) == found
    options = choose_ranks(spec, PeerSettings(devices=("cpu", "cpu")), CPUS, found)
    assert options.strategy.kind == Sharding(found.sharding)


def test_what_has_no_room_is_passed_over_and_each_rank_gets_what_it_has_room_for(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One device holds a model and a half less than the other; both are measured alone, which only the larger bears:
    so they count as alike."""
    whole = size_of(spec).training_bytes
    rooms = (10 * whole, round(0.9 * whole))
    have_room(monkeypatch, *rooms)
    found = tried(spec, strategies_of(2), *rooms, kinds="ab")
    assert (found.sharding, found.group, found.offloads) == ("full", 0, False)
    assert found.most[0] > found.most[1] >= 1
    assert found.sequences <= sum(found.most)
    assert from_json(found.to_json()) == found


class Clock:
    """Seconds pass when a way is tried."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("way_s", "tried_kinds"), [(1.0, ["replicated", "full"]), (200.0, ["replicated"])])
def test_a_dry_run_stays_short(
    way_s: float, tried_kinds: list[str], spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No further way is begun late, and main memory not at all where something else fits; the fastest is taken."""
    clock, ways = Clock(), list[str]()

    def search(trials: RankTrials, way: ShardingStrategy, limit: int) -> tuple[Trial, tuple[int, ...]]:
        clock.now += way_s
        ways.append(str(way))
        return Trial(sequences=2, attention="", seconds=1.0 / len(ways), peak_bytes=0), (len(ways), 1)

    monkeypatch.setattr(RankTrials, "search", search)
    devices = DryDevices(names=("cpu", "cpu"), kinds=("a", "a"), room_bytes=(0, 0))
    every = (*strategies_of(2), *strategies_of(2, offloads=True))
    found = fit_ranks(spec, devices, every, basis_of(spec, ("cpu", "cpu"), CPUS), clock=clock)
    assert ways == tried_kinds
    assert (found.sharding, found.most) == (tried_kinds[-1], (len(ways), 1))
    assert found.step_s == pytest.approx(4.0 / len(ways))


def test_main_memory_is_the_last_resort(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not tried where anything else has room; and without it there is no way."""
    ways = (strategies_of(2)[-1], strategies_of(2, offloads=True)[-1])
    room = round(0.4 * size_of(spec).training_bytes)
    have_room(monkeypatch, room, room)
    assert tried(spec, ways, room, room).offloads
    with pytest.raises(MemoryFull, match="not even one sequence of micro has room on cpu and cpu"):
        tried(spec, ways[:1], room, room)


def test_ranks_end_with_the_dry_run_that_started_them(spec: RunSpec, tmp_path: Path) -> None:
    path, ranks = tmp_path / "spec.toml", list[psutil.Process]()
    path.write_text(dump(spec))

    def have_begun() -> bool:
        ranks[:] = [
            each for child in psutil.Process().children() for each in child.children()
            if "peer.parallel.fsdp.rank" in each.cmdline()
        ]  # fmt: skip
        return len(ranks) == 2

    with pytest.raises(Unwanted):
        run_python(["-m", "peer.parallel.autotune", str(path), "--devices", "cpu", "cpu"], have_begun)
    assert psutil.wait_procs(ranks, ENDED_S)[1] == []


def test_a_rank_that_cannot_start_is_a_failure(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not want of memory."""
    monkeypatch.setattr(RankGroup, "program", ("peer.testing.no_such_rank",))
    with pytest.raises(HomefiresError, match=r"rank .* on cpu ended with exit code 1") as failed:
        tried(spec, strategies_of(2)[:1])
    assert not isinstance(failed.value, MemoryFull)
