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
from safetensors import SafetensorError

from dht.errors import DiskFull
from peer.checkpoint import checkpoint as checkpoints
from peer.checkpoint.checkpoint import KEPT, SUMS, VERSION, Checkpoint, Checkpoints, find_damage, newest

FILES = ("anchor.safetensors", "optimizer.safetensors", "peer.safetensors", "state.json", SUMS)


class Usage(NamedTuple):
    """What `shutil.disk_usage` gives."""

    total: int
    used: int
    free: int


def take(round: int = 0, *, run: str = "run", peer: str = "me", version: int = VERSION) -> Checkpoint:
    """A small checkpoint whose every number is its round."""
    values = torch.full((70,), float(round))
    return Checkpoint(
        state={"version": version, "run": run, "peer": peer, "round": round, "anchor": "00", "share": 0.1 + round},
        tensors={"anchor": {"theta": values}, "peer": {"residual": values}, "optimizer": {"opt.0.0.step": values[0]}},
    )


@pytest.fixture
def shelf(tmp_path: Path) -> Checkpoints:
    """An empty folder."""
    return Checkpoints(tmp_path / "checkpoints")


def find(shelf: Checkpoints) -> tuple[Checkpoint | None, list[str]]:
    """The one that a restart takes, and what it says about those it does not take."""
    said: list[str] = []
    return newest(shelf.folder, "run", "me", lambda path, why: said.append(f"{path}: {why}")), said


def test_what_was_written_is_read(shelf: Checkpoints) -> None:
    """Every value and every tensor."""
    assert find(shelf) == (None, [])
    shelf.write(take(3))
    found, said = find(shelf)
    assert found is not None
    assert said == []
    assert found.state == take(3).state
    assert {name: set(tensors) for name, tensors in found.tensors.items()} == {
        name: set(tensors) for name, tensors in take(3).tensors.items()
    }
    for name, tensors in take(3).tensors.items():
        for key, tensor in tensors.items():
            assert torch.equal(found.tensors[name][key], tensor)


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
        truncate(shelf.write(take(round)) / "anchor.safetensors")
    found, said = find(shelf)
    assert found is None
    assert len(said) == KEPT


@pytest.mark.parametrize(
    "other", [take(2, run="another"), take(2, peer="another"), take(2, version=VERSION + 1)], ids=["run", "peer", "v"]
)
def test_a_checkpoint_of_another_owner_is_not_taken(shelf: Checkpoints, other: Checkpoint) -> None:
    """Nor one of a client whose files this one does not know."""
    shelf.write(take(1))
    shelf.write(other)
    found, (line,) = find(shelf)
    assert found is not None
    assert found.state["round"] == 1
    assert "another run, peer or version" in line


def test_a_crash_while_writing_leaves_the_one_before(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any file; the half-written folder is swept away by the next one."""
    shelf.write(take(1))
    for file in range(3):
        calls = iter(range(10))

        def save_or_die(tensors: object, path: Path, dying: int = file, calls: object = calls) -> None:
            path.write_bytes(b"half")
            if next(calls) == dying:  # type: ignore[call-overload]
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "_save", save_or_die)
            with pytest.raises(KeyboardInterrupt):
                shelf.write(take(2))
        found, said = find(shelf)
        assert found is not None
        assert (found.state["round"], said) == (1, [])
    shelf.write(take(2))
    assert sorted(path.name for path in shelf.folder.iterdir()) == ["00000001", "00000002"]


def test_without_room_nothing_is_written(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there stays, and the error says what it takes and what there is."""
    shelf.write(take(1))
    needed = take(2).size_bytes
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


def test_a_disk_that_fills_with_tensors(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own words for ENOSPC, as seen on a small tmpfs, mean a full disk; any other failure is a bug."""
    shelf.write(take(1))
    for words, kind in (("No space left on device (os error 28)", DiskFull), ("(os error 5)", SafetensorError)):

        def fail(tensors: object, path: object, words: str = words) -> None:
            raise SafetensorError(f"Error while serializing: I/O error: {words}")

        monkeypatch.setattr(checkpoints, "save_file", fail)
        with pytest.raises(kind):
            shelf.write(take(2))
    assert find(shelf)[0] is not None


def test_a_disk_that_fills_at_the_end(shelf: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full stands for the disk: the kernel's own error; nothing is left of the half-written one."""
    shelf.write(take(1))
    make = Path.mkdir

    def make_without_room(path: Path) -> None:
        make(path)
        (path / "state.json").symlink_to("/dev/full")

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
