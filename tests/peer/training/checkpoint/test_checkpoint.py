"""Checkpoints on disk: whole or not there, and any damage is noticed."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors import safe_open

from dht.errors import DiskFull
from peer.planning.plan import disk_use
from peer.planning.plan.disk_use import CHECKPOINTS_KEPT as KEPT
from peer.training.checkpoint.capture import Capture, LayerCapture
from peer.training.checkpoint.checkpoint import SUMS, VERSION, Checkpoint, Checkpoints, find_damage, newest, size_bytes
from peer.training.checkpoint.tensor_file import TensorFile
from tests.peer.training.checkpoint.captured import CPU, layer

FILES = ("000.safetensors", "001.safetensors", "rest.safetensors", "state.json", SUMS)


class Usage(NamedTuple):
    """What `shutil.disk_usage` gives."""

    total: int
    used: int
    free: int


def take(round: int = 0, *, run: str = "run", peer: str = "me", version: int = VERSION) -> Capture:
    """A small checkpoint whose every number is its round: nothing of it follows from an anchor of zeros."""
    value = float(round)
    layers = [
        LayerCapture.of(layer(70, theta=value / 2, residual=value), {"adamw.0.step": torch.tensor(value)}, sparse=False)
        for _ in range(2)
    ]
    return Capture(
        state={"version": version, "run": run, "peer": peer, "round": round, "anchor": "00", "share": 0.1 + round},
        layers=layers, rest={"generator.cpu": torch.arange(9, dtype=torch.uint8), "unread": torch.ones(2, 3).long()},
        device=CPU,
    )  # fmt: skip


@pytest.fixture
def shelf(tmp_path: Path) -> Checkpoints:
    """An empty folder."""
    return Checkpoints(tmp_path / "checkpoints")


def find(shelf: Checkpoints) -> tuple[Checkpoint | None, list[str]]:
    """The one that a restart takes, and what it says about those it does not take."""
    said: list[str] = []
    return newest(shelf.folder, "run", "me", lambda path, why: said.append(f"{path}: {why}")), said


def test_what_was_written_is_read(shelf: Checkpoints) -> None:
    """Every value and every tensor, layer by layer, by a library that others wrote."""
    assert find(shelf) == (None, [])
    path = shelf.write(take(3))
    found, said = find(shelf)
    assert found is not None
    assert (said, found.state, found.round, found.anchor) == ([], take(3).state, 3, bytes(1))
    for number in range(2):
        stored = found.layer(number)
        assert stored.keys() == {"residual", "start", "local", "adamw.0.step"}
        assert torch.equal(stored["residual"], torch.full((70,), 3.0))
        assert torch.equal(stored["adamw.0.step"], torch.tensor(3.0))
    assert torch.equal(found.rest["generator.cpu"], torch.arange(9, dtype=torch.uint8))
    assert torch.equal(found.rest["unread"], torch.ones(2, 3).long())
    with safe_open(path / "000.safetensors", "np") as file:
        assert file.get_slice("local").get_shape() == [70]
    assert size_bytes(path) == sum(file.stat().st_size for file in path.iterdir())


def test_large_ones_are_not_kept_twice(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is written, the one before is there."""
    first = shelf.write(take(1))
    monkeypatch.setattr(disk_use, "CHECKPOINTS_BYTES", 2 * size_bytes(first) - 1)
    written: list[bool] = []
    capture = take(2)
    all_decided = capture.all_decided
    vars(capture)["all_decided"] = lambda: (written.append(first.exists()), all_decided())
    second = shelf.write(capture)
    assert (written, list(shelf.folder.iterdir())) == ([True], [second])


def test_the_newest_are_kept(shelf: Checkpoints) -> None:
    """The last one is taken, and the one before is there in case it is damaged."""
    for round in range(KEPT + 2):
        shelf.write(take(round))
    assert len(list(shelf.folder.iterdir())) == KEPT
    found, _ = find(shelf)
    assert found is not None
    assert found.state["round"] == KEPT + 1


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def flip(position: float) -> Callable[[Path], None]:
    """Flip one bit of the byte at this share of the file."""

    def flip_one(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(position * (len(content) - 1))] ^= 1
        path.write_bytes(content)

    return flip_one


