"""Files that must survive a crash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dht.files import write_whole


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """Nothing but the new bytes, and no scratch file."""
    write_whole(tmp_path / "file", b"a long first text")
    write_whole(tmp_path / "file", b"short")
    assert (tmp_path / "file").read_bytes() == b"short"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_until_the_new_bytes_are_on_disk_the_old_ones_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails in between: the file is what it was."""
    write_whole(tmp_path / "file", b"old")

    def fail(handle: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
