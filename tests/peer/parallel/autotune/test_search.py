"""Which micro-batch a dry run settles on, with a made-up device."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import psutil
import pytest

from dht.errors import DiskFull, HomefiresError, MemoryFull
from peer.node.limits.enforcer import LOOK_S
from peer.parallel.autotune import cache
from peer.parallel.autotune.cache import POLL_S, Unwanted, find_fit, recall, remember, run_python, try_out
from peer.parallel.autotune.search import Trial, find
from peer.schema.spec import RunSpec, load
from peer.training.train.autotune_result import Tuned, TuneKey, from_json, room_for

FIXED, EACH = 1000, 100
OBEYED_S = 2.0
"""From a cause to the end of what it ends, looking at the cause included."""


class Device:
    """Has so much room; a larger micro-batch is faster per sequence, up to a point."""

    def __init__(self, room_bytes: int, *, best_at: int = 1, eager: float = 2.0) -> None:
        self._room_bytes, self._best_at, self._eager = room_bytes, best_at, eager
        self.tried: list[tuple[int, str]] = []

    def attempt(self, sequences: int, attention: str) -> Trial | None:
        self.tried.append((sequences, attention))
        peak = FIXED + EACH * sequences
        if peak > self._room_bytes or attention == "none such":
            return None
        seconds = sequences / min(sequences, self._best_at) * (self._eager if attention == "eager" else 1.0)
        return Trial(sequences=sequences, attention=attention, seconds=seconds, peak_bytes=peak)


@pytest.mark.parametrize(("room", "found"), [(FIXED + 8 * EACH, 8), (FIXED + 7 * EACH, 4), (FIXED + EACH, 1)])
def test_what_has_no_room_is_halved(room: int, found: int) -> None:
    device = Device(room)
    best = find(device.attempt, 8, 8, ("sdpa",))
    assert best is not None
    assert best.best.sequences == found


def test_where_not_one_has_room_nothing_is_found() -> None:
    assert find(Device(FIXED).attempt, 8, 8, ("sdpa",)) is None


def test_a_larger_one_is_taken_while_it_is_faster() -> None:
    """Up to the whole inner step, and not beyond."""
    faster = find(Device(10**6, best_at=20).attempt, 4, 64, ("sdpa",))
    assert faster is not None
    assert faster.best.sequences == 32
    whole = find(Device(10**6, best_at=1000).attempt, 4, 24, ("sdpa",))
    assert whole is not None
    assert whole.best.sequences == 24


def test_what_had_to_shrink_is_not_grown_again() -> None:
    device = Device(FIXED + 5 * EACH, best_at=100)
    find(device.attempt, 8, 64, ("sdpa",))
    assert max(sequences for sequences, _ in device.tried) == 8


@pytest.mark.parametrize(("eager", "attention"), [(2.0, "sdpa"), (0.5, "eager")])
def test_the_faster_kernel_is_taken(eager: float, attention: str) -> None:
    found = find(Device(10**6, eager=eager).attempt, 8, 8, ("sdpa", "eager", "none such"))
    assert found is not None
    assert found.best.attention == attention


def test_memory_is_a_straight_line() -> None:
    found = find(Device(10**6).attempt, 8, 8, ("sdpa",))
    assert found is not None
    assert (found.fixed_bytes, found.sequence_bytes) == (FIXED, EACH)


# ---- what is kept of it ----

BASIS = TuneKey(run="ab", device="cuda:1", name="a GPU", torch="2.13", homefires="0.1")
FIT = Tuned(
    basis=BASIS, sequences=8, attention="sdpa", step_s=0.5, tokens_per_s=1000.0, fixed_bytes=FIXED, sequence_bytes=EACH
)
SHARED = dataclasses.replace(FIT, sharding="hybrid", group=2, speeds=(1.0, 0.5, 1.0, 0.5), most=(8, 4, 8, 4))


def test_a_fit_is_remembered_for_the_same_device_and_versions_alone(tmp_path: Path) -> None:
    remember(tmp_path, FIT)
    assert recall(tmp_path, BASIS) == FIT
    for key in ("run", "device", "name", "torch", "homefires", "sharding", "offload"):
        assert recall(tmp_path, dataclasses.replace(BASIS, **{key: "another"})) is None
    assert recall(tmp_path / "none", BASIS) is None
    remember(tmp_path, SHARED)
    assert recall(tmp_path, BASIS) == SHARED


def test_a_fit_that_was_found_beside_a_game_is_found_anew_without_it(spec: RunSpec, tmp_path: Path) -> None:
    """Else a peer that first joined just then would train in small pieces for ever."""
    beside = dataclasses.replace(FIT, sequences=1, free_bytes=4000)
    remember(tmp_path, beside)
    assert [recall(tmp_path, BASIS, free) for free in (0, 2000, 5000)] == [beside] * 3
    alone = dataclasses.replace(FIT, free_bytes=20_000)
    assert find_fit(spec, tmp_path, BASIS, Children((0, alone.to_json(), "")), free_bytes=20_000) == alone
    assert recall(tmp_path, BASIS, 20_000) == alone


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"v": 1}',
        FIT.to_json().replace('"sequences": 8', '"sequences": 0'),
        FIT.to_json().replace('"free_bytes": 0', '"free_bytes": "many"'),
        SHARED.to_json().replace("0.5,", '"slow",'),
    ],
)
def test_a_damaged_file_is_measured_anew(tmp_path: Path, text: str) -> None:
    assert from_json(text) is None
    (tmp_path / "tuned.json").write_text(text)
    assert recall(tmp_path, BASIS) is None


def test_memory_that_shrank_makes_the_micro_batch_smaller() -> None:
    """As at resume, when something else has taken memory meanwhile; and it comes back."""
    enough = round((FIXED + 8 * EACH) / 0.9) + 1
    assert room_for(FIT, enough) == 8
    assert room_for(FIT, enough - 200) == 4
    assert room_for(FIT, 0) == 1
    assert room_for(dataclasses.replace(FIT, sequence_bytes=0), 0) == 8


# ---- the child ----

CPU = dataclasses.replace(BASIS, device="cpu")


@pytest.fixture
def spec() -> RunSpec:
    return load("micro")


class Children:
    """End one after the other like this."""

    def __init__(self, *endings: tuple[int, str, str]) -> None:
        self._endings = list(endings)
        self.most: list[int] = []
        self.words: list[str] = []

    def __call__(self, words: list[str]) -> tuple[int, str, str]:
        self.words = words
        self.most.append(int(words[words.index("--most") + 1]))
        return self._endings.pop(0)


def test_a_child_that_is_killed_is_tried_with_half(spec: RunSpec, tmp_path: Path) -> None:
    """By the kernel, for main memory: it cannot catch that itself."""
    children = Children((-9, "", ""), (-9, "", ""), (0, FIT.to_json(), ""))
    assert find_fit(spec, tmp_path, BASIS, children) == FIT
    whole = spec.inner.sequences * spec.inner.accumulation
    assert children.most == [whole, (spec.inner.sequences + 1) // 2, (spec.inner.sequences + 3) // 4]
    assert find_fit(spec, tmp_path, BASIS, Children()) == FIT  # remembered


def test_a_child_is_told_of_all_devices_and_what_their_owner_allows(spec: RunSpec, tmp_path: Path) -> None:
    basis = dataclasses.replace(BASIS, device="cuda:0 cuda:1", sharding="full", offload=True)
    children = Children((0, dataclasses.replace(SHARED, basis=basis).to_json(), ""))
    assert try_out(spec, tmp_path / "spec.toml", basis, children).sharding == "hybrid"
    assert children.words[3:8] == ["--devices", "cuda:0", "cuda:1", "--sharding", "full"]
    assert "--offload" in children.words


@pytest.mark.outside
def test_a_dry_run_that_hangs_is_a_failure_and_not_tried_again(
    spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not memory that it lacks, and each try would take minutes in which the peer does not join."""
    monkeypatch.setattr(cache, "CHILD_S", 0.2)
    started: list[list[str]] = []

    def hang(words: list[str]) -> tuple[int, str, str]:
        started.append(words)
        return run_python(["-c", "import signal; signal.pause()"])

    with pytest.raises(HomefiresError, match="a dry run on cuda:1 failed: it did not end within 0 s") as failed:
        find_fit(spec, tmp_path, BASIS, hang)
    assert not isinstance(failed.value, MemoryFull)
    assert len(started) == 1