DAMAGES = {"truncated": truncate, "empty": empty, "gone": remove} | {
    f"flipped at {share}": flip(share) for share in (0.0, 0.3, 0.6, 1.0)
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_to_any_file_is_noticed(shelf: Checkpoints, name: str, damage: Callable[[Path], None]) -> None:
    """The checkpoint before is taken, and a line names the damaged one and the file."""
    first, second = shelf.write(take(1)), shelf.write(take(2))
    damage(second / name)
    found, said = find(shelf)
    assert found is not None
    assert found.state["round"] == 1
    assert find_damage(first) == ""
    (line,) = said
    assert str(second) in line
    assert "damaged" in line
    assert name in line


def test_every_single_byte_counts(shelf: Checkpoints) -> None:
    """Of the sum file, which guards itself by being written in one way only, and of the values in words."""
    path = shelf.write(take(1))
    for name in (SUMS, "state.json"):
        content = (path / name).read_bytes()
        for position in range(len(content)):
            damaged = bytearray(content)
            damaged[position] ^= 1
            (path / name).write_bytes(damaged)
            assert find_damage(path), f"byte {position} of {name}"
        (path / name).write_bytes(content)
    assert find_damage(path) == ""


def test_a_file_too_many_is_noticed(shelf: Checkpoints) -> None:
    """Nothing that was not written with it is read."""
    path = shelf.write(take(1))
    (path / "more.safetensors").write_bytes(b"")
    assert "more.safetensors" in find_damage(path)


@pytest.mark.outside
def test_the_sums_are_those_of_coreutils(shelf: Checkpoints) -> None:
    """A person can check a checkpoint without homefires."""
    path = shelf.write(take(1))
    if shutil.which("b2sum") is None:
        pytest.fail("b2sum is part of GNU coreutils, which every Linux has")
    subprocess.run(["b2sum", "-l", "256", "--check", "--strict", SUMS], cwd=path, check=True, capture_output=True)


def test_if_all_are_damaged_there_is_none(shelf: Checkpoints) -> None:
    """Each is named."""
    for round in range(KEPT):
        truncate(shelf.write(take(round)) / "000.safetensors")
    found, said = find(shelf)
    assert found is None
    assert len(said) == KEPT


@pytest.mark.parametrize(
    "other", [take(2, run="another"), take(2, peer="another"), take(2, version=VERSION + 1)], ids=["run", "peer", "v"]
)
def test_a_checkpoint_of_another_owner_is_not_taken(shelf: Checkpoints, other: Capture) -> None:
    """Nor one of a client whose files this one does not know."""
    shelf.write(take(1))
    shelf.write(other)
    found, (line,) = find(shelf)
    assert found is not None
    assert found.state["round"] == 1
    assert "another run, peer or version" in line


def test_a_crash_while_writing_leaves_the_one_before(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any file; the half-written folder is swept away by the next one, and nobody waits for it."""
    shelf.write(take(1))
    for last in range(3):
        finished = iter(range(10))
        finish = TensorFile.finish

        def finish_or_die(file: TensorFile, dying: int = last, finished: object = finished) -> str:
            if next(finished) == dying:  # type: ignore[call-overload]
                raise KeyboardInterrupt
            return finish(file)  # noqa: B023

        capture = take(2)
        with monkeypatch.context() as patch:
            patch.setattr(TensorFile, "finish", finish_or_die)
            with pytest.raises(KeyboardInterrupt):
                shelf.write(capture)
        assert capture.has_ended
        capture.before_move()
        found, said = find(shelf)
        assert found is not None
        assert (found.state["round"], said) == (1, [])
    shelf.write(take(2))
    assert sorted(path.name for path in shelf.folder.iterdir()) == ["00000001", "00000002"]


def test_without_room_nothing_is_written(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there stays, and the error says what it takes and what there is."""
    shelf.write(take(1))
    needed = take(2).most_bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, needed))
    with pytest.raises(DiskFull, match=r"no room for a checkpoint: it takes \d+ MB, \d+ MB are free below"):
        shelf.write(take(2))
    assert [path.name for path in shelf.folder.iterdir()] == ["00000001"]


def test_a_disk_without_room_for_a_folder(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new name needs room, too."""
    shelf.write(take(1))

    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", fail)
        with pytest.raises(DiskFull, match="is full"):
            shelf.write(take(2))
    assert [path.name for path in shelf.folder.iterdir()] == ["00000001"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fills_with_tensors(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Any other failure is no full disk."""
    shelf.write(take(1))
    finish = TensorFile.finish

    def fail(file: TensorFile) -> str:
        if file.path.name == "001.safetensors":
            raise OSError(number, "words")
        return finish(file)

    monkeypatch.setattr(TensorFile, "finish", fail)
    with pytest.raises(OSError if number == errno.EIO else DiskFull):
        shelf.write(take(2))
    assert find(shelf)[0] is not None


def test_a_disk_that_fills_at_the_end(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full stands for the disk: the kernel's own error; nothing is left of the half-written one."""
    shelf.write(take(1))
    make = Path.mkdir

    def make_without_room(path: Path) -> None:
        make(path)
        (path / "001.safetensors").symlink_to("/dev/full")

    monkeypatch.setattr(Path, "mkdir", make_without_room)
    with pytest.raises(DiskFull, match="is full"):
        shelf.write(take(2))
    monkeypatch.undo()
    assert [path.name for path in shelf.folder.iterdir()] == ["00000001"]


def test_one_that_is_set_aside_does_not_count(shelf: Checkpoints) -> None:
    """Two intact ones are kept; the damaged one goes with the next that is written."""
    first, second = shelf.write(take(1)), shelf.write(take(2))
    shelf.set_aside(second)
    found, said = find(shelf)
    assert found is not None
    assert (found.state["round"], said) == (1, [])
    shelf.write(take(3))
    assert first.exists()
    assert len(list(shelf.folder.iterdir())) == KEPT
