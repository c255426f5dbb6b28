"""Files that must survive a crash."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from dht.atomic_files import write_atomic, write_exclusive
from dht.errors import DiskFull


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """Nothing but the new bytes, and no scratch file."""
    write_atomic(tmp_path / "file", b"a long first text")
    write_atomic(tmp_path / "file", b"short")
    assert (tmp_path / "file").read_bytes() == b"short"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_until_the_new_bytes_are_on_disk_the_old_ones_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails in between: the file is what it was."""
    write_atomic(tmp_path / "file", b"old")

    def fail(handle: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize("has_links", [True, False], ids=["disk", "memory stick"])
def test_a_new_file_is_private_and_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    write_exclusive(tmp_path / "key", b"first")
    with pytest.raises(FileExistsError):
        write_exclusive(tmp_path / "key", b"second")
    assert (tmp_path / "key").read_bytes() == b"first"
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_a_new_file_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty key, left by a disk that was full, would keep a peer from ever starting again."""

    def fail(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DiskFull):
        write_exclusive(tmp_path / "key", b"first")
    assert list(tmp_path.iterdir()) == []


def test_what_replaces_a_file_leaves_no_half_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk that would be room which something else needs."""

    def fail(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_atomic(tmp_path / "settings", b"first")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DiskFull):
        write_atomic(tmp_path / "settings", b"second")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("settings", b"first")]