@pytest.mark.outside
def test_a_dry_run_that_is_unwanted_is_gone_within_seconds(tmp_path: Path) -> None:
    """With all that it took."""
    begun = tmp_path / "begun"
    program = f"import os, signal; os.symlink(str(os.getpid()), {str(begun)!r}); signal.pause()"
    unwanted_at: list[float] = []

    def unwanted() -> bool:
        if begun.is_symlink():
            unwanted_at.append(time.monotonic())
        return bool(unwanted_at)

    with pytest.raises(Unwanted):
        run_python(["-c", program], unwanted)
    assert time.monotonic() - unwanted_at[0] < OBEYED_S - LOOK_S - POLL_S
    assert not psutil.pid_exists(int(begun.readlink().name))


def test_a_fit_that_cannot_be_kept_is_used(spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the next start finds it again."""

    def full(*_: object, **__: object) -> None:
        raise DiskFull("the disk is full")

    monkeypatch.setattr("peer.parallel.autotune.cache.write_atomic", full)
    assert find_fit(spec, tmp_path, BASIS, Children((0, FIT.to_json(), ""))) == FIT


def test_how_a_dry_run_fails_is_told(spec: RunSpec, tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    with pytest.raises(MemoryFull, match=r"^no room$"):
        try_out(spec, path, CPU, Children((12, "", "homefires: no room\n")))
    with pytest.raises(MemoryFull):
        try_out(spec, path, CPU, Children(*[(-9, "", "killed")] * 20))
    with pytest.raises(HomefiresError, match="a dry run on cpu failed: oh"):
        try_out(spec, path, CPU, Children((1, "", "Traceback\noh\n")))
